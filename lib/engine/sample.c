/*
 * Order of the filters, as vLLM's: temperature, min_p, top_k, top_p, then one draw. Weights are
 * exp((logit - best) / temperature) in f32 with f64 sums in rising order of id (or of rank, where
 * the candidates are ranked), so a token depends on nothing but the bits of the logits.
 */
#include "engine/sample.h"

#include <stdbool.h>
#include <string.h>

#include "base/check.h"
#include "base/rand.h"
#include "engine/real.h"

#define LOWEST (-0x1.fffffep127f)

/* exp of x <= 0 in f32 operations that compilers vectorise; -87 and below give 0. */
static inline float exp_falling(float x)
{
	float clamped = x < -87.0f ? -87.0f : x > 0.0f ? 0.0f : x; /* above the best: banned */
	float n = clamped * 1.44269504088896341f + 12582912.0f; /* 1.5 * 2^23: rounds to even */
	uint32_t bits;
	memcpy(&bits, &n, sizeof bits);
	n = n - 12582912.0f;
	float r = clamped - n * 0.693359375f;
	r = r + n * 2.12194440e-4f;
	float p = 1.9875691500e-4f;
	p = p * r + 1.3981999507e-3f;
	p = p * r + 8.3334519073e-3f;
	p = p * r + 4.1665795894e-2f;
	p = p * r + 1.6666665459e-1f;
	p = p * r + 5.0000001201e-1f;
	p = p * (r * r) + (r + 1.0f);
	bits = (bits + 127) << 23; /* the low bits of the rounded sum are n in two's complement */
	float power;
	memcpy(&power, &bits, sizeof power);
	return x <= -87.0f ? 0.0f : p * power;
}

/* Largest value; lanes so that it vectorises. NaN never wins. */
static float max_value(const float values[], uint32_t count)
{
	float lanes[16], max = LOWEST;
	uint32_t i = 0;
	for (int l = 0; l < 16; l++)
		lanes[l] = LOWEST;
	for (; i + 16 <= count; i += 16)
		for (int l = 0; l < 16; l++)
			lanes[l] = values[i + l] > lanes[l] ? values[i + l] : lanes[l];
	for (; i < count; i++)
		max = values[i] > max ? values[i] : max;
	for (int l = 0; l < 16; l++)
		max = lanes[l] > max ? lanes[l] : max;
	return max;
}

static bool is_banned(const struct sample_request *request, uint32_t id)
{
	for (uint32_t i = 0; i < request->ban_count; i++)
		if (request->bans[i] == id)
			return true;
	return false;
}

/* Ties go to the lower id. All banned or NaN: id 0. */
static uint32_t best_allowed(const float logits[], uint32_t count, const struct sample_request *request)
{
	float max = max_value(logits, count);
	for (uint32_t i = 0; i < count; i++)
		if (logits[i] == max && !is_banned(request, i))
			return i;
	/* The best value is banned: a plain scan. */
	uint32_t best = 0;
	bool found = false;
	for (uint32_t i = 0; i < count; i++)
		if (logits[i] >= LOWEST && (!found || logits[i] > logits[best]) && !is_banned(request, i)) {
			best = i;
			found = true;
		}
	return best;
}

/* ln(sum of exp(logit)), sixteen f64 lanes folded in order. */
static double log_sum(const float logits[], uint32_t count, float max)
{
	double lanes[16] = { 0 }, sum = 0;
	uint32_t i = 0;
	for (; i + 16 <= count; i += 16)
		for (int l = 0; l < 16; l++)
			lanes[l] += (double)exp_falling(logits[i + l] - max);
	for (; i < count; i++)
		sum += (double)exp_falling(logits[i] - max);
	for (int l = 0; l < 16; l++)
		sum += lanes[l];
	return (double)max + real_log(sum > 0 ? sum : 1);
}

static void top_logprobs(const float logits[], uint32_t count, uint32_t top, double norm,
			 struct sample_result *result)
{
	uint32_t found = 0;
	float floor = LOWEST;
	for (uint32_t i = 0; i < count; i++) {
		if (!(found < top || logits[i] > floor) || logits[i] != logits[i])
			continue;
		uint32_t at = found < top ? found++ : top - 1;
		for (; at > 0 && logits[i] > logits[result->top_ids[at - 1]]; at--)
			result->top_ids[at] = result->top_ids[at - 1];
		result->top_ids[at] = i;
		if (found == top)
			floor = logits[result->top_ids[top - 1]];
	}
	for (uint32_t i = 0; i < found; i++)
		result->top_logprobs[i] = (float)((double)logits[result->top_ids[i]] - norm);
	result->top_count = found;
}

/* Better first: larger weight, then lower id. */
static bool better(const float *weights, uint32_t a, uint32_t b)
{
	return weights[a] > weights[b] || (weights[a] == weights[b] && a < b);
}

static void heap_sink(const float *weights, uint32_t ids[], uint32_t count, uint32_t at)
{
	for (;;) {
		uint32_t child = 2 * at + 1;
		if (child >= count)
			return;
		if (child + 1 < count && better(weights, ids[child + 1], ids[child]))
			child++;
		if (better(weights, ids[at], ids[child]))
			return;
		uint32_t id = ids[at];
		ids[at] = ids[child];
		ids[child] = id;
		at = child;
	}
}

/* Moves the best @wanted of the heap to the end of the array, best last. */
static uint32_t heap_pop(const float *weights, uint32_t ids[], uint32_t count)
{
	uint32_t best = ids[0];
	ids[0] = ids[count - 1];
	ids[count - 1] = best;
	heap_sink(weights, ids, count - 1, 0);
	return best;
}

/* First of ids[0], ids[step], ... whose running sum passes @target. */
static uint32_t draw(const float *weights, const uint32_t *ids, uint32_t count, int step, double target)
{
	double sum = 0;
	for (uint32_t i = 0; i < count; i++, ids += step) {
		sum += (double)weights[*ids];
		if (sum > target)
			return *ids;
	}
	return ids[-step]; /* rounding: the last candidate */
}

static uint32_t draw_token(const float logits[], uint32_t vocab_count,
			   const struct sample_request *request, struct sample_scratch *scratch)
{
	const struct sample_params *params = request->params;
	float *weights = scratch->weights;
	uint32_t *ids = scratch->ids, count = 0, best = best_allowed(logits, vocab_count, request);
	float inverse = 1.0f / params->temperature;
	double total = 0;

	/* 1 / temperature overflows for the tiniest temperatures: they are greedy. */
	if (!(inverse <= 0x1p100f) || !(logits[best] >= LOWEST))
		return best;
	for (uint32_t i = 0; i < vocab_count; i++)
		weights[i] = exp_falling((logits[i] - logits[best]) * inverse);
	for (uint32_t i = 0; i < request->ban_count; i++)
		if (request->bans[i] < vocab_count)
			weights[request->bans[i]] = 0;
	for (uint32_t i = 0; i < vocab_count; i++) { /* NaN fails both comparisons */
		if (weights[i] > 0 && weights[i] >= params->min_p) {
			ids[count++] = i;
			total += (double)weights[i];
		}
	}
	if (!count)
		return best;
	double u = rand_sample(params->seed, request->choice, request->position);
	bool top_k = params->top_k && params->top_k < count, top_p = params->top_p < 1.0f;
	if (!top_k && !top_p)
		return draw(weights, ids, count, 1, u * total);

	for (uint32_t at = count / 2; at-- > 0;)
		heap_sink(weights, ids, count, at);
	uint32_t kept = 0, limit = top_k ? params->top_k : count;
	double sum = 0;
	if (top_k && top_p) { /* top_p is a share of what top_k leaves */
		for (total = 0; kept < limit; kept++)
			total += (double)weights[heap_pop(weights, ids, count - kept)];
		for (kept = 0; kept < limit && (!kept || sum < (double)params->top_p * total); kept++)
			sum += (double)weights[ids[count - 1 - kept]];
	} else {
		double enough = top_p ? (double)params->top_p * total : total * 2;
		for (; kept < limit && (!kept || sum < enough); kept++)
			sum += (double)weights[heap_pop(weights, ids, count - kept)];
	}
	return draw(weights, ids + count - 1, kept, -1, u * sum);
}

void sample_token(const float logits[], uint32_t vocab_count, const struct sample_request *request,
		  struct sample_scratch *scratch, struct sample_result *ret_result)
{
	const struct sample_params *params = request->params;
	memset(ret_result, 0, sizeof *ret_result);
	ret_result->token = params->temperature > 0 ?
				    draw_token(logits, vocab_count, request, scratch) :
				    best_allowed(logits, vocab_count, request);
	uint32_t top = MIN(params->top_logprobs, SAMPLE_TOP_MAX);
	if (!params->want_logprob && !top)
		return;
	double norm = log_sum(logits, vocab_count, max_value(logits, vocab_count));
	ret_result->logprob = (float)((double)logits[ret_result->token] - norm);
	if (top)
		top_logprobs(logits, vocab_count, MIN(top, vocab_count), norm, ret_result);
}
