#include "kv/node.h"

#include <errno.h>

#include "base/check.h"

int kv_node_init(struct kv_node *node, uint32_t block_count, uint32_t block_tokens)
{
	*node = (struct kv_node){ .block_tokens = block_tokens };
	int r = kv_pool_init(&node->pool, block_count);
	if (r < 0)
		return r;
	r = kv_index_init(&node->index, block_count);
	if (r < 0)
		kv_pool_fini(&node->pool);
	return r;
}

void kv_node_fini(struct kv_node *node)
{
	kv_index_fini(&node->index);
	kv_pool_fini(&node->pool);
}

int kv_node_take(struct kv_node *node, enum kv_block_state state, kv_block_id *ret_block)
{
	kv_block_id victim;

	if (node->pool.counts[KV_FREE] == 0) {
		if (!kv_index_victim(&node->index, &victim))
			return -ENOSPC;
		kv_index_unlist(&node->index, victim);
		kv_index_remove(&node->index, victim);
		kv_pool_free(&node->pool, victim);
		node->evictions++;
	}
	return kv_pool_take(&node->pool, state, ret_block);
}

void kv_node_ref(struct kv_node *node, kv_block_id block)
{
	if (kv_pool_block(&node->pool, block)->state == KV_CACHED)
		kv_index_unlist(&node->index, block);
	kv_pool_ref(&node->pool, block);
}

void kv_node_unref(struct kv_node *node, kv_block_id block)
{
	if (kv_pool_unref(&node->pool, block) == KV_CACHED)
		kv_index_list(&node->index, block);
}

void kv_node_commit(struct kv_node *node, kv_block_id block, const struct kv_key *parent,
		    const struct kv_key *key)
{
	if (node->caching_off || kv_node_committed(node, block))
		return;
	if (kv_index_insert(&node->index, block, parent, key) == 0)
		kv_pool_commit(&node->pool, block);
}

uint32_t kv_node_available(const struct kv_node *node)
{
	return node->pool.counts[KV_FREE] + node->pool.counts[KV_CACHED];
}

bool kv_node_idle(const struct kv_node *node)
{
	return kv_node_available(node) == node->pool.block_count;
}

void kv_node_check(const struct kv_node *node)
{
	kv_pool_check(&node->pool);
	kv_index_check(&node->index);
	for (uint32_t i = 0; i < node->pool.block_count; i++) {
		const struct kv_block *block = &node->pool.blocks[i];
		CHECK(node->index.entries[i].listed == (block->state == KV_CACHED));
		CHECK(node->index.entries[i].present == block->committed);
	}
}
