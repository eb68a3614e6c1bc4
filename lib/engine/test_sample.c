/* The sampler against a slow twin that sorts, and its promises one by one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/rand.h"
#include "engine/sample.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define VOCAB 500

static float weights[VOCAB], logits[VOCAB];
static uint32_t ids[VOCAB];
static struct sample_scratch scratch = { weights, ids };
static uint64_t seed = 3;

static void random_logits(void)
{
	for (uint32_t i = 0; i < VOCAB; i++) /* quarters, so that ties are common */
		logits[i] = (float)(int)((rand_next(&seed) >> 40) % 60) * 0.25f - 7;
}

static struct sample_result run(const struct sample_params *params, uint64_t position,
				const uint32_t *bans, uint32_t ban_count)
{
	struct sample_result result;
	struct sample_request request = { .params = params, .choice = 1, .position = position,
					  .bans = bans, .ban_count = ban_count };
	sample_token(logits, VOCAB, &request, &scratch, &result);
	return result;
}

static int by_logit(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	if (logits[x] != logits[y])
		return logits[x] > logits[y] ? -1 : 1;
	return x < y ? -1 : 1;
}

static void test_greedy_and_logprobs(void **state)
{
	(void)state;
	for (int round = 0; round < 200; round++) {
		uint32_t order[VOCAB];
		double sum = 0;
		random_logits();
		for (uint32_t i = 0; i < VOCAB; i++) {
			order[i] = i;
			sum += exp((double)logits[i]);
		}
		qsort(order, VOCAB, sizeof *order, by_logit);
		struct sample_params params = { .top_p = 1, .want_logprob = 1, .top_logprobs = 20 };
		struct sample_result result = run(&params, 0, NULL, 0);
		assert_int_equal(result.token, order[0]);
		assert_int_equal(result.top_count, 20);
		for (uint32_t i = 0; i < 20; i++) {
			assert_int_equal(result.top_ids[i], order[i]);
			assert_true(fabs((double)result.top_logprobs[i] -
					 ((double)logits[order[i]] - log(sum))) < 1e-5);
		}
		assert_true(result.logprob == result.top_logprobs[0]);
		result = run(&params, 0, order, 3); /* the best three may not come */
		assert_int_equal(result.token, order[3]);
		assert_int_equal(result.top_ids[0], order[0]);
	}
}

/* Candidates after all filters, and each one's share, by sorting. */
static uint32_t twin_candidates(const struct sample_params *params, uint32_t *order, double *share)
{
	double total = 0, sum = 0;
	uint32_t count = 0, kept;
	for (uint32_t i = 0; i < VOCAB; i++)
		order[i] = i;
	qsort(order, VOCAB, sizeof *order, by_logit);
	for (uint32_t i = 0; i < VOCAB; i++) {
		share[i] = exp(((double)logits[order[i]] - (double)logits[order[0]]) /
			       (double)params->temperature);
		if (share[i] < (double)params->min_p * (1 - 1e-9))
			break;
		count++;
	}
	if (params->top_k && params->top_k < count)
		count = params->top_k;
	for (uint32_t i = 0; i < count; i++)
		total += share[i];
	for (kept = 0; kept < count && (!kept || sum < (double)params->top_p * total); kept++)
		sum += share[kept];
	for (uint32_t i = 0; i < kept; i++)
		share[i] /= sum;
	return kept;
}

static void test_filters(void **state)
{
	static const struct sample_params sets[] = {
		{ .temperature = 1, .top_p = 1 },
		{ .temperature = 0.7f, .top_p = 0.9f },
		{ .temperature = 1.5f, .top_p = 1, .top_k = 7 },
		{ .temperature = 1, .top_p = 0.5f, .top_k = 40 },
		{ .temperature = 2, .top_p = 1, .min_p = 0.1f },
		{ .temperature = 1, .top_p = 0.8f, .top_k = 30, .min_p = 0.05f },
		{ .temperature = 1, .top_p = 1e-6f },
		{ .temperature = 1, .top_p = 1, .top_k = 1 },
	};
	enum { DRAWS = 20000 };
	(void)state;
	for (size_t i = 0; i < ARRAY_COUNT(sets); i++) {
		uint32_t order[VOCAB], counts[VOCAB] = { 0 };
		double share[VOCAB];
		random_logits();
		uint32_t kept = twin_candidates(&sets[i], order, share);
		for (uint64_t position = 0; position < DRAWS; position++)
			counts[run(&sets[i], position, NULL, 0).token]++;
		uint32_t drawn = 0;
		for (uint32_t c = 0; c < kept; c++) {
			double expected = share[c] * DRAWS, sigma = sqrt(expected) + 1;
			assert_true(fabs(counts[order[c]] - expected) < 6 * sigma);
			drawn += counts[order[c]];
		}
		assert_int_equal(drawn, DRAWS); /* nothing outside the candidates */
	}
}

static void test_deterministic(void **state)
{
	struct sample_params params = { .temperature = 1, .top_p = 0.9f, .seed = 42 }, other = params;
	uint32_t differ = 0, choice_differs = 0;
	(void)state;
	other.seed = 43;
	random_logits();
	for (uint64_t position = 0; position < 100; position++) {
		uint32_t token = run(&params, position, NULL, 0).token;
		struct sample_request request = { .params = &params, .choice = 2, .position = position };
		struct sample_result result;
		assert_int_equal(token, run(&params, position, NULL, 0).token);
		differ += token != run(&other, position, NULL, 0).token;
		sample_token(logits, VOCAB, &request, &scratch, &result);
		choice_differs += token != result.token;
	}
	assert_true(differ > 50 && choice_differs > 50);
}

static void test_odd_values(void **state)
{
	struct sample_params params = { .temperature = 1, .top_p = 0.9f, .want_logprob = 1,
					.top_logprobs = 20 };
	uint32_t all[VOCAB];
	(void)state;
	for (uint32_t i = 0; i < VOCAB; i++) {
		logits[i] = NAN;
		all[i] = i;
	}
	assert_true(run(&params, 0, NULL, 0).token < VOCAB);
	logits[7] = 1;
	assert_int_equal(run(&params, 0, NULL, 0).token, 7);
	random_logits();
	assert_true(run(&params, 0, all, VOCAB).token < VOCAB); /* everything banned: no crash */
	params.temperature = 1e-38f; /* its inverse overflows: greedy */
	struct sample_params greedy = { .top_p = 1 };
	assert_int_equal(run(&params, 0, NULL, 0).token, run(&greedy, 0, NULL, 0).token);
	logits[3] = 1e30f;
	params.temperature = 1;
	assert_int_equal(run(&params, 0, NULL, 0).token, 3);
	/* A banned best far above the rest must not drown them. */
	assert_int_not_equal(run(&params, 0, &all[3], 1).token, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_greedy_and_logprobs),
		cmocka_unit_test(test_filters),
		cmocka_unit_test(test_deterministic),
		cmocka_unit_test(test_odd_values),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
