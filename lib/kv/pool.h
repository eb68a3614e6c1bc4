/*
 * The blocks of one node's arena: who has which. Knows states, reference counts and
 * generations, not contents; all memory is taken at init.
 *
 * Every block has one owner. Its state says whose it is:
 *
 *     FREE         nobody's
 *     RESERVED     a transfer's, which will write into it
 *     USED         referenced by sequences (by one only while it is being filled)
 *     CACHED       the prefix index's alone: complete, unreferenced, may be evicted
 *     QUARANTINED  a transfer's that was taken back; a late write may still come
 *
 * Invariants (kv_pool_check)
 *   P1  The counts of the five states add up to block_count.
 *   P2  refs > 0 exactly in USED; committed only in USED and CACHED, always in CACHED.
 *   P3  The free list holds exactly the FREE blocks.
 */
#ifndef BATON_KV_POOL_H
#define BATON_KV_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "kv/shape.h"

enum kv_block_state { KV_FREE, KV_RESERVED, KV_USED, KV_CACHED, KV_QUARANTINED, KV_STATE_COUNT };

struct kv_block {
	uint32_t refs;       /* sequences that have it in their page table */
	uint32_t generation; /* lives so far; counts up when it becomes free */
	uint32_t next_free;
	uint8_t state;
	bool committed; /* immutable, known to the index under its key */
};

struct kv_pool {
	struct kv_block *blocks;
	uint32_t block_count;
	uint32_t counts[KV_STATE_COUNT];
	uint32_t free_head;
	/* Called for each block that becomes free; test builds overwrite its bytes. May be NULL. */
	void (*poison)(void *context, kv_block_id block);
	void *poison_context;
};

/* Return: 0 or -ENOMEM. */
int kv_pool_init(struct kv_pool *pool, uint32_t block_count);
void kv_pool_fini(struct kv_pool *pool);

/* FREE -> @state: RESERVED, or USED with one reference. Return: 0, or -ENOSPC: none is free. */
int kv_pool_take(struct kv_pool *pool, enum kv_block_state state, kv_block_id *ret_block);
/* RESERVED -> USED, with one reference. */
void kv_pool_land(struct kv_pool *pool, kv_block_id block);
/* RESERVED -> QUARANTINED. */
void kv_pool_quarantine(struct kv_pool *pool, kv_block_id block);
/* RESERVED, QUARANTINED, CACHED -> FREE. */
void kv_pool_free(struct kv_pool *pool, kv_block_id block);
/* USED, CACHED -> USED, with one reference more. */
void kv_pool_ref(struct kv_pool *pool, kv_block_id block);
/* At the last reference a committed block becomes CACHED, another one FREE. Returns its state. */
enum kv_block_state kv_pool_unref(struct kv_pool *pool, kv_block_id block);
/* USED and complete: immutable from now on. */
void kv_pool_commit(struct kv_pool *pool, kv_block_id block);

static inline const struct kv_block *kv_pool_block(const struct kv_pool *pool, kv_block_id block)
{
	return &pool->blocks[block.v];
}

void kv_pool_check(const struct kv_pool *pool);

#endif
