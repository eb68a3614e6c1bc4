/*
 * What a batch does to a node's memory. A cell of a layer's block holds a hash of all tokens up
 * to its own, chained through the memory itself: a token that was computed on damaged, missing or
 * another request's KV has the wrong hash, and so has every token that is sampled after it.
 */
#include "sim/private.h"

#include "sim/engine.h"

uint32_t sim_token(const uint64_t cells[SIM_LAYERS], uint64_t seed, uint32_t choice,
		   uint32_t position, bool may_end)
{
	uint64_t draw = sim_mix(seed, (uint64_t)choice << 32 | position);

	for (uint32_t layer = 0; layer < SIM_LAYERS; layer++)
		draw = sim_mix(draw, cells[layer]);
	if (may_end && draw % 31 == 0)
		return 0;
	return 1 + (uint32_t)(draw / 31 % (SIM_VOCAB - 1));
}

static uint64_t *cell_at(struct sim_node *node, const kv_block_id blocks[], uint32_t position,
			 uint32_t layer)
{
	uint32_t block = blocks[position / SIM_BLOCK_TOKENS].v;

	return &node->memory[block * SIM_LAYERS + layer].cells[position % SIM_BLOCK_TOKENS];
}

void sim_engine_copies(struct sim_node *node)
{
	for (uint32_t i = 0; i < node->batch.copy_count; i++) {
		const struct kv_copy *copy = &node->batch.copies[i];
		memcpy(&node->memory[copy->target.v * SIM_LAYERS],
		       &node->memory[copy->source.v * SIM_LAYERS],
		       SIM_LAYERS * sizeof *node->memory);
	}
}

/* V4: what a row writes is its sequence's alone and not yet known to others. */
static void writer_check(struct sim_node *node, const struct node_rows *row)
{
	uint32_t last = (row->position + row->token_count - 1) / SIM_BLOCK_TOKENS;

	for (uint32_t i = row->position / SIM_BLOCK_TOKENS; i <= last; i++) {
		const struct kv_block *block = kv_pool_block(&node->kv.pool, row->blocks[i]);
		if (block->state != KV_USED || block->refs != 1 || block->committed)
			sim_fail(node->sim, "%s: a batch writes block %u, which has %u references%s",
				 node->name, row->blocks[i].v, block->refs,
				 block->committed ? " and is committed" : "");
	}
}

void sim_engine_layer(struct sim_node *node, uint32_t layer)
{
	for (uint32_t r = 0; r < node->batch.row_count; r++) {
		const struct node_rows *row = &node->batch.rows[r];
		writer_check(node, row);
		for (uint32_t i = 0; i < row->token_count; i++) {
			uint32_t position = row->position + i;
			uint64_t past =
				position ? *cell_at(node, row->blocks, position - 1, layer) : 0;
			*cell_at(node, row->blocks, position, layer) =
				sim_cell(past, row->tokens[i], layer);
		}
	}
}

void sim_engine_sample(struct sim_node *node)
{
	for (uint32_t r = 0; r < node->batch.row_count; r++) {
		const struct node_rows *row = &node->batch.rows[r];
		uint64_t cells[SIM_LAYERS];
		if (!row->sample_count)
			continue;
		for (uint32_t layer = 0; layer < SIM_LAYERS; layer++)
			cells[layer] = *cell_at(node, row->blocks,
						row->position + row->token_count - 1, layer);
		for (uint32_t i = row->sample_first; i < row->sample_first + row->sample_count; i++) {
			const struct node_sample *sample = &node->batch.samples[i];
			bool may_end = !sample->ban_count && !row->sampling->ignore_eos;
			node->results[i] = (struct sample_result){
				.token = sim_token(cells, row->sampling->seed, sample->choice,
						   sample->position, may_end),
			};
			node->sampled[i] = node->results[i].token;
		}
	}
}
