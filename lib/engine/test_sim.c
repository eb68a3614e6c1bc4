/* The sim engine: same tokens however a sequence is cut or moved, other tokens when its KV was
 * touched, and the modelled time taken, layer by layer. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "engine/test_support.h"

static const struct rig_options options = { .kind = ENGINE_SIM, .block_tokens = 32, .block_count = 32,
					    .batch_tokens = 256 };
static struct rig rig;
static uint32_t ids[150];

static int setup(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < ARRAY_COUNT(ids); i++)
		ids[i] = i * 37 % 300;
	return rig_open(&rig, golden_path("tiny/tiny-llama-f32.gguf"), &options) ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	rig_close(&rig);
	return 0;
}

/* Feeds all but the last id in chunks and samples from the last. */
static uint32_t token_after(const kv_block_id *blocks, uint32_t count, uint32_t chunk, float temperature)
{
	struct sample_params params = { .temperature = temperature, .top_p = 1, .seed = 9 };
	struct sample_request request = { .params = &params };
	struct sample_result result;
	if (count > 1 && chunk)
		rig_feed(&rig, blocks, 0, ids, count - 1, chunk, NULL);
	struct engine_rows rows = { .blocks = blocks, .position = count - 1, .tokens = ids + count - 1,
				    .token_count = 1, .samples = &request, .ret_samples = &result,
				    .sample_count = 1 };
	struct engine_batch batch = { .rows = &rows, .rows_count = 1, .layer_end = rig.config->layer_count };
	assert_int_equal(engine_run(rig.engine, &batch), 0);
	assert_true(result.token < rig.config->vocab_count);
	return result.token;
}

static void test_chunks_and_moves(void **state)
{
	(void)state;
	assert_string_equal(engine_numerics(rig.engine), "sim");
	kv_block_id *a = rig_blocks(&rig, 150), *b = rig_blocks(&rig, 150), *c = rig_blocks(&rig, 150);
	uint32_t token = token_after(a, 150, 64, 0), warm = token_after(a, 150, 64, 1);
	assert_int_equal(token_after(b, 150, 1, 0), token);
	assert_int_equal(token_after(b, 150, 7, 1), warm);
	uint64_t bytes = kv_shape_block_bytes(&rig.shape);
	for (uint32_t i = 0; i < kv_blocks_for(149, 32); i++) /* as a transfer would */
		memcpy((uint8_t *)rig.arena + c[i].v * bytes, (uint8_t *)rig.arena + a[i].v * bytes, bytes);
	assert_int_equal(token_after(c, 150, 0, 0), token);
	free(a);
	free(b);
	free(c);
	rig.blocks_used = 0;
}

static void test_damage_shows(void **state)
{
	uint32_t wrong = 0;
	kv_block_id *a = rig_blocks(&rig, 150), swap;
	(void)state;
	uint32_t token = token_after(a, 150, 64, 0);
	swap = a[0]; /* two blocks exchanged */
	a[0] = a[1];
	a[1] = swap;
	assert_int_not_equal(token_after(a, 150, 0, 0), token);
	a[1] = a[0];
	a[0] = swap;
	assert_int_equal(token_after(a, 150, 0, 0), token);
	/* A slice lost. One whole record flipped is seen at any position. */
	uint8_t *block = (uint8_t *)rig.arena + a[2].v * kv_shape_block_bytes(&rig.shape);
	memset(block + kv_shape_slice_offset(&rig.shape, 1), 0, kv_shape_slice_bytes(&rig.shape, 1));
	assert_int_not_equal(token_after(a, 150, 0, 0), token);
	/* One byte flipped: steps look at one word of each record, so it shows within some steps. */
	rig_feed(&rig, a, 0, ids, 149, 64, NULL);
	uint32_t clean[50], count = 0;
	for (uint32_t n = 100; n < 150; n++)
		clean[count++] = token_after(a, n, 0, 0);
	block[5] ^= 1;
	for (uint32_t n = 100; n < 150; n++)
		wrong += token_after(a, n, 0, 0) != clean[n - 100];
	assert_true(wrong > 0);
	free(a);
	rig.blocks_used = 0;
}

static void test_bans(void **state)
{
	kv_block_id *a = rig_blocks(&rig, 150);
	struct sample_params params = { .top_p = 1 };
	struct sample_result result;
	(void)state;
	uint32_t token = token_after(a, 20, 64, 0);
	struct sample_request request = { .params = &params, .bans = &token, .ban_count = 1 };
	struct engine_rows rows = { .blocks = a, .position = 19, .tokens = ids + 19, .token_count = 1,
				    .samples = &request, .ret_samples = &result, .sample_count = 1 };
	struct engine_batch batch = { .rows = &rows, .rows_count = 1, .layer_end = rig.config->layer_count };
	assert_int_equal(engine_run(rig.engine, &batch), 0);
	assert_int_not_equal(result.token, token);
	free(a);
	rig.blocks_used = 0;
}

struct layer_times {
	uint64_t start, at[8];
	uint32_t count;
};

static void note_layer(void *context, uint32_t layer)
{
	struct layer_times *times = context;
	assert_int_equal(layer, times->count);
	times->at[times->count++] = clock_now_ns() - times->start;
}

static void test_time(void **state)
{
	char error[128];
	struct engine *engine;
	struct layer_times times = { .start = clock_now_ns() };
	kv_block_id *a = rig_blocks(&rig, 100);
	struct engine_config config = {
		.kind = ENGINE_SIM, .model = rig.model, .shape = rig.shape, .kv_base = rig.arena,
		.block_count = rig.block_count, .batch_tokens_max = 256, .batch_seqs_max = 8,
		.sim = { .prefill_token_s = 1e-3, .prefill_square_s = 1e-5, .speed = 2 },
	};
	(void)state;
	assert_int_equal(engine_open(&config, &engine, error, sizeof error), 0);
	struct engine_rows rows = { .blocks = a, .tokens = ids, .token_count = 100 };
	struct engine_batch batch = { .rows = &rows, .rows_count = 1, .layer_end = rig.config->layer_count,
				      .on_layer = note_layer, .context = &times };
	times.start = clock_now_ns();
	assert_int_equal(engine_run(engine, &batch), 0);
	assert_int_equal(times.count, rig.config->layer_count);
	/* 100 * 1 ms + 100^2 * 10 us = 200 ms at twice the speed, over two layers. */
	assert_true(times.at[0] >= 50 * NS_PER_MS && times.at[1] >= 100 * NS_PER_MS);
	assert_true(times.at[0] < times.at[1]);
	engine_close(engine);
	config.sim.speed = 0;
	assert_true(engine_open(&config, &engine, error, sizeof error) < 0);
	free(a);
	rig.blocks_used = 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_chunks_and_moves),
		cmocka_unit_test(test_damage_shows),
		cmocka_unit_test(test_bans),
		cmocka_unit_test(test_time),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
