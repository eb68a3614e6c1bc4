#include "engine/test_support.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"

bool rig_open(struct rig *rig, const char *path, const struct rig_options *options)
{
	char error[256] = "";
	memset(rig, 0, sizeof *rig);
	if (model_open(path, 0, &rig->model, error, sizeof error) != 0)
		fail_msg("%s: %s", path, error);
	rig->config = model_config(rig->model);
	model_kv_shape(rig->model, options->block_tokens, &rig->shape);
	rig->block_count = options->block_count;
	rig->arena_bytes = kv_shape_block_bytes(&rig->shape) * options->block_count;
	rig->arena = aligned_alloc(4096, rig->arena_bytes);
	assert_non_null(rig->arena);
	memset(rig->arena, 0xff, rig->arena_bytes); /* f16 NaN: what is read unwritten shows */
	struct engine_config config = {
		.kind = options->kind,
		.model = rig->model,
		.shape = rig->shape,
		.kv_base = rig->arena,
		.block_count = options->block_count,
		.thread_count = options->threads,
		.batch_tokens_max = options->batch_tokens,
		.batch_seqs_max = MIN(options->batch_tokens, 64u),
		.isa = options->isa,
		.sim = { .speed = 1 },
	};
	int result = engine_open(&config, &rig->engine, error, sizeof error);
	if (result == -ENOTSUP && options->isa != ENGINE_ISA_AUTO) {
		rig_close(rig);
		return false;
	}
	if (result != 0)
		fail_msg("%s: %s", path, error);
	return true;
}

void rig_close(struct rig *rig)
{
	engine_close(rig->engine);
	model_close(rig->model);
	free(rig->arena);
	memset(rig, 0, sizeof *rig);
}

kv_block_id *rig_blocks(struct rig *rig, uint32_t tokens)
{
	uint32_t count = kv_blocks_for(tokens, rig->shape.block_tokens);
	kv_block_id *blocks = malloc(count * sizeof *blocks);
	assert_non_null(blocks);
	assert_true(rig->blocks_used + count <= rig->block_count);
	for (uint32_t i = 0; i < count; i++)
		blocks[i].v = rig->blocks_used + (i ^ 1u) % count;
	if (count % 2) /* i ^ 1 stays a permutation only for even counts */
		for (uint32_t i = 0; i < count; i++)
			blocks[i].v = rig->blocks_used + count - 1 - i;
	rig->blocks_used += count;
	return blocks;
}

void rig_feed(struct rig *rig, const kv_block_id *blocks, uint32_t position, const uint32_t *ids,
	      uint32_t count, uint32_t chunk, float *logits)
{
	for (uint32_t at = 0; at < count; at += chunk) {
		struct engine_rows rows = {
			.blocks = blocks,
			.position = position + at,
			.tokens = ids + at,
			.token_count = MIN(chunk, count - at),
			.ret_logits = logits ? logits + (size_t)at * rig->config->vocab_count : NULL,
		};
		struct engine_batch batch = {
			.rows = &rows, .rows_count = 1, .layer_end = rig->config->layer_count
		};
		assert_int_equal(engine_run(rig->engine, &batch), 0);
	}
}

uint32_t *json_ids(const json_t *array, uint32_t *ret_count)
{
	size_t count = json_array_size(array);
	uint32_t *ids = malloc((count + 1) * sizeof *ids);
	assert_non_null(ids);
	for (size_t i = 0; i < count; i++)
		ids[i] = (uint32_t)json_integer_value(json_array_get(array, i));
	*ret_count = (uint32_t)count;
	return ids;
}

const char *golden_path(const char *name)
{
	static char path[1024];
	snprintf(path, sizeof path, "%s/%s", GOLDEN_DIR, name);
	return path;
}

void golden_lines(const char *name, void (*each)(const json_t *line, void *context), void *context)
{
	FILE *file = fopen(golden_path(name), "r");
	if (!file)
		fail_msg("cannot open %s", golden_path(name));
	char *line = NULL;
	size_t capacity = 0;
	while (getline(&line, &capacity, file) > 0) {
		json_error_t error;
		json_t *object = json_loads(line, JSON_ALLOW_NUL, &error);
		if (!object)
			fail_msg("%s: %s", name, error.text);
		each(object, context);
		json_decref(object);
	}
	free(line);
	fclose(file);
}

const char *demo_model_path(void)
{
	static char path[1024];
	const char *given = getenv("BATON_MODEL"), *home = getenv("HOME");
	if (given && *given)
		snprintf(path, sizeof path, "%s", given);
	else
		snprintf(path, sizeof path, "%s/.cache/baton/SmolLM2-135M-Instruct.Q4_1.gguf",
			 home ? home : "");
	return access(path, R_OK) == 0 ? path : NULL;
}
