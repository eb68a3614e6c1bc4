#include "engine/engine.h"

#include <errno.h>
#include <stdio.h>

#include "base/check.h"
#include "engine/engine_impl.h"

#define BATCH_TOKENS_MAX (1u << 16)
#define THREADS_MAX 256u

static const char *config_objection(const struct engine_config *config)
{
	if (!config->model)
		return "the engine needs a model";
	if (kv_shape_check(&config->shape) < 0)
		return "the KV shape is outside what this build can hold";
	if (!config->kv_base || !config->block_count)
		return "the engine needs an arena of KV blocks";
	if (!config->batch_tokens_max || config->batch_tokens_max > BATCH_TOKENS_MAX)
		return "batch_tokens_max must lie in 1..65536";
	if (!config->batch_seqs_max || config->batch_seqs_max > config->batch_tokens_max)
		return "batch_seqs_max must lie in 1..batch_tokens_max";
	if (config->thread_count > THREADS_MAX)
		return "thread_count must lie in 0..256";
	return NULL;
}

int engine_open(const struct engine_config *config, struct engine **ret_engine, char *ret_error,
		size_t error_bytes)
{
	const char *objection = config_objection(config);
	if (objection) {
		snprintf(ret_error, error_bytes, "%s", objection);
		return -EINVAL;
	}
	switch (config->kind) {
	case ENGINE_CPU:
		return engine_cpu_open(config, ret_engine, ret_error, error_bytes);
	case ENGINE_SIM:
		return engine_sim_open(config, ret_engine, ret_error, error_bytes);
	default:
		snprintf(ret_error, error_bytes, "this build has no cuda engine");
		return -ENOTSUP;
	}
}

void engine_close(struct engine *engine)
{
	if (engine)
		engine->ops->close(engine);
}

/* A batch outside these bounds would read or write beyond the arena: the caller's mistake. */
static void check_batch(const struct engine *engine, const struct engine_batch *batch)
{
	const struct engine_config *config = &engine->config;
	uint32_t tokens = 0, vocab = model_config(config->model)->vocab_count;
	CHECK(batch->rows_count <= config->batch_seqs_max);
	CHECK(batch->layer_first <= batch->layer_end);
	CHECK(batch->layer_end <= model_config(config->model)->layer_count);
	for (uint32_t e = 0; e < batch->rows_count; e++) {
		const struct engine_rows *rows = &batch->rows[e];
		uint32_t end = rows->position + rows->token_count;
		CHECK(rows->token_count <= config->batch_tokens_max - tokens);
		CHECK(end >= rows->position);
		tokens += rows->token_count;
		for (uint32_t t = 0; t < rows->token_count; t++)
			CHECK(rows->tokens[t] < vocab);
		for (uint32_t b = 0; b < kv_blocks_for(end, config->shape.block_tokens); b++)
			CHECK(rows->blocks[b].v < config->block_count);
	}
}

int engine_run(struct engine *engine, const struct engine_batch *batch)
{
	check_batch(engine, batch);
	return engine->ops->run(engine, batch);
}

const char *engine_numerics(const struct engine *engine)
{
	return engine->ops->numerics;
}

const char *engine_describe(const struct engine *engine)
{
	return engine->description;
}
