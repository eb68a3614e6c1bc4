/*
 * What an instruction set provides, and the layouts it works on. One table per path; all paths
 * give the same bits (test_kernels.c compares them by memcmp).
 *
 * Weights. Whatever the file holds, a matrix is repacked at load into tiles of 16 rows by one
 * block of 32 columns; the tiles of 16 rows lie one after another, so a product reads one stream:
 *
 *   TILE_N4   256 nibble bytes, 16 f16 scales, 16 f16 minima            Q4_0, Q4_1       320 bytes
 *   TILE_N4F  256 nibble bytes, 16 f32 scales, 16 f32 minima            Q4_K             384
 *   TILE_U5F  512 bytes below 32, 16 f32 scales, 16 f32 minima          Q5_0, Q5_1, Q5_K 640
 *   TILE_S8   512 bytes w + 128, 16 f16 scales                          Q8_0             544
 *   TILE_U6   512 bytes below 64, 16 f32 scales, 2 x 16 int8 sub-scales Q6_K             608
 *   TILE_F32, TILE_F16, TILE_BF16: [column][16]                         the float types
 *
 * Byte 4r+i of vector j is row r, weight 4j+i (nibble vectors v: low nibbles are vector 2v, high
 * ones 2v+1). The order of one output, in every path, is the law of class `exact`:
 *
 *   N4, N4F, U5F   acc = fma((float)idot, d*da, acc); acc = fma(m, sa, acc)      per 32-block
 *   S8             acc = fma((float)idot, d*da, acc)
 *   U6             idot = s0*(dot of weights 0-15) + s1*(dot of 16-31), w = q-32: below 2^24, so
 *                  exact as f32; acc = fma((float)idot, d*da, acc)
 *   floats         acc = fma(w[k], x[k], acc) for rising k
 *
 * where w = d*q + m (Q4_0: m = -8d; Q5_0: -16d; K types: d = d*scale, m = -dmin*min), and the
 * activation block is int8 q with da = max|x|/127 and sa = da * sum(q).
 */
#ifndef BATON_ENGINE_CPU_KERNELS_H
#define BATON_ENGINE_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TILE_ROWS 16u
#define BLOCK 32u
/* Attention is summed within splits of this many absolute positions, then across them in order. */
#define SPLIT_TOKENS 256u
#define SPLIT_CHUNKS (SPLIT_TOKENS / 16)
#define HEAD_DIM_MAX 256u
/* Largest number of query rows (positions times heads) in one prefill attention job. */
#define ATTENTION_ROWS 192u

enum tile_kind { TILE_N4, TILE_N4F, TILE_U5F, TILE_S8, TILE_U6, TILE_F32, TILE_F16, TILE_BF16 };

struct matrix {
	enum tile_kind kind;
	uint32_t row_count, column_count;
	uint32_t tile_count;  /* of 16 rows; the last may be padded with zero weights */
	uint32_t block_count; /* 32-blocks of a row; 0 for float tiles */
	size_t block_bytes;   /* of one tile and block (float: one tile and column) */
	size_t tile_bytes;    /* of one tile, all its columns */
	const uint8_t *data;  /* 64-byte aligned */
};

static inline bool tile_is_float(enum tile_kind kind)
{
	return kind >= TILE_F32;
}

/* Rows of activations, as floats for float weights, as int8 blocks for the others. */
struct activations {
	float *f;     /* [row][f_stride] */
	int8_t *q;    /* [row][q_stride] */
	float *da;    /* [row][b_stride]: scale of a block */
	float *sa;    /* da * sum */
	int32_t *sum; /* -128 * sum */
	size_t f_stride, q_stride, b_stride;
};

/* Queries of one KV head against one split of it. K chunk c holds positions 16c.. of the split as
 * [dim][16], V chunk c as [16][dim], both f16. */
struct attention_split {
	uint32_t head_dim;
	uint32_t first; /* absolute position of the split's first token, a multiple of 256 */
	uint32_t count; /* tokens present, 1..256 */
	const uint16_t *k[SPLIT_CHUNKS], *v[SPLIT_CHUNKS];
	/* The next split's first chunks of K, which decode asks for early; NULL: none. */
	const uint16_t *next_k[4];
};

struct attention_query {
	const float *q;    /* [head_dim], after RoPE, times 1/sqrt(head_dim) */
	uint32_t position; /* sees tokens 0..position */
};

/* Partial result of a query over the splits so far: out is the sum of exp(score - max) * v. */
struct attention_state {
	float max, sum;
	float *out; /* [head_dim] */
};

struct cpu_kernels {
	const char *name;
	/* y[row * y_stride + 16 * i ...] = (or +=) rows of tile_first + i times @x; @scratch holds
	 * cpu_matmul_scratch_bytes(). */
	void (*matmul)(const struct matrix *w, uint32_t tile_first, uint32_t tile_count,
		       const struct activations *x, uint32_t row_first, uint32_t row_count, float *y,
		       size_t y_stride, bool add, uint8_t *scratch);
	/* Row work: all counts are multiples of 16, of 32 for quantise. */
	void (*rms_norm)(const float *x, const float *weight, uint32_t count, float epsilon, float *y);
	void (*quantise)(const float *x, uint32_t count, int8_t *q, float *da, float *sa, int32_t *sum);
	void (*swiglu)(const float *gate, const float *up, uint32_t count, float *y);
	/* x[i] = x[i]*c[i] + x[pair of i]*s[i]; see rope_row() for c and s. */
	void (*rope)(float *x, uint32_t dim, uint32_t rope_dim, bool interleaved, const float *c,
		     const float *s);
	void (*scale)(float *x, uint32_t count, float factor);
	void (*add)(float *x, const float *y, uint32_t count);
	/* Clamped to the finite range of f16. @stride in elements: 16 for K, 1 for V. */
	void (*store_kv)(const float *x, uint32_t count, uint16_t *y, uint32_t stride);
	/* One position, up to ATTENTION_ROWS heads; writes (not merges) each query's state. */
	void (*attention_decode)(const struct attention_split *split,
				 const struct attention_query *queries, uint32_t query_count,
				 struct attention_state *states, float *scratch);
	/* Many positions: the same results, computed with K and V widened once. Merges into states
	 * of queries that have seen an earlier split (first > 0). */
	void (*attention_prefill)(const struct attention_split *split,
				  const struct attention_query *queries, uint32_t query_count,
				  struct attention_state *states, float *scratch);
	/* Adds the state of a later split. */
	void (*attention_merge)(struct attention_state *state, const struct attention_state *later,
				uint32_t head_dim);
	/* y = state.out / state.sum */
	void (*attention_finish)(const struct attention_state *state, uint32_t head_dim, float *y);
};

extern const struct cpu_kernels cpu_kernels_plain, cpu_kernels_avx2, cpu_kernels_avx512,
	cpu_kernels_vnni;

/* Bytes of scratch that matmul needs for rows of @column_count. */
static inline size_t cpu_matmul_scratch_bytes(uint32_t column_count)
{
	return (size_t)(column_count / BLOCK + 1) * 2 * 640 + 64;
}

/* Floats of scratch that the attention kernels need. */
static inline size_t cpu_attention_scratch_floats(uint32_t head_dim)
{
	return (size_t)ATTENTION_ROWS * SPLIT_TOKENS + 2 * (size_t)SPLIT_TOKENS * head_dim + 64;
}

#endif
