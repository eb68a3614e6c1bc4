/*
 * The KV memory of one process: arena blocks and prefix index, kept in step. Both role cores of
 * a process share one. All changes of references go through here, so that
 *
 *   N1  a block is CACHED exactly when the index lists it for eviction;
 *   N2  a block is committed exactly when the index has an entry for it.
 */
#ifndef BATON_KV_NODE_H
#define BATON_KV_NODE_H

#include "kv/index.h"
#include "kv/pool.h"

struct kv_node {
	struct kv_pool pool;
	struct kv_index index;
	uint32_t block_tokens;
	bool caching_off; /* nothing is committed, so no prompt finds anything */
	uint64_t evictions;
};

/* Return: 0 or -ENOMEM. */
int kv_node_init(struct kv_node *node, uint32_t block_count, uint32_t block_tokens);
void kv_node_fini(struct kv_node *node);

/* A fresh block, RESERVED or USED; evicts a cached one when none is free. Return: 0 or -ENOSPC. */
int kv_node_take(struct kv_node *node, enum kv_block_state state, kv_block_id *ret_block);
void kv_node_ref(struct kv_node *node, kv_block_id block);
void kv_node_unref(struct kv_node *node, kv_block_id block);
/* A complete block becomes known under its key, unless another one has it. */
void kv_node_commit(struct kv_node *node, kv_block_id block, const struct kv_key *parent,
		    const struct kv_key *key);
static inline bool kv_node_committed(const struct kv_node *node, kv_block_id block)
{
	return kv_pool_block(&node->pool, block)->committed;
}
/* Blocks that could be had: free and evictable. */
uint32_t kv_node_available(const struct kv_node *node);

/* Invariant 2 at rest: nothing used, reserved or quarantined. */
bool kv_node_idle(const struct kv_node *node);
void kv_node_check(const struct kv_node *node);

#endif
