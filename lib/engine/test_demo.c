/* The demo model against the fp32 reference, with the bounds for 8-bit activations that
 * tests/golden's yardsticks suggest, and its bits across paths. Skipped without the file. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/test_support.h"

#define CHUNK 64u

static struct rig rig;

static double log_norm(const float *logits, uint32_t count)
{
	double max = -INFINITY, sum = 0;
	for (uint32_t i = 0; i < count; i++)
		max = fmax(max, (double)logits[i]);
	for (uint32_t i = 0; i < count; i++)
		sum += exp((double)logits[i] - max);
	return max + log(sum);
}

static uint32_t best_of(const float *logits, uint32_t count)
{
	uint32_t best = 0;
	for (uint32_t i = 1; i < count; i++)
		if (logits[i] > logits[best])
			best = i;
	return best;
}

/* KL over the twenty stored ids and the rest as one. */
static double kl_top20(const json_t *top, const float *logits, uint32_t vocab)
{
	double norm = log_norm(logits, vocab), kl = 0, p_rest = 1, q_rest = 1;
	for (size_t i = 0; i < json_array_size(top); i++) {
		const json_t *pair = json_array_get(top, i);
		double log_p = json_number_value(json_array_get(pair, 1));
		double log_q = (double)logits[json_integer_value(json_array_get(pair, 0))] - norm;
		kl += exp(log_p) * (log_p - log_q);
		p_rest -= exp(log_p);
		q_rest -= exp(log_q);
	}
	p_rest = fmax(p_rest, 1e-12);
	q_rest = fmax(q_rest, 1e-12);
	return kl + p_rest * log(p_rest / q_rest);
}

struct totals {
	double kl, peer_kl, kl_max;
	uint32_t rows, agreed;
};

static void golden_sequence(const json_t *line, void *context)
{
	struct totals *totals = context;
	const json_t *rows = json_object_get(line, "rows");
	uint32_t vocab = rig.config->vocab_count, count;
	uint32_t *ids = json_ids(json_object_get(line, "ids"), &count);
	float *logits = malloc((size_t)CHUNK * vocab * sizeof *logits);
	double kl = 0;
	size_t row = 0;
	rig.blocks_used = 0;
	kv_block_id *blocks = rig_blocks(&rig, count);
	for (uint32_t at = 0; at < count; at += CHUNK) {
		uint32_t step = MIN(CHUNK, count - at);
		rig_feed(&rig, blocks, at, ids + at, step, CHUNK, logits);
		for (; row < json_array_size(rows); row++) {
			const json_t *r = json_array_get(rows, row), *top = json_object_get(r, "top");
			uint32_t position = (uint32_t)json_integer_value(json_object_get(r, "pos"));
			if (position >= at + step)
				break;
			const float *ours = logits + (size_t)(position - at) * vocab;
			double row_kl = kl_top20(top, ours, vocab);
			kl += row_kl;
			totals->kl_max = fmax(totals->kl_max, row_kl);
			totals->agreed += best_of(ours, vocab) ==
					  json_integer_value(json_array_get(json_array_get(top, 0), 0));
		}
	}
	assert_int_equal(row, json_array_size(rows));
	double peer = json_number_value(
		json_object_get(json_object_get(line, "llamacpp"), "mean_kl_top20_kept"));
	print_message("%-16s mean KL20 %.5f (llama.cpp %.5f)\n",
		      json_string_value(json_object_get(line, "name")), kl / (double)row, peer);
	if (count >= 64)
		assert_true(kl / (double)row <= 2 * peer);
	totals->kl += kl;
	totals->peer_kl += peer * (double)row;
	totals->rows += (uint32_t)row;
	free(blocks);
	free(logits);
	free(ids);
}

static void test_logits(void **state)
{
	struct totals totals = { 0 };
	(void)state;
	golden_lines("logits.jsonl", golden_sequence, &totals);
	double agreement = (double)totals.agreed / totals.rows;
	print_message("%u rows: KL20 %.3f of llama.cpp's, max %.3f, top-1 %.4f\n", totals.rows,
		      totals.kl / totals.peer_kl, totals.kl_max, agreement);
	assert_true(totals.kl <= 1.3 * totals.peer_kl);
	assert_true(totals.kl_max < 0.2);
	assert_true(agreement >= 0.955 - 0.01);
}

struct forced {
	uint32_t steps, agreed, clear_steps, clear_agreed;
};

/* The reference's tokens are fed; ours must mostly be the same, nearly always where it was sure. */
static void greedy_prompt(const json_t *line, void *context)
{
	struct forced *forced = context;
	const json_t *gaps = json_object_get(line, "gap");
	uint32_t prompt_count, count, vocab = rig.config->vocab_count;
	uint32_t *prompt = json_ids(json_object_get(line, "prompt_ids"), &prompt_count);
	uint32_t *ids = json_ids(json_object_get(line, "ids"), &count);
	float *logits = malloc((size_t)(count + 1) * vocab * sizeof *logits);
	rig.blocks_used = 0;
	kv_block_id *blocks = rig_blocks(&rig, prompt_count + count);
	if (prompt_count > 1)
		rig_feed(&rig, blocks, 0, prompt, prompt_count - 1, 256, NULL);
	rig_feed(&rig, blocks, prompt_count - 1, prompt + prompt_count - 1, 1, 1, logits);
	rig_feed(&rig, blocks, prompt_count, ids, count - 1, 16, logits + vocab);
	for (uint32_t i = 0; i < count; i++) {
		bool same = best_of(logits + (size_t)i * vocab, vocab) == ids[i];
		bool clear = json_number_value(json_array_get(gaps, i)) >= 0.1;
		forced->steps++;
		forced->agreed += same;
		forced->clear_steps += clear;
		forced->clear_agreed += clear && same;
	}
	free(blocks);
	free(logits);
	free(prompt);
	free(ids);
}

static void test_greedy(void **state)
{
	struct forced forced = { 0 };
	(void)state;
	golden_lines("greedy.jsonl", greedy_prompt, &forced);
	double all = (double)forced.agreed / forced.steps;
	double clear = (double)forced.clear_agreed / forced.clear_steps;
	print_message("greedy, teacher-forced: %u steps, %.4f agree, %.4f where the gap is 0.1 or more\n",
		      forced.steps, all, clear);
	assert_true(all >= 0.9749 - 0.01);
	assert_true(clear >= 0.9864 - 0.01);
}

static void test_exact(void **state)
{
	static const struct {
		enum engine_isa isa;
		uint32_t threads, chunk, count;
	} variants[] = {
		{ ENGINE_ISA_AUTO, 1, 512, 300 },  { ENGINE_ISA_AUTO, 2, 1, 40 },
		{ ENGINE_ISA_VNNI, 3, 64, 300 },   { ENGINE_ISA_AVX512, 2, 37, 300 },
		{ ENGINE_ISA_AVX2, 2, 100, 300 },  { ENGINE_ISA_PLAIN, 2, 7, 20 },
	};
	const char *path = demo_model_path();
	uint32_t vocab = rig.config->vocab_count, ids[300];
	float *expected = malloc(300ull * vocab * sizeof *expected);
	float *logits = malloc(300ull * vocab * sizeof *logits);
	(void)state;
	for (uint32_t i = 0; i < ARRAY_COUNT(ids); i++)
		ids[i] = (i * 2654435761u >> 8) % vocab;
	for (size_t v = 0; v < ARRAY_COUNT(variants); v++) {
		struct rig other;
		const struct rig_options options = { .isa = variants[v].isa, .threads = variants[v].threads,
						     .block_tokens = 64, .block_count = 8,
						     .batch_tokens = 512 };
		if (!rig_open(&other, path, &options))
			continue;
		kv_block_id *blocks = rig_blocks(&other, variants[v].count);
		rig_feed(&other, blocks, 0, ids, variants[v].count, variants[v].chunk,
			 v ? logits : expected);
		if (v)
			assert_memory_equal(logits, expected, (size_t)variants[v].count * vocab * sizeof *logits);
		free(blocks);
		rig_close(&other);
	}
	free(expected);
	free(logits);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_logits),
		cmocka_unit_test(test_greedy),
		cmocka_unit_test(test_exact),
	};
	const struct rig_options options = { .threads = 2, .block_tokens = 64, .block_count = 48,
					     .batch_tokens = 256 };
	if (!demo_model_path()) {
		printf("skipped: no demo model in ~/.cache/baton, and BATON_MODEL names none\n");
		return 77;
	}
	if (!rig_open(&rig, demo_model_path(), &options))
		return 1;
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	rig_close(&rig);
	return failed;
}
