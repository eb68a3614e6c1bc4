/*
 * The tiny models against the fp32 reference, then the engine against itself: the same bits for
 * every instruction set of this machine, thread count, chunk length, block length and company in
 * the batch.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/test_support.h"

#define CHUNK_ALL 4096u

static void log_softmax(const double *logits, uint32_t count, double *ret)
{
	double max = logits[0], sum = 0;
	for (uint32_t i = 1; i < count; i++)
		max = fmax(max, logits[i]);
	for (uint32_t i = 0; i < count; i++)
		sum += exp(logits[i] - max);
	for (uint32_t i = 0; i < count; i++)
		ret[i] = logits[i] - max - log(sum);
}

struct score {
	double kl_sum, kl_max, dlogit_max;
	uint32_t positions, compared, agreed;
};

static void score_sequence(const json_t *sequence, const float *logits, uint32_t vocab,
			   struct score *score)
{
	double *theirs = malloc(4 * vocab * sizeof(double)), *ours = theirs + vocab;
	double *p = ours + vocab, *q = p + vocab;
	const json_t *positions = json_object_get(sequence, "positions");
	const json_t *argmax = json_object_get(sequence, "argmax"), *gap = json_object_get(sequence, "gap");
	for (size_t i = 0; i < json_array_size(positions); i++) {
		size_t at = (size_t)json_integer_value(json_array_get(positions, i));
		const json_t *row = json_array_get(json_object_get(sequence, "logits"), i);
		double kl = 0;
		for (uint32_t v = 0; v < vocab; v++) {
			theirs[v] = json_number_value(json_array_get(row, v));
			ours[v] = (double)logits[at * vocab + v];
			score->dlogit_max = fmax(score->dlogit_max, fabs(theirs[v] - ours[v]));
		}
		log_softmax(theirs, vocab, p);
		log_softmax(ours, vocab, q);
		for (uint32_t v = 0; v < vocab; v++)
			kl += exp(p[v]) * (p[v] - q[v]);
		score->kl_sum += kl;
		score->kl_max = fmax(score->kl_max, kl);
		score->positions++;
	}
	for (size_t at = 0; at < json_array_size(argmax); at++) {
		uint32_t best = 0;
		if (json_number_value(json_array_get(gap, at)) < 0.1)
			continue;
		for (uint32_t v = 1; v < vocab; v++)
			if (logits[at * vocab + v] > logits[at * vocab + best])
				best = v;
		score->compared++;
		score->agreed += best == (uint32_t)json_integer_value(json_array_get(argmax, at));
	}
	free(theirs);
}

struct totals {
	double kl, peer_kl; /* means of the quantised models, added up */
};

static void check_score(const json_t *line, const struct score *score, struct totals *totals)
{
	const json_t *peer = json_object_get(line, "llamacpp");
	const char *type = json_string_value(json_object_get(line, "q"));
	const char *name = json_string_value(json_object_get(line, "name"));
	bool floats = !strcmp(type, "F32") || !strcmp(type, "F16") || !strcmp(type, "BF16");
	double kl = score->kl_sum / score->positions;
	double peer_kl = json_number_value(json_object_get(peer, "mean_kl"));
	double agreement = (double)score->agreed / score->compared;
	print_message("%-18s mean KL %.2g (llama.cpp %.2g), max %.2g, |dlogit| %.2g, top-1 %.4f\n", name, kl,
		      peer_kl, score->kl_max, score->dlogit_max, agreement);
	/* Float weights leave the rounding of K and V to f16; quantised ones that of 8-bit activations,
	 * where llama.cpp's own distance from the reference is the yardstick. */
	if (floats) {
		assert_true(kl < 1e-5);
		assert_true(score->agreed == score->compared);
	} else {
		assert_true(kl <= 2 * peer_kl); /* few positions scatter; the sum below is tighter */
		totals->kl += kl;
		totals->peer_kl += peer_kl;
		assert_true(score->kl_max < 0.2);
		assert_true(agreement >= 0.97);
	}
}

static const struct rig_options plain_options = {
	.isa = ENGINE_ISA_AUTO, .threads = 1, .block_tokens = 64, .block_count = 16, .batch_tokens = 256
};

static void golden_model(const json_t *line, void *context)
{
	char name[128];
	struct rig rig;
	struct score score = { 0 };
	const json_t *sequences = json_object_get(line, "sequences");
	snprintf(name, sizeof name, "tiny/%s", json_string_value(json_object_get(line, "file")));
	assert_true(rig_open(&rig, golden_path(name), &plain_options));
	for (size_t i = 0; i < json_array_size(sequences); i++) {
		const json_t *sequence = json_array_get(sequences, i);
		uint32_t count;
		uint32_t *ids = json_ids(json_object_get(sequence, "ids"), &count);
		float *logits = malloc((size_t)count * rig.config->vocab_count * sizeof *logits);
		kv_block_id *blocks = rig_blocks(&rig, count);
		rig_feed(&rig, blocks, 0, ids, count, CHUNK_ALL, logits);
		score_sequence(sequence, logits, rig.config->vocab_count, &score);
		free(blocks);
		free(logits);
		free(ids);
	}
	check_score(line, &score, context);
	rig_close(&rig);
}

static void test_golden(void **state)
{
	struct totals totals = { 0 };
	(void)state;
	golden_lines("tiny/models.jsonl", golden_model, &totals);
	print_message("quantised models: %.3f of llama.cpp's distance\n", totals.kl / totals.peer_kl);
	assert_true(totals.kl <= 1.3 * totals.peer_kl);
}

/* Greedy tokens of the reference, step by step, up to the first near tie (float weights only). */
static void greedy_model(const json_t *line, void *context)
{
	const char *type = json_string_value(json_object_get(line, "q"));
	const json_t *greedy = json_object_get(line, "greedy");
	const json_t *gaps = json_object_get(greedy, "gap");
	const struct sample_params params = { .top_p = 1 };
	const struct sample_request request = { .params = &params };
	uint32_t prompt_count, count, *steps = context;
	char name[128];
	struct rig rig;
	if (type[0] == 'Q')
		return;
	snprintf(name, sizeof name, "tiny/%s", json_string_value(json_object_get(line, "file")));
	assert_true(rig_open(&rig, golden_path(name), &plain_options));
	uint32_t *prompt = json_ids(json_object_get(greedy, "prompt_ids"), &prompt_count);
	uint32_t *ids = json_ids(json_object_get(greedy, "ids"), &count);
	kv_block_id *blocks = rig_blocks(&rig, prompt_count + count);
	uint32_t token = prompt[prompt_count - 1];
	if (prompt_count > 1)
		rig_feed(&rig, blocks, 0, prompt, prompt_count - 1, CHUNK_ALL, NULL);
	for (uint32_t i = 0; i < count; i++) {
		if (json_number_value(json_array_get(gaps, i)) < 0.02)
			break;
		struct sample_result result;
		struct engine_rows rows = { .blocks = blocks, .position = prompt_count - 1 + i,
					    .tokens = &token, .token_count = 1, .samples = &request,
					    .ret_samples = &result, .sample_count = 1 };
		struct engine_batch batch = { .rows = &rows, .rows_count = 1,
					      .layer_end = rig.config->layer_count };
		assert_int_equal(engine_run(rig.engine, &batch), 0);
		assert_int_equal(result.token, ids[i]);
		token = result.token;
		++*steps;
	}
	free(blocks);
	free(prompt);
	free(ids);
	rig_close(&rig);
}

static void test_greedy(void **state)
{
	uint32_t steps = 0;
	(void)state;
	golden_lines("tiny/models.jsonl", greedy_model, &steps);
	print_message("%u greedy steps\n", steps);
	assert_true(steps > 100);
}

struct variant {
	enum engine_isa isa;
	uint32_t threads, chunk, block_tokens;
	bool company;
};

/* Logits of @ids under @variant, or NULL where the machine lacks the path. */
static float *variant_logits(const char *path, const struct variant *variant, const uint32_t *ids,
			     uint32_t count)
{
	struct rig rig;
	const struct rig_options options = { .isa = variant->isa, .threads = variant->threads,
					     .block_tokens = variant->block_tokens,
					     .block_count = 64 * 64 / variant->block_tokens,
					     .batch_tokens = 700 };
	if (!rig_open(&rig, path, &options))
		return NULL;
	uint32_t vocab = rig.config->vocab_count;
	float *logits = malloc((size_t)count * vocab * sizeof *logits);
	kv_block_id *blocks = rig_blocks(&rig, count), *other_blocks = rig_blocks(&rig, count);
	if (!variant->company) {
		rig_feed(&rig, blocks, 0, ids, count, variant->chunk, logits);
	} else { /* a second sequence runs along, in other chunks, sometimes before, sometimes after */
		uint32_t mine = 0, other = 0, round = 0;
		while (mine < count) {
			struct engine_rows rows[3];
			uint32_t step = MIN(variant->chunk, count - mine), used = 0;
			uint32_t more = MIN(1 + round * 5 % 11, count - other);
			struct engine_rows stranger = { .blocks = other_blocks, .position = other,
							.tokens = ids + (count - other - more),
							.token_count = more };
			if (more && round % 2)
				rows[used++] = stranger;
			rows[used++] = (struct engine_rows){ .blocks = blocks, .position = mine,
							     .tokens = ids + mine, .token_count = step,
							     .ret_logits = logits + (size_t)mine * vocab };
			if (more && round % 2 == 0)
				rows[used++] = stranger;
			struct engine_batch batch = { .rows = rows, .rows_count = used,
						      .layer_end = rig.config->layer_count };
			assert_int_equal(engine_run(rig.engine, &batch), 0);
			mine += step;
			other += more;
			round++;
		}
	}
	free(blocks);
	free(other_blocks);
	rig_close(&rig);
	return logits;
}

static const struct variant variants[] = {
	{ ENGINE_ISA_AUTO, 1, CHUNK_ALL, 64, false }, /* what the others are compared with */
	{ ENGINE_ISA_PLAIN, 1, CHUNK_ALL, 64, false }, { ENGINE_ISA_PLAIN, 2, 7, 16, false },
	{ ENGINE_ISA_AVX2, 1, CHUNK_ALL, 64, false },  { ENGINE_ISA_AVX2, 3, 7, 48, true },
	{ ENGINE_ISA_AVX2, 2, 1, 64, false },	       { ENGINE_ISA_AVX512, 2, 64, 64, false },
	{ ENGINE_ISA_AVX512, 1, 1, 16, true },	       { ENGINE_ISA_VNNI, 1, 1, 64, false },
	{ ENGINE_ISA_VNNI, 2, 7, 16, false },	       { ENGINE_ISA_VNNI, 3, 64, 256, true },
	{ ENGINE_ISA_VNNI, 2, CHUNK_ALL, 32, true },   { ENGINE_ISA_VNNI, 3, 1, 80, true },
};

static uint32_t run_variants(const char *path, const uint32_t *ids, uint32_t count, uint32_t vocab)
{
	uint32_t compared = 0;
	float *expected = variant_logits(path, &variants[0], ids, count);
	for (size_t v = 1; v < ARRAY_COUNT(variants); v++) {
		float *logits = variant_logits(path, &variants[v], ids, count);
		if (!logits)
			continue;
		for (uint32_t at = 0; at < count; at++)
			if (memcmp(logits + (size_t)at * vocab, expected + (size_t)at * vocab,
				   vocab * sizeof *logits))
				fail_msg("%s, variant %zu: other bits from position %u on", path, v, at);
		free(logits);
		compared++;
	}
	free(expected);
	return compared;
}

static void exact_model(const json_t *line, void *context)
{
	char name[128];
	uint32_t vocab = (uint32_t)json_integer_value(json_object_get(line, "vocab"));
	uint32_t ids[330], count = ARRAY_COUNT(ids), *total = context; /* two splits of attention */
	uint64_t state = 7;
	snprintf(name, sizeof name, "tiny/%s", json_string_value(json_object_get(line, "file")));
	for (uint32_t i = 0; i < count; i++)
		ids[i] = (uint32_t)((state = state * 6364136223846793005u + 1442695040888963407u) >> 33) % vocab;
	*total += run_variants(golden_path(name), ids, count, vocab);
}

static void test_exact(void **state)
{
	uint32_t compared = 0;
	(void)state;
	golden_lines("tiny/models.jsonl", exact_model, &compared);
	print_message("%u variants compared bit by bit\n", compared);
	assert_true(compared >= 2 * 22); /* plain C at the least */
}

/* K and V of a token where kv/shape.h says, in any block length; the rest of a block zero. */
static void check_arena(struct rig *a, const kv_block_id *a_blocks, struct rig *b,
			const kv_block_id *b_blocks, uint32_t count)
{
	uint32_t dim = a->config->head_dim, heads = a->config->kv_head_count;
	for (uint32_t layer = 0; layer < a->config->layer_count; layer++) {
		for (uint32_t t = 0; t < a->shape.block_tokens; t++) {
			struct rig *rigs[2] = { a, b };
			const kv_block_id *blocks[2] = { a_blocks, b_blocks };
			const uint16_t *slice[2];
			uint32_t inside[2];
			for (int r = 0; r < 2; r++) {
				uint32_t length = rigs[r]->shape.block_tokens;
				inside[r] = t % length;
				if (t / length >= kv_blocks_for(count, length)) {
					slice[r] = NULL;
					continue;
				}
				slice[r] = (const uint16_t *)((uint8_t *)rigs[r]->arena +
							      blocks[r][t / length].v *
								      kv_shape_block_bytes(&rigs[r]->shape) +
							      kv_shape_slice_offset(&rigs[r]->shape, layer));
			}
			for (uint32_t i = 0; i < heads * dim; i++) {
				uint16_t k[2] = { 0 }, v[2] = { 0 };
				uint32_t head = i / dim, d = i % dim;
				for (int r = 0; r < 2; r++) {
					if (!slice[r])
						continue;
					uint32_t length = rigs[r]->shape.block_tokens, x = inside[r];
					const uint16_t *base = slice[r] + (size_t)head * 2 * length * dim;
					k[r] = base[(x / 16 * dim + d) * 16 + x % 16];
					v[r] = base[(length + x) * dim + d];
				}
				assert_int_equal(k[0], k[1]);
				assert_int_equal(v[0], v[1]);
				if (t >= count)
					assert_true(k[0] == 0 && v[0] == 0);
			}
		}
	}
}

static void test_arena(void **state)
{
	struct rig a, b;
	uint32_t ids[21];
	const struct rig_options long_blocks = { .threads = 2, .block_tokens = 64, .block_count = 4,
						 .batch_tokens = 64 };
	const struct rig_options short_blocks = { .threads = 1, .block_tokens = 16, .block_count = 4,
						  .batch_tokens = 64 };
	(void)state;
	for (uint32_t i = 0; i < ARRAY_COUNT(ids); i++)
		ids[i] = i * 13;
	assert_true(rig_open(&a, golden_path("tiny/tiny-llama-f16-tied.gguf"), &long_blocks));
	assert_true(rig_open(&b, golden_path("tiny/tiny-llama-f16-tied.gguf"), &short_blocks));
	kv_block_id *a_blocks = rig_blocks(&a, 21), *b_blocks = rig_blocks(&b, 21);
	rig_feed(&a, a_blocks, 0, ids, 21, CHUNK_ALL, NULL);
	rig_feed(&b, b_blocks, 0, ids, 21, 5, NULL);
	check_arena(&a, a_blocks, &b, b_blocks, 21);
	/* The padding of a slice is zero too. */
	uint32_t used = 64 * 2 * a.config->kv_head_count * a.config->head_dim * 2;
	uint8_t *block = (uint8_t *)a.arena + a_blocks[0].v * kv_shape_block_bytes(&a.shape);
	for (uint32_t i = used; i < kv_shape_slice_bytes(&a.shape, 0); i++)
		assert_int_equal(block[i], 0);
	free(a_blocks);
	free(b_blocks);
	rig_close(&a);
	rig_close(&b);
}

static void count_layer(void *context, uint32_t layer)
{
	uint32_t *next = context;
	assert_int_equal(layer, *next);
	++*next;
}

/* Layers one call at a time are the whole model, and each is announced once, in order. */
static void test_layer_ranges(void **state)
{
	struct rig rig;
	uint32_t ids[30], next = 0;
	(void)state;
	for (uint32_t i = 0; i < ARRAY_COUNT(ids); i++)
		ids[i] = i * 7;
	assert_true(rig_open(&rig, golden_path("tiny/tiny-llama-q4_1.gguf"), &plain_options));
	uint32_t vocab = rig.config->vocab_count;
	float *whole = malloc(30ull * vocab * sizeof *whole), *parts = malloc(30ull * vocab * sizeof *parts);
	kv_block_id *a = rig_blocks(&rig, 30), *b = rig_blocks(&rig, 30);
	rig_feed(&rig, a, 0, ids, 30, CHUNK_ALL, whole);
	struct engine_rows rows = { .blocks = b, .tokens = ids, .token_count = 30, .ret_logits = parts };
	for (uint32_t layer = 0; layer < rig.config->layer_count; layer++) {
		struct engine_batch batch = { .rows = &rows, .rows_count = 1, .layer_first = layer,
					      .layer_end = layer + 1, .on_layer = count_layer,
					      .context = &next };
		assert_int_equal(engine_run(rig.engine, &batch), 0);
	}
	assert_int_equal(next, rig.config->layer_count);
	assert_memory_equal(parts, whole, 30ull * vocab * sizeof *whole);
	free(whole);
	free(parts);
	free(a);
	free(b);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden),
		cmocka_unit_test(test_greedy),
		cmocka_unit_test(test_exact),
		cmocka_unit_test(test_arena),
		cmocka_unit_test(test_layer_ranges),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
