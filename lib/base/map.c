#include "base/map.h"

#include <errno.h>
#include <stdlib.h>

#include "base/check.h"

static uint32_t map_home(const struct map *map, uint64_t key)
{
	key ^= key >> 32;
	key *= UINT64_C(0x9e3779b97f4a7c15);
	return (uint32_t)(key >> 32) & map->mask;
}

int map_init(struct map *map, uint32_t capacity)
{
	uint32_t slots = 8;
	while (slots < capacity + capacity / 2 + 1)
		slots *= 2;
	map->slots = calloc(slots, sizeof *map->slots);
	if (!map->slots)
		return -ENOMEM;
	map->mask = slots - 1;
	map->count = 0;
	map->capacity = capacity;
	return 0;
}

void map_fini(struct map *map)
{
	free(map->slots);
	map->slots = NULL;
}

static struct map_slot *map_find(const struct map *map, uint64_t key)
{
	uint32_t at = map_home(map, key);
	while (map->slots[at].used && map->slots[at].key != key)
		at = (at + 1) & map->mask;
	return &map->slots[at];
}

int map_put(struct map *map, uint64_t key, uint64_t value)
{
	struct map_slot *slot = map_find(map, key);
	if (slot->used)
		return -EEXIST;
	if (map->count == map->capacity)
		return -ENOSPC;
	*slot = (struct map_slot){ key, value, true };
	map->count++;
	return 0;
}

bool map_get(const struct map *map, uint64_t key, uint64_t *ret_value)
{
	const struct map_slot *slot = map_find(map, key);
	if (slot->used)
		*ret_value = slot->value;
	return slot->used;
}

bool map_remove(struct map *map, uint64_t key)
{
	struct map_slot *slot = map_find(map, key);
	if (!slot->used)
		return false;
	uint32_t hole = (uint32_t)(slot - map->slots);
	/* Shift back every follower whose home does not lie after the hole. */
	for (uint32_t at = (hole + 1) & map->mask; map->slots[at].used; at = (at + 1) & map->mask) {
		uint32_t home = map_home(map, map->slots[at].key);
		if (((at - home) & map->mask) >= ((at - hole) & map->mask)) {
			map->slots[hole] = map->slots[at];
			hole = at;
		}
	}
	map->slots[hole].used = false;
	map->count--;
	return true;
}
