/* An engine whose KV is a chain of hashes: each token depends on all KV before it. */
#include "tests/cores/world_private.h"

static uint64_t kv_value(uint64_t before, uint32_t token, uint32_t position, uint32_t layer)
{
	return world__mix(world__mix(before, token), (uint64_t)layer << 32 | position);
}

static uint32_t pick(uint64_t state, uint64_t seed, uint32_t choice, uint32_t position,
		     const uint32_t bans[], uint32_t ban_count)
{
	uint32_t token =
		(uint32_t)(world__mix(world__mix(state, seed), (uint64_t)choice << 32 | position) %
			   WORLD_VOCAB);
	for (uint32_t i = 0; i < ban_count; i++) {
		if (bans[i] != token)
			continue;
		token = (token + 1) % WORLD_VOCAB;
		i = UINT32_MAX; /* look at all again */
	}
	return token;
}

uint32_t world_token(const uint32_t tokens[], uint32_t count, uint64_t seed, uint32_t choice,
		     uint32_t position, const uint32_t bans[], uint32_t ban_count)
{
	uint64_t before[WORLD_LAYERS] = { 0 }, state = 0;
	for (uint32_t i = 0; i < count; i++) {
		for (uint32_t l = 0; l < WORLD_LAYERS; l++) {
			before[l] = kv_value(before[l], tokens[i], i, l);
			state = world__mix(state, before[l]);
		}
	}
	return pick(state, seed, choice, position, bans, ban_count);
}

static uint64_t *kv_at(struct world_node *n, const kv_block_id blocks[], uint32_t position,
		       uint32_t layer)
{
	kv_block_id block = blocks[position / WORLD_BLOCK_TOKENS];
	CHECK(kv_pool_block(&n->kv.pool, block)->state == KV_USED);
	return &n->memory[block.v].kv[layer][position % WORLD_BLOCK_TOKENS];
}

void world__engine_row(struct world_node *n, const struct node_rows *row, uint32_t sampled[])
{
	uint32_t end = row->position + row->token_count;
	uint64_t state = 0;

	for (uint32_t i = row->position; i < end; i++) {
		/* A block that others see too is never written. */
		kv_block_id block = row->blocks[i / WORLD_BLOCK_TOKENS];
		CHECK(kv_pool_block(&n->kv.pool, block)->refs == 1);
		CHECK(!kv_pool_block(&n->kv.pool, block)->committed);
		for (uint32_t l = 0; l < WORLD_LAYERS; l++) {
			uint64_t before = i ? *kv_at(n, row->blocks, i - 1, l) : 0;
			*kv_at(n, row->blocks, i,
			       l) = kv_value(before, row->tokens[i - row->position], i, l);
		}
	}
	if (!row->sample_count)
		return;
	for (uint32_t i = 0; i < end; i++) {
		for (uint32_t l = 0; l < WORLD_LAYERS; l++)
			state = world__mix(state, *kv_at(n, row->blocks, i, l));
	}
	for (uint32_t i = row->sample_first; i < row->sample_first + row->sample_count; i++) {
		const struct node_sample *sample = &n->batch.samples[i];
		sampled[i] = pick(state, row->sampling->seed, sample->choice, sample->position,
				  sample->bans, sample->ban_count);
	}
}
