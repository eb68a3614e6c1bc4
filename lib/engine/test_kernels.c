/*
 * Every kernel on every path of this machine: the same bits as plain C (memcmp), and plain C near
 * a slow f64 twin that knows nothing of lanes, tiles or splits.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/rand.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/tile.h"
#include "engine/half.h"
#include "engine/real.h"
#include "engine/test_support.h"

static const enum engine_isa isas[] = { ENGINE_ISA_AVX2, ENGINE_ISA_AVX512, ENGINE_ISA_VNNI };
static const struct cpu_kernels *paths[ARRAY_COUNT(isas)];
static uint32_t path_count;
static uint64_t seed = 1;

static uint32_t random_below(uint32_t bound)
{
	return (uint32_t)(rand_next(&seed) >> 33) % bound;
}

static float random_float(void) /* -1..1, now and then something else */
{
	float value = (float)((double)(rand_next(&seed) >> 11) * 0x1p-52 - 1);
	switch (random_below(64)) {
	case 0:
		return 0.0f;
	case 1:
		return value * 1000;
	case 2:
		return value * 1e-38f;
	default:
		return value;
	}
}

static float *random_floats(size_t count)
{
	float *values = aligned_alloc(64, ALIGN_UP(count * sizeof(float), (size_t)64));
	assert_non_null(values);
	for (size_t i = 0; i < count; i++)
		values[i] = random_float();
	return values;
}

static void test_half(void **state)
{
	(void)state;
	for (uint32_t h = 0; h < 65536; h++) {
		float value = half_to_f32((uint16_t)h);
		if (value == value) /* NaN keeps only its nature */
			assert_int_equal(half_from_f32(value), h);
	}
	/* Halfway values go to the even neighbour. */
	assert_int_equal(half_from_f32(1.0f + 0x1p-11f), half_from_f32(1.0f));
	assert_int_equal(half_from_f32(1.0f + 3 * 0x1p-11f), half_from_f32(1.0f + 0x1p-9f));
	assert_int_equal(half_from_f32(0x1p-25f), 0);
	assert_int_equal(half_from_f32(0x1.8p-25f), 1);
	assert_int_equal(half_from_f32(65519.0f), 0x7bff);
	assert_int_equal(half_from_f32(65520.0f), 0x7c00);
}

static void test_real(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 20000; i++) {
		double x = (double)(rand_next(&seed) >> 11) * 0x1p-53, sine, cosine;
		double angle = (x - 0.5) * 262144, power = (x - 0.5) * 1000, positive = x * 1e6 + 1e-9;
		real_sincos(angle, &sine, &cosine);
		assert_true(fabs(sine - sin(angle)) < 1e-11 && fabs(cosine - cos(angle)) < 1e-11);
		assert_true(fabs(real_exp(power) / exp(power) - 1) < 1e-13);
		assert_true(fabs(real_log(positive) - log(positive)) < 1e-14 * (1 + fabs(log(positive))));
	}
}

static void test_rows(void **state)
{
	enum { COUNT = 576 };
	(void)state;
	for (int round = 0; round < 50; round++) {
		float *x = random_floats(COUNT), *w = random_floats(COUNT), *up = random_floats(COUNT);
		float expected[COUNT], got[COUNT];
		if (round == 1)
			memset(x, 0, COUNT * sizeof *x);
		if (round == 2)
			for (int i = 0; i < COUNT; i++)
				x[i] *= 1e-38f; /* subnormals */
		if (round == 3)
			for (int i = 0; i < COUNT; i++)
				x[i] *= 3e38f;
		for (uint32_t p = 0; p < path_count; p++) {
			cpu_kernels_plain.rms_norm(x, w, COUNT, 1e-5f, expected);
			paths[p]->rms_norm(x, w, COUNT, 1e-5f, got);
			assert_memory_equal(got, expected, sizeof got);
			cpu_kernels_plain.swiglu(x, up, COUNT, expected);
			paths[p]->swiglu(x, up, COUNT, got);
			assert_memory_equal(got, expected, sizeof got);
			memcpy(expected, x, sizeof expected);
			memcpy(got, x, sizeof got);
			cpu_kernels_plain.scale(expected, COUNT, 0.125f);
			cpu_kernels_plain.add(expected, w, COUNT);
			paths[p]->scale(got, COUNT, 0.125f);
			paths[p]->add(got, w, COUNT);
			assert_memory_equal(got, expected, sizeof got);
			uint16_t half_expected[16 * COUNT] = { 0 }, half_got[16 * COUNT] = { 0 };
			cpu_kernels_plain.store_kv(x, COUNT, half_expected, round % 2 ? 16 : 1);
			paths[p]->store_kv(x, COUNT, half_got, round % 2 ? 16 : 1);
			assert_memory_equal(half_got, half_expected, sizeof half_got);
		}
		if (round > 3) { /* the twin, where nothing over- or underflows */
			double squares = 0;
			for (int i = 0; i < COUNT; i++)
				squares += (double)x[i] * (double)x[i];
			cpu_kernels_plain.rms_norm(x, w, COUNT, 1e-5f, expected);
			cpu_kernels_plain.swiglu(x, up, COUNT, got);
			for (int i = 0; i < COUNT; i++) {
				double norm = (double)x[i] / sqrt(squares / COUNT + 1e-5) * (double)w[i];
				double silu = (double)x[i] / (1 + exp(-(double)x[i])) * (double)up[i];
				assert_true(fabs((double)expected[i] - norm) <= 1e-5 * fabs(norm) + 1e-30);
				assert_true(fabs((double)got[i] - silu) <= 1e-6 * fabs(silu) + 1e-30);
			}
		}
		free(x);
		free(w);
		free(up);
	}
}

static void test_rope(void **state)
{
	static const uint32_t shapes[][2] = { { 64, 64 }, { 16, 16 }, { 80, 80 }, { 128, 64 }, { 96, 32 } };
	(void)state;
	for (size_t i = 0; i < ARRAY_COUNT(shapes); i++) {
		for (int interleaved = 0; interleaved < 2; interleaved++) {
			uint32_t dim = shapes[i][0], rope_dim = shapes[i][1];
			float *x = random_floats(dim), *c = random_floats(dim), *s = random_floats(dim);
			for (uint32_t d = rope_dim; d < dim; d++) {
				c[d] = 1;
				s[d] = 0;
			}
			float expected[128], got[128];
			memcpy(expected, x, dim * sizeof *x);
			cpu_kernels_plain.rope(expected, dim, rope_dim, interleaved, c, s);
			for (uint32_t p = 0; p < path_count; p++) {
				memcpy(got, x, dim * sizeof *x);
				paths[p]->rope(got, dim, rope_dim, interleaved, c, s);
				assert_memory_equal(got, expected, dim * sizeof *x);
			}
			for (uint32_t d = 0; d < dim; d++) {
				uint32_t half = rope_dim / 2;
				uint32_t pair = interleaved ? d ^ 1 : d < half ? d + half : d - half;
				double value = d < rope_dim ? (double)x[d] * (double)c[d] +
								      (double)x[pair] * (double)s[d] :
							      (double)x[d];
				assert_true(fabs(value - (double)expected[d]) <= 1e-6 * (1 + fabs(value) * 10));
			}
			free(x);
			free(c);
			free(s);
		}
	}
}

/* Rows of activations, quantised by plain C after the other paths gave the same bits. */
static void make_activations(struct activations *a, uint32_t rows, uint32_t columns)
{
	a->f_stride = a->q_stride = columns;
	a->b_stride = columns / BLOCK;
	a->f = random_floats((size_t)rows * columns);
	a->q = malloc((size_t)rows * columns);
	a->da = malloc(rows * a->b_stride * sizeof *a->da);
	a->sa = malloc(rows * a->b_stride * sizeof *a->sa);
	a->sum = malloc(rows * a->b_stride * sizeof *a->sum);
	for (uint32_t r = 0; r < rows; r++) {
		int8_t q[4096];
		float da[128], sa[128];
		int32_t sum[128];
		float *f = a->f + r * columns;
		size_t b = r * a->b_stride;
		if (r == 1)
			memset(f, 0, BLOCK * sizeof *f);
		if (r == 2)
			f[3] = NAN;
		cpu_kernels_plain.quantise(f, columns, a->q + r * columns, a->da + b, a->sa + b, a->sum + b);
		for (uint32_t p = 0; p < path_count; p++) {
			paths[p]->quantise(f, columns, q, da, sa, sum);
			assert_memory_equal(q, a->q + r * columns, columns);
			assert_memory_equal(da, a->da + b, a->b_stride * sizeof *da);
			assert_memory_equal(sa, a->sa + b, a->b_stride * sizeof *sa);
			assert_memory_equal(sum, a->sum + b, a->b_stride * sizeof *sum);
		}
		if (r == 2)
			f[3] = 0.5f;
		for (uint32_t i = 0; i < columns; i++) {
			assert_true(a->q[r * columns + i] >= -127);
			if (r != 2 || i >= BLOCK)
				assert_true(fabsf((float)a->q[r * columns + i] * a->da[b + i / BLOCK] - f[i]) <=
					    0.501f * a->da[b + i / BLOCK] + 1e-30f);
		}
	}
}

static void free_activations(struct activations *a)
{
	free(a->f);
	free(a->q);
	free(a->da);
	free(a->sa);
	free(a->sum);
}

/* Random bytes are valid blocks of every type once the f16 fields are tame. */
static void make_tensor(struct tensor *tensor, enum tensor_type type, uint32_t rows, uint32_t columns)
{
	static const struct {
		enum tensor_type type;
		uint32_t block, halves[2];
	} layouts[] = {
		{ TENSOR_Q4_0, 18, { 0, 0 } },	{ TENSOR_Q4_1, 20, { 0, 2 } },
		{ TENSOR_Q5_0, 22, { 0, 0 } },	{ TENSOR_Q5_1, 24, { 0, 2 } },
		{ TENSOR_Q8_0, 34, { 0, 0 } },	{ TENSOR_Q4_K, 144, { 0, 2 } },
		{ TENSOR_Q5_K, 176, { 0, 2 } }, { TENSOR_Q6_K, 210, { 208, 208 } },
	};
	size_t bytes = tensor_row_bytes(type, columns) * rows;
	uint8_t *data = malloc(bytes);
	assert_non_null(data);
	for (size_t i = 0; i < bytes; i++)
		data[i] = (uint8_t)random_below(256);
	for (size_t l = 0; l < ARRAY_COUNT(layouts); l++)
		for (size_t at = 0; layouts[l].type == type && at < bytes; at += layouts[l].block)
			for (int h = 0; h < 2; h++) {
				uint16_t half = half_from_f32(fminf(fmaxf(random_float(), -1), 1) * 0.01f);
				memcpy(data + at + layouts[l].halves[h], &half, sizeof half);
			}
	for (size_t i = 0; i < (size_t)rows * columns; i++) {
		float value = random_float();
		uint16_t half = half_from_f32(value);
		if (type == TENSOR_F32)
			memcpy(data + 4 * i, &value, 4);
		else if (type == TENSOR_F16)
			memcpy(data + 2 * i, &half, 2);
		else if (type == TENSOR_BF16)
			memcpy(data + 2 * i, (uint8_t *)&value + 2, 2);
	}
	*tensor = (struct tensor){ .name = "random", .type = type, .column_count = columns,
				   .row_count = rows, .data = data, .bytes = bytes };
}

/* Against f64 on the dequantised weights and activations. */
static void check_product(const struct tensor *tensor, const struct activations *a, const float *y,
			  size_t stride, uint32_t rows)
{
	uint32_t columns = tensor->column_count;
	bool is_float = tensor->type == TENSOR_F32 || tensor->type == TENSOR_F16 ||
			tensor->type == TENSOR_BF16;
	float *weights = malloc(columns * sizeof *weights);
	for (uint32_t o = 0; o < tensor->row_count; o++) {
		tensor_row_f32(tensor, o, weights);
		for (uint32_t r = 0; r < rows; r++) {
			double sum = 0, size = 0;
			for (uint32_t i = 0; i < columns; i++) {
				double x = is_float ? (double)a->f[r * columns + i] :
						      a->q[r * columns + i] *
							      (double)a->da[r * a->b_stride + i / BLOCK];
				sum += (double)weights[i] * x;
				size += fabs((double)weights[i] * x);
			}
			if (!(fabs(sum - (double)y[r * stride + o]) <= 2e-5 * size + 1e-4))
				fail_msg("%s row %u output %u: %g, expected %g",
					 tensor_type_name(tensor->type), r, o, (double)y[r * stride + o], sum);
		}
	}
	free(weights);
}

static void matmul_type(enum tensor_type type, uint32_t outputs, uint32_t columns)
{
	enum { ROWS = 45 };
	struct tensor tensor;
	struct matrix matrix;
	struct activations a = { 0 };
	uint8_t *scratch = malloc(cpu_matmul_scratch_bytes(columns));
	make_tensor(&tensor, type, outputs, columns);
	make_activations(&a, ROWS, columns);
	assert_int_equal(tile_plan(&tensor, &matrix), 0);
	uint8_t *data = aligned_alloc(64, tile_matrix_bytes(&matrix));
	tile_pack(&tensor, &matrix, 0, matrix.tile_count, data);
	matrix.data = data;
	size_t stride = matrix.tile_count * TILE_ROWS, count = ROWS * stride;
	float *expected = calloc(count, sizeof *expected), *got = malloc(count * sizeof *got);
	cpu_kernels_plain.matmul(&matrix, 0, matrix.tile_count, &a, 0, ROWS, expected, stride, false, scratch);
	check_product(&tensor, &a, expected, stride, ROWS);
	for (uint32_t p = 0; p < path_count; p++) {
		for (uint32_t rows = 1; rows <= ROWS; rows = rows < 20 ? rows + 1 : rows + 8) {
			for (uint32_t first = 0; first + rows <= ROWS; first += 17) {
				memset(got, 0xff, count * sizeof *got);
				paths[p]->matmul(&matrix, 0, matrix.tile_count, &a, first, rows, got, stride,
						 false, scratch);
				assert_memory_equal(got, expected + first * stride, rows * stride * sizeof *got);
			}
		}
		/* One tile alone, added to what is there. */
		for (uint32_t r = 0; r < ROWS; r++)
			for (int l = 0; l < 16; l++)
				got[r * stride + (size_t)l] = 1.5f;
		paths[p]->matmul(&matrix, 1, 1, &a, 0, ROWS, got, stride, true, scratch);
		for (uint32_t r = 0; r < ROWS; r++)
			for (size_t l = 0; l < 16; l++)
				assert_true(got[r * stride + l] == 1.5f + expected[r * stride + 16 + l]);
	}
	free((void *)tensor.data);
	free_activations(&a);
	free(scratch);
	free(data);
	free(expected);
	free(got);
}

static void test_matmul(void **state)
{
	static const enum tensor_type types[] = {
		TENSOR_F32,  TENSOR_F16,  TENSOR_BF16, TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0,
		TENSOR_Q5_1, TENSOR_Q8_0, TENSOR_Q4_K, TENSOR_Q5_K, TENSOR_Q6_K,
	};
	(void)state;
	for (size_t i = 0; i < ARRAY_COUNT(types); i++) {
		matmul_type(types[i], 80, 512);
		matmul_type(types[i], 39, 256); /* a tile partly filled */
	}
}

/* Extreme integers: the largest sums of every type must not wrap in 16 bits on any path. */
static void test_matmul_extremes(void **state)
{
	(void)state;
	for (int flip = 0; flip < 4; flip++) {
		float *x = malloc(256 * sizeof *x);
		int8_t q[256];
		float da[8], sa[8], y[16], expected[16];
		int32_t sum[8];
		uint8_t row[16 * 8 * 34], data[8 * 544] __attribute__((aligned(64)));
		struct tensor tensor = { .type = TENSOR_Q8_0, .column_count = 256, .row_count = 16, .data = row };
		struct matrix matrix;
		for (int i = 0; i < 256; i++)
			x[i] = flip & 1 ? -1.0f : 1.0f;
		for (int b = 0; b < 16 * 8; b++) {
			uint16_t one = half_from_f32(1.0f);
			memcpy(row + 34 * b, &one, 2);
			memset(row + 34 * b + 2, flip & 2 ? 0x80 : 0x7f, 32); /* -128 or 127 */
		}
		cpu_kernels_plain.quantise(x, 256, q, da, sa, sum);
		struct activations a = { .q = q, .da = da, .sa = sa, .sum = sum, .q_stride = 256, .b_stride = 8 };
		assert_int_equal(tile_plan(&tensor, &matrix), 0);
		tile_pack(&tensor, &matrix, 0, 1, data);
		matrix.data = data;
		cpu_kernels_plain.matmul(&matrix, 0, 1, &a, 0, 1, expected, 16, false, NULL);
		double value = (flip & 1 ? -1.0 : 1.0) * (flip & 2 ? -128.0 : 127.0) * 256;
		assert_true(fabs((double)expected[0] - value) < 0.1);
		for (uint32_t p = 0; p < path_count; p++) {
			paths[p]->matmul(&matrix, 0, 1, &a, 0, 1, y, 16, false, NULL);
			assert_memory_equal(y, expected, sizeof y);
		}
		free(x);
	}
}

struct attention_case {
	uint32_t dim, heads, position; /* of the last query */
	uint32_t rows;                 /* positions */
};

static void fill_split(struct attention_split *split, const uint16_t *k, const uint16_t *v, uint32_t dim,
		       uint32_t first, uint32_t tokens)
{
	*split = (struct attention_split){ .head_dim = dim, .first = first,
					   .count = MIN(SPLIT_TOKENS, tokens - first) };
	for (uint32_t c = 0; c * 16 < split->count; c++) {
		split->k[c] = k + (size_t)(first / 16 + c) * 16 * dim;
		split->v[c] = v + (size_t)(first + 16 * c) * dim;
	}
}

/* Decode, one position at a time; out [row][head][dim]. */
static void attend_decode(const struct cpu_kernels *kernels, const struct attention_case *c, const float *q,
			  const uint16_t *k, const uint16_t *v, float *scratch, float *out)
{
	for (uint32_t r = 0; r < c->rows; r++) {
		uint32_t position = c->position - c->rows + 1 + r;
		struct attention_query queries[64];
		struct attention_state sums[64], later[64];
		float *outs = malloc(2ull * 64 * c->dim * sizeof *outs);
		for (uint32_t g = 0; g < c->heads; g++) {
			queries[g] = (struct attention_query){ q + (r * c->heads + g) * c->dim, position };
			sums[g].out = outs + g * c->dim;
			later[g].out = outs + (64 + g) * c->dim;
		}
		for (uint32_t first = 0; first <= position; first += SPLIT_TOKENS) {
			struct attention_split split;
			fill_split(&split, k, v, c->dim, first, position + 1);
			kernels->attention_decode(&split, queries, c->heads, first ? later : sums, scratch);
			for (uint32_t g = 0; first && g < c->heads; g++)
				kernels->attention_merge(&sums[g], &later[g], c->dim);
		}
		for (uint32_t g = 0; g < c->heads; g++)
			kernels->attention_finish(&sums[g], c->dim, out + (r * c->heads + g) * c->dim);
		free(outs);
	}
}

static void attend_prefill(const struct cpu_kernels *kernels, const struct attention_case *c, const float *q,
			   const uint16_t *k, const uint16_t *v, float *scratch, float *out)
{
	uint32_t count = c->rows * c->heads;
	struct attention_query queries[ATTENTION_ROWS];
	struct attention_state states[ATTENTION_ROWS];
	float *outs = malloc((size_t)count * c->dim * sizeof *outs);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t position = c->position - c->rows + 1 + i / c->heads;
		queries[i] = (struct attention_query){ q + i * c->dim, position };
		states[i].out = outs + i * c->dim;
	}
	for (uint32_t first = 0; first <= c->position; first += SPLIT_TOKENS) {
		struct attention_split split;
		uint32_t skip = 0;
		fill_split(&split, k, v, c->dim, first, c->position + 1);
		while (queries[skip].position < first)
			skip++;
		kernels->attention_prefill(&split, queries + skip, count - skip, states + skip, scratch);
	}
	for (uint32_t i = 0; i < count; i++)
		kernels->attention_finish(&states[i], c->dim, out + i * c->dim);
	free(outs);
}

static void attend_twin(const struct attention_case *c, const float *q, const uint16_t *k,
			const uint16_t *v, uint32_t i, double *ret_out)
{
	uint32_t tokens = c->position - c->rows + 2 + i / c->heads, dim = c->dim;
	double max = -INFINITY, sum = 0, *scores = malloc(tokens * sizeof *scores);
	for (uint32_t t = 0; t < tokens; t++) {
		scores[t] = 0;
		for (uint32_t d = 0; d < dim; d++)
			scores[t] += (double)q[i * dim + d] *
				     (double)half_to_f32(k[((size_t)t / 16 * dim + d) * 16 + t % 16]);
		max = fmax(max, scores[t]);
	}
	memset(ret_out, 0, dim * sizeof *ret_out);
	for (uint32_t t = 0; t < tokens; t++) {
		sum += exp(scores[t] - max);
		for (uint32_t d = 0; d < dim; d++)
			ret_out[d] += exp(scores[t] - max) * (double)half_to_f32(v[(size_t)t * dim + d]);
	}
	for (uint32_t d = 0; d < dim; d++)
		ret_out[d] /= sum;
	free(scores);
}

static void attention_one(const struct attention_case *c)
{
	uint32_t tokens = ALIGN_UP(c->position + 1, 16u), count = c->rows * c->heads;
	size_t bytes = (size_t)count * c->dim * sizeof(float), halves = (size_t)tokens * c->dim;
	uint16_t *k = malloc(halves * 2), *v = calloc(halves, 2);
	float *q = malloc(bytes), *expected = malloc(bytes), *got = malloc(bytes);
	float *scratch = malloc(cpu_attention_scratch_floats(c->dim) * sizeof *scratch);
	double *twin = malloc(c->dim * sizeof *twin);
	for (size_t i = 0; i < halves; i++) {
		k[i] = half_from_f32((float)(int)random_below(2001) * 1e-3f - 1);
		if (i < (size_t)(c->position + 1) * c->dim)
			v[i] = half_from_f32((float)(int)random_below(2001) * 1e-3f - 1);
	}
	for (size_t i = 0; i < (size_t)count * c->dim; i++)
		q[i] = ((float)(int)random_below(2001) * 1e-3f - 1) * 0.7f;
	attend_decode(&cpu_kernels_plain, c, q, k, v, scratch, expected);
	for (uint32_t i = 0; i < count; i += 5) {
		attend_twin(c, q, k, v, i, twin);
		for (uint32_t d = 0; d < c->dim; d++)
			assert_true(fabs(twin[d] - (double)expected[i * c->dim + d]) < 1e-5);
	}
	attend_prefill(&cpu_kernels_plain, c, q, k, v, scratch, got);
	assert_memory_equal(got, expected, bytes);
	for (uint32_t p = 0; p < path_count; p++) {
		memset(got, 0xff, bytes);
		attend_decode(paths[p], c, q, k, v, scratch, got);
		assert_memory_equal(got, expected, bytes);
		memset(got, 0xff, bytes);
		attend_prefill(paths[p], c, q, k, v, scratch, got);
		assert_memory_equal(got, expected, bytes);
	}
	free(k);
	free(v);
	free(q);
	free(expected);
	free(got);
	free(scratch);
	free(twin);
}

static void test_attention(void **state)
{
	static const struct attention_case cases[] = {
		{ 64, 3, 0, 1 },    { 64, 3, 15, 16 },	 { 64, 3, 63, 64 },   { 64, 3, 300, 64 },
		{ 64, 3, 255, 10 }, { 64, 3, 256, 2 },	 { 64, 3, 1000, 33 }, { 16, 1, 50, 20 },
		{ 16, 2, 520, 9 },  { 32, 4, 270, 48 },	 { 48, 5, 100, 13 },  { 80, 1, 260, 7 },
		{ 96, 6, 511, 3 },  { 128, 8, 513, 24 }, { 256, 2, 30, 5 },   { 64, 7, 17, 4 },
	};
	(void)state;
	for (size_t i = 0; i < ARRAY_COUNT(cases); i++)
		attention_one(&cases[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_half),	 cmocka_unit_test(test_real),
		cmocka_unit_test(test_rows),	 cmocka_unit_test(test_rope),
		cmocka_unit_test(test_matmul),	 cmocka_unit_test(test_matmul_extremes),
		cmocka_unit_test(test_attention),
	};
	for (size_t i = 0; i < ARRAY_COUNT(isas); i++) {
		paths[path_count] = cpu_kernels_find(isas[i]);
		if (paths[path_count])
			printf("comparing %s with plain\n", paths[path_count++]->name);
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
