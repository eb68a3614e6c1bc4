/*
 * Attention of queries to one split of 256 absolute positions. Compiled once per instruction set.
 *
 *   score[t] = sum over rising d of q[d] * k[t][d]        tokens in the lanes, so no fold
 *   weight[t] = exp(score[t] - max of the split), 0 where t > position
 *   sum = weights in 16 lanes (t mod 16), folded 8, 4, 2, 1
 *   out[d] = sum over rising t of weight[t] * v[t][d]
 *
 * and the splits of a query merge in rising order by one rule (attention_merge), in decode and in
 * prefill alike; that makes a token's bits independent of how its prompt was cut. Decode reads
 * the f16 pool directly, all query heads of a KV head per load; prefill widens a split once and
 * runs many rows over it. Both leave the operations of each query as they stand above.
 *
 * Legend: R query rows at a time, C chunks of 16 tokens at a time, P vectors of 16 dims at a time.
 */
#include "engine/cpu/kernels_impl.h"

#if defined(VEC_VNNI) || defined(VEC_AVX512)
enum { R_PREFILL = 6, R_DECODE = 4, C = 4, P = 4 };
#elif defined(VEC_AVX2)
enum { R_PREFILL = 3, R_DECODE = 3, C = 2, P = 2 };
#else
enum { R_PREFILL = 1, R_DECODE = 1, C = 1, P = 1 };
#endif
#define R_MAX 6
#define UNROLL _Pragma("GCC unroll 16")

INLINE uint32_t query_tokens(const struct attention_split *split, const struct attention_query *query)
{
	uint32_t seen = query->position - split->first + 1;
	return seen < split->count ? seen : split->count;
}

/* Scores of @rows queries for C chunks: k[c] is [dim][16], f16 or (@wide) f32. Decode streams K and
 * V from memory and has little else to do: it asks for the next chunks' K (ahead[0..C)) and these
 * chunks' V (ahead[C..2C)) meanwhile; a chunk of either is head_dim pieces of 32 bytes. */
INLINE void scores_group(const int rows, const bool wide, uint32_t head_dim, const void *const k[],
			 const void *const ahead[], const struct attention_query *queries, float *scores)
{
	v16 acc[R_MAX][C];
	const float *q[R_MAX];
	UNROLL for (int r = 0; r < rows; r++) {
		q[r] = queries[r].q;
		UNROLL for (int c = 0; c < C; c++)
			acc[r][c] = v_zero();
	}
	for (uint32_t d = 0; d < head_dim; d++) {
		v16 key[C];
		if (!wide)
			UNROLL for (int c = 0; c < C; c++)
				__builtin_prefetch((const char *)ahead[d % 2 ? C + c : c] + 64 * (d / 2), 0, 3);
		UNROLL for (int c = 0; c < C; c++)
			key[c] = wide ? v_load((const float *)k[c] + 16 * d) :
					v_load_f16((const uint16_t *)k[c] + 16 * d);
		UNROLL for (int r = 0; r < rows; r++) {
			v16 value = v_set1(q[r][d]);
			UNROLL for (int c = 0; c < C; c++)
				acc[r][c] = v_fma(value, key[c], acc[r][c]);
		}
	}
	UNROLL for (int r = 0; r < rows; r++)
		UNROLL for (int c = 0; c < C; c++)
			v_store(scores + r * SPLIT_TOKENS + 16 * c, acc[r][c]);
}

/* Scores to weights in place, zero from @tokens to the end of its chunk. */
INLINE void weights_row(float *scores, uint32_t tokens, float *ret_max, float *ret_sum)
{
	uint32_t whole = tokens / 16 * 16, rest = tokens - whole;
	v16 lowest = v_set1(-F32_MAX), max = lowest, sum = v_zero();
	for (uint32_t t = 0; t < whole; t += 16)
		max = v_max(max, v_load(scores + t));
	if (rest)
		max = v_max(max, v_first(v_load(scores + whole), lowest, rest));
	*ret_max = v_fold_max(max);
	max = v_set1(*ret_max);
	for (uint32_t t = 0; t < whole; t += 16) {
		v16 weight = v_exp(v_sub(v_load(scores + t), max));
		sum = v_add(sum, weight);
		v_store(scores + t, weight);
	}
	if (rest) {
		v16 weight = v_exp(v_sub(v_load(scores + whole), max));
		weight = v_first(weight, v_zero(), rest);
		sum = v_add(sum, weight);
		v_store(scores + whole, weight);
	}
	*ret_sum = v_fold_add(sum);
}

/* out[r][16p..] of @rows queries over @chunks chunks; v chunk c is [16][dim], f16 or f32. */
INLINE void out_piece(const int rows, const bool wide, const int pieces, uint32_t head_dim,
		      const void *const v[], uint32_t chunks, uint32_t dim, const float *weights,
		      float *out, size_t out_stride)
{
	v16 acc[R_MAX][P];
	UNROLL for (int r = 0; r < rows; r++)
		UNROLL for (int p = 0; p < pieces; p++)
			acc[r][p] = v_zero();
	for (uint32_t c = 0; c < chunks; c++) {
		const float *wide_values = (const float *)v[c] + dim;
		const uint16_t *values = (const uint16_t *)v[c] + dim;
		for (uint32_t t = 0; t < 16; t++) {
			v16 value[P];
			UNROLL for (int p = 0; p < pieces; p++)
				value[p] = wide ? v_load(wide_values + t * head_dim + 16 * p) :
						  v_load_f16(values + t * head_dim + 16 * p);
			UNROLL for (int r = 0; r < rows; r++) {
				v16 weight = v_set1(weights[r * SPLIT_TOKENS + 16 * c + t]);
				UNROLL for (int p = 0; p < pieces; p++)
					acc[r][p] = v_fma(weight, value[p], acc[r][p]);
			}
		}
	}
	UNROLL for (int r = 0; r < rows; r++)
		UNROLL for (int p = 0; p < pieces; p++)
			v_store(out + r * out_stride + dim + 16 * p, acc[r][p]);
}

INLINE void out_group(const int rows, const bool wide, uint32_t head_dim, const void *const v[],
		      uint32_t chunks, const float *weights, float *out, size_t out_stride)
{
	uint32_t dim = 0;
	for (; dim + 16 * P <= head_dim; dim += 16 * P)
		out_piece(rows, wide, P, head_dim, v, chunks, dim, weights, out, out_stride);
	for (; dim < head_dim; dim += 16)
		out_piece(rows, wide, 1, head_dim, v, chunks, dim, weights, out, out_stride);
}

#define ROWS_SWITCH(count, call)                                                                 \
	switch (count) {                                                                         \
	case 1: {                                                                                \
		enum { ROWS = 1 };                                                               \
		call;                                                                            \
		break;                                                                           \
	}                                                                                        \
	case 2: {                                                                                \
		enum { ROWS = MAX_ROWS < 2 ? MAX_ROWS : 2 };                                     \
		call;                                                                            \
		break;                                                                           \
	}                                                                                        \
	case 3: {                                                                                \
		enum { ROWS = MAX_ROWS < 3 ? MAX_ROWS : 3 };                                     \
		call;                                                                            \
		break;                                                                           \
	}                                                                                        \
	case 4: {                                                                                \
		enum { ROWS = MAX_ROWS < 4 ? MAX_ROWS : 4 };                                     \
		call;                                                                            \
		break;                                                                           \
	}                                                                                        \
	case 5: {                                                                                \
		enum { ROWS = MAX_ROWS < 5 ? MAX_ROWS : 5 };                                     \
		call;                                                                            \
		break;                                                                           \
	}                                                                                        \
	default: {                                                                               \
		enum { ROWS = MAX_ROWS };                                                        \
		call;                                                                            \
	}                                                                                        \
	}

void KERNEL(attention_decode)(const struct attention_split *split,
			      const struct attention_query *queries, uint32_t query_count,
			      struct attention_state *states, float *scores)
{
	enum { MAX_ROWS = R_DECODE };
	uint32_t head_dim = split->head_dim, tokens = query_tokens(split, queries);
	uint32_t chunks = (tokens + 15) / 16;
	float *out = scores + R_DECODE * SPLIT_TOKENS;
	const void *k[SPLIT_CHUNKS + C], *v[SPLIT_CHUNKS];
	for (uint32_t c = 0; c < SPLIT_CHUNKS; c++) { /* absent chunks: any memory, never used */
		k[c] = split->k[c < chunks ? c : 0];
		v[c] = split->v[c < chunks ? c : 0];
	}
	for (uint32_t c = 0; c < C; c++)
		k[SPLIT_CHUNKS + c] = split->next_k[c] ? split->next_k[c] : split->k[0];
	for (uint32_t first = 0; first < query_count; first += R_DECODE) {
		uint32_t rows = query_count - first < R_DECODE ? query_count - first : R_DECODE;
		const struct attention_query *group = queries + first;
		for (uint32_t c = 0; c < chunks; c += C) {
			const void *ahead[2 * C];
			for (uint32_t i = 0; i < C; i++) {
				ahead[i] = k[c + C + i];
				ahead[C + i] = v[c + i];
			}
			ROWS_SWITCH(rows, scores_group(ROWS, false, head_dim, k + c, ahead, group,
						       scores + 16 * c));
		}
		for (uint32_t r = 0; r < rows; r++)
			weights_row(scores + r * SPLIT_TOKENS, tokens, &states[first + r].max,
				    &states[first + r].sum);
		ROWS_SWITCH(rows, out_group(ROWS, false, head_dim, v, chunks, scores, out, HEAD_DIM_MAX));
		for (uint32_t r = 0; r < rows; r++)
			memcpy(states[first + r].out, out + r * HEAD_DIM_MAX, head_dim * sizeof *out);
	}
}

static void widen_split(const struct attention_split *split, uint32_t chunks, float *k, float *v)
{
	size_t halves = (size_t)16 * split->head_dim;
	for (uint32_t c = 0; c < chunks; c++) {
		for (size_t i = 0; i < halves; i += 16) {
			v_store(k + c * halves + i, v_load_f16(split->k[c] + i));
			v_store(v + c * halves + i, v_load_f16(split->v[c] + i));
		}
	}
}

/* Tokens seen by the last of @rows queries: they stand in rising order of position. */
static uint32_t group_tokens(const struct attention_split *split,
			     const struct attention_query *queries, uint32_t rows)
{
	return query_tokens(split, &queries[rows - 1]);
}

void KERNEL(attention_prefill)(const struct attention_split *split,
			       const struct attention_query *queries, uint32_t query_count,
			       struct attention_state *states, float *scratch)
{
	enum { MAX_ROWS = R_PREFILL };
	uint32_t head_dim = split->head_dim, tokens = group_tokens(split, queries, query_count);
	size_t halves = (size_t)16 * head_dim;
	float *scores = scratch, *wide_k = scores + ATTENTION_ROWS * SPLIT_TOKENS;
	float *wide_v = wide_k + SPLIT_CHUNKS * halves;
	const void *k[SPLIT_CHUNKS], *v[SPLIT_CHUNKS];
	float out[R_PREFILL * HEAD_DIM_MAX];

	widen_split(split, (tokens + 15) / 16, wide_k, wide_v);
	for (uint32_t c = 0; c < SPLIT_CHUNKS; c++) {
		k[c] = wide_k + c * halves;
		v[c] = wide_v + c * halves;
	}
	for (uint32_t c = 0; c * 16 < tokens; c += C) { /* these chunks of K stay in L1 */
		for (uint32_t first = 0; first < query_count; first += R_PREFILL) {
			uint32_t rows = query_count - first < R_PREFILL ? query_count - first : R_PREFILL;
			const struct attention_query *group = queries + first;
			if (group_tokens(split, group, rows) <= 16 * c)
				continue;
			float *to = scores + first * SPLIT_TOKENS + 16 * c;
			ROWS_SWITCH(rows, scores_group(ROWS, true, head_dim, k + c, NULL, group, to));
		}
	}
	for (uint32_t first = 0; first < query_count; first += R_PREFILL) {
		uint32_t rows = query_count - first < R_PREFILL ? query_count - first : R_PREFILL;
		uint32_t chunks = (group_tokens(split, queries + first, rows) + 15) / 16;
		struct attention_state later[R_PREFILL];
		float *weights = scores + first * SPLIT_TOKENS;
		for (uint32_t r = 0; r < rows; r++) {
			uint32_t seen = query_tokens(split, &queries[first + r]);
			float *row = weights + r * SPLIT_TOKENS;
			weights_row(row, seen, &later[r].max, &later[r].sum);
			later[r].out = out + r * HEAD_DIM_MAX;
			for (uint32_t t = (seen + 15) / 16 * 16; t < 16 * chunks; t += 16)
				v_store(row + t, v_zero());
		}
		ROWS_SWITCH(rows, out_group(ROWS, true, head_dim, v, chunks, weights, out, HEAD_DIM_MAX));
		for (uint32_t r = 0; r < rows; r++) {
			struct attention_state *state = &states[first + r];
			if (split->first) {
				KERNEL(attention_merge)(state, &later[r], head_dim);
				continue;
			}
			state->max = later[r].max;
			state->sum = later[r].sum;
			memcpy(state->out, later[r].out, head_dim * sizeof(float));
		}
	}
}

void KERNEL(attention_merge)(struct attention_state *state, const struct attention_state *later,
			     uint32_t head_dim)
{
	float max = state->max > later->max ? state->max : later->max;
	float mine = f32_exp(state->max - max), theirs = f32_exp(later->max - max);
	v16 a = v_set1(mine), b = v_set1(theirs);
	state->max = max;
	state->sum = fmaf(state->sum, mine, later->sum * theirs);
	for (uint32_t d = 0; d < head_dim; d += 16) {
		v16 sum = v_fma(v_load(state->out + d), a, v_mul(v_load(later->out + d), b));
		v_store(state->out + d, sum);
	}
}

void KERNEL(attention_finish)(const struct attention_state *state, uint32_t head_dim, float *y)
{
	v16 factor = v_set1(1.0f / state->sum);
	for (uint32_t d = 0; d < head_dim; d += 16)
		v_store(y + d, v_mul(v_load(state->out + d), factor));
}
