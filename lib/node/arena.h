/*
 * The node's KV memory: one memfd, mapped here read-write, which shm readers map read-only. On
 * CPU the engine's format is the pool's, so engine, cache and transfers share it without a copy.
 */
#ifndef BATON_NODE_ARENA_H
#define BATON_NODE_ARENA_H

#include <stdint.h>

#include "kv/shape.h"

struct arena {
	int memfd;
	void *base;
	uint64_t bytes;
	uint64_t block_bytes;
	uint32_t block_count;
};

/* As many blocks as fit into @bytes_max. Return: 0, -ENOMEM, or -ENOSPC when not even
 * @blocks_min fit. Pages come from the kernel as they are first written. */
int arena_open(struct arena *arena, const struct kv_shape *shape, uint64_t bytes_max,
	       uint32_t blocks_min);
void arena_close(struct arena *arena);

static inline void *arena_block(const struct arena *arena, kv_block_id block)
{
	return (char *)arena->base + block.v * arena->block_bytes;
}

#endif
