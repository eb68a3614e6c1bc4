/* What the engine's tests share: an engine on a model with its arena, and sequences run in chunks. */
#ifndef BATON_ENGINE_TEST_SUPPORT_H
#define BATON_ENGINE_TEST_SUPPORT_H

#include <jansson.h>

#include "engine/engine.h"

/* Order matters to cmocka. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

struct rig {
	struct model *model;
	const struct model_config *config;
	struct engine *engine;
	struct kv_shape shape;
	void *arena;
	size_t arena_bytes;
	uint32_t block_count;
	uint32_t blocks_used;
};

struct rig_options {
	enum engine_kind kind;
	enum engine_isa isa;
	uint32_t threads, block_tokens, block_count, batch_tokens;
};

/* False when the machine lacks the path. Everything else that fails fails the test. */
bool rig_open(struct rig *rig, const char *path, const struct rig_options *options);
void rig_close(struct rig *rig);
/* Fresh blocks for @tokens tokens, in an order that is not the arena's. */
kv_block_id *rig_blocks(struct rig *rig, uint32_t tokens);
/* Feeds @ids in chunks; @logits [count][vocab] or NULL. */
void rig_feed(struct rig *rig, const kv_block_id *blocks, uint32_t position, const uint32_t *ids,
	      uint32_t count, uint32_t chunk, float *logits);

uint32_t *json_ids(const json_t *array, uint32_t *ret_count);
/* Calls @each for every line of a file of JSON objects under tests/golden. */
void golden_lines(const char *name, void (*each)(const json_t *line, void *context), void *context);
/* tests/golden/NAME; static storage. */
const char *golden_path(const char *name);
/* The demo model's path, or NULL. */
const char *demo_model_path(void);

#endif
