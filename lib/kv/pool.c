#include "kv/pool.h"

#include <errno.h>
#include <stdlib.h>

#include "base/check.h"

static void move(struct kv_pool *pool, struct kv_block *block, enum kv_block_state state)
{
	CHECK(pool->counts[block->state] > 0);
	pool->counts[block->state]--;
	pool->counts[state]++;
	block->state = (uint8_t)state;
}

static struct kv_block *block_in(struct kv_pool *pool, kv_block_id id, enum kv_block_state state)
{
	CHECK(id.v < pool->block_count);
	struct kv_block *block = &pool->blocks[id.v];
	CHECK(block->state == state);
	return block;
}

int kv_pool_init(struct kv_pool *pool, uint32_t block_count)
{
	*pool = (struct kv_pool){ .block_count = block_count, .free_head = KV_BLOCK_NONE };
	pool->blocks = calloc(block_count, sizeof *pool->blocks);
	if (!pool->blocks)
		return -ENOMEM;
	for (uint32_t i = block_count; i-- > 0;) {
		pool->blocks[i].next_free = pool->free_head;
		pool->free_head = i;
	}
	pool->counts[KV_FREE] = block_count;
	return 0;
}

void kv_pool_fini(struct kv_pool *pool)
{
	free(pool->blocks);
	*pool = (struct kv_pool){ 0 };
}

int kv_pool_take(struct kv_pool *pool, enum kv_block_state state, kv_block_id *ret_block)
{
	CHECK(state == KV_RESERVED || state == KV_USED);
	if (pool->free_head == KV_BLOCK_NONE)
		return -ENOSPC;
	kv_block_id id = { pool->free_head };
	struct kv_block *block = block_in(pool, id, KV_FREE);
	pool->free_head = block->next_free;
	block->refs = state == KV_USED;
	block->committed = false;
	move(pool, block, state);
	*ret_block = id;
	return 0;
}

void kv_pool_land(struct kv_pool *pool, kv_block_id id)
{
	struct kv_block *block = block_in(pool, id, KV_RESERVED);
	block->refs = 1;
	move(pool, block, KV_USED);
}

void kv_pool_quarantine(struct kv_pool *pool, kv_block_id id)
{
	move(pool, block_in(pool, id, KV_RESERVED), KV_QUARANTINED);
}

void kv_pool_free(struct kv_pool *pool, kv_block_id id)
{
	CHECK(id.v < pool->block_count);
	struct kv_block *block = &pool->blocks[id.v];
	CHECK(block->state != KV_FREE);
	CHECK(block->refs == 0);
	move(pool, block, KV_FREE);
	block->committed = false;
	block->generation++;
	block->next_free = pool->free_head;
	pool->free_head = id.v;
	if (pool->poison)
		pool->poison(pool->poison_context, id);
}

void kv_pool_ref(struct kv_pool *pool, kv_block_id id)
{
	CHECK(id.v < pool->block_count);
	struct kv_block *block = &pool->blocks[id.v];
	if (block->state == KV_CACHED)
		move(pool, block, KV_USED);
	CHECK(block->state == KV_USED);
	block->refs++;
}

enum kv_block_state kv_pool_unref(struct kv_pool *pool, kv_block_id id)
{
	struct kv_block *block = block_in(pool, id, KV_USED);
	CHECK(block->refs > 0);
	if (--block->refs > 0)
		return KV_USED;
	if (block->committed)
		move(pool, block, KV_CACHED);
	else
		kv_pool_free(pool, id);
	return block->state;
}

void kv_pool_commit(struct kv_pool *pool, kv_block_id id)
{
	struct kv_block *block = block_in(pool, id, KV_USED);
	CHECK(!block->committed);
	block->committed = true;
}

void kv_pool_check(const struct kv_pool *pool)
{
	uint32_t counts[KV_STATE_COUNT] = { 0 }, free_count = 0, total = 0;

	for (uint32_t i = 0; i < pool->block_count; i++) {
		const struct kv_block *block = &pool->blocks[i];
		CHECK(block->state < KV_STATE_COUNT);
		counts[block->state]++;
		CHECK((block->refs > 0) == (block->state == KV_USED));
		if (block->committed)
			CHECK(block->state == KV_USED || block->state == KV_CACHED);
		if (block->state == KV_CACHED)
			CHECK(block->committed);
	}
	for (uint32_t i = pool->free_head; i != KV_BLOCK_NONE; i = pool->blocks[i].next_free) {
		CHECK(pool->blocks[i].state == KV_FREE);
		CHECK(free_count < pool->block_count);
		free_count++;
	}
	CHECK(free_count == counts[KV_FREE]);
	for (uint32_t s = 0; s < KV_STATE_COUNT; s++) {
		CHECK(counts[s] == pool->counts[s]);
		total += counts[s];
	}
	CHECK(total == pool->block_count);
}
