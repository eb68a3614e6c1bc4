/* Open-addressing map from uint64_t to uint64_t (a pointer or an index), linear probing with
 * backward-shift deletion. Fixed capacity: allocated once, never grows, insertion can fail. */
#ifndef BATON_BASE_MAP_H
#define BATON_BASE_MAP_H

#include <stdbool.h>
#include <stdint.h>

struct map_slot {
	uint64_t key, value;
	bool used;
};

struct map {
	struct map_slot *slots;
	uint32_t mask, count, capacity;
};

/* Room for @capacity entries. Return: 0 or -ENOMEM. */
int map_init(struct map *map, uint32_t capacity);
void map_fini(struct map *map);
/* Return: 0, -EEXIST when the key is present (value untouched), -ENOSPC when full. */
int map_put(struct map *map, uint64_t key, uint64_t value);
bool map_get(const struct map *map, uint64_t key, uint64_t *ret_value);
bool map_remove(struct map *map, uint64_t key);

#endif
