/*
 * Products of quantised weights with int8 activations; formula and layouts in kernels.h.
 * Compiled once per instruction set.
 *
 * Two forms give the same bits, since only the order of the two float operations per block is
 * law. *Direct* takes nibbles apart in registers, for few rows: the weight stream is the limit.
 * *Unpacked* first widens two tiles (bytes, f32 scales and minima) into L1/L2 scratch and then
 * runs all rows over them, six at a time: 12 sums in registers, and the float part (4 of 12
 * vector operations per 512 products) is the limit. Measured on one core with VNNI: 80-110 and
 * 160-190 GMAC/s.
 */
#include "engine/cpu/kernels_impl.h"

#if defined(VEC_VNNI) || defined(VEC_AVX512)
#define DIRECT_ROWS 8
#define UNPACK_FROM 8 /* rows at which unpacking pays */
#elif defined(VEC_AVX2)
#define DIRECT_ROWS 4
#define UNPACK_FROM UINT32_MAX
#else
#define DIRECT_ROWS 1
#define UNPACK_FROM UINT32_MAX
#endif
#define UNPACK_ROWS 6
#define UNPACK_BLOCK_BYTES 640 /* 512 weights, 16 f32 scales, 16 f32 minima */

/* The hardware prefetcher stops at pages and loses the race with few rows. */
#define PREFETCH_BYTES 2560

#define UNROLL _Pragma("GCC unroll 16")

static const size_t tile_weight_bytes[] = {
	[TILE_N4] = 256, [TILE_N4F] = 256, [TILE_U5F] = 512, [TILE_S8] = 512, [TILE_U6] = 512,
};

/* Constants, so that the loops over a block unroll. */
INLINE size_t kind_block_bytes(const int kind)
{
	return kind == TILE_N4 ? 320 : kind == TILE_N4F ? 384 : kind == TILE_U5F ? 640 :
	       kind == TILE_S8 ? 544 : 608;
}

INLINE int kind_bits(const int kind)
{
	return kind == TILE_S8 ? 8 : kind == TILE_U6 ? 6 : kind == TILE_U5F ? 5 : 4;
}

INLINE b64 block_vector(const int kind, const uint8_t *block, int j)
{
	if (kind == TILE_N4 || kind == TILE_N4F) {
		b64 pair = b_load(block + 64 * (j / 2));
		return j % 2 ? b_high(pair) : b_low(pair);
	}
	return b_load(block + 64 * j);
}

INLINE v16 block_scale(const int kind, const uint8_t *block)
{
	if (kind == TILE_N4 || kind == TILE_S8)
		return v_load_f16((const uint16_t *)(block + tile_weight_bytes[kind]));
	return v_load((const float *)(block + tile_weight_bytes[kind]));
}

INLINE v16 block_minimum(const int kind, const uint8_t *block)
{
	if (kind == TILE_N4)
		return v_load_f16((const uint16_t *)(block + 256 + 32));
	return v_load((const float *)(block + tile_weight_bytes[kind] + 64));
}

INLINE bool kind_has_minimum(const int kind)
{
	return kind != TILE_S8 && kind != TILE_U6;
}

INLINE void store_row(float *y, v16 value, bool add)
{
	v_store(y, add ? v_add(v_load(y), value) : value);
}

INLINE void prefetch_block(const uint8_t *block, const size_t bytes)
{
	UNROLL for (size_t at = 0; at < bytes; at += 64)
		__builtin_prefetch(block + PREFETCH_BYTES + at, 0, 2);
}

/* One tile, @rows rows of activations. */
INLINE void direct_tile(const int kind, const int rows, const struct matrix *w, const uint8_t *block,
			const struct activations *x, uint32_t row, float *y, size_t y_stride, bool add)
{
	const int bits = kind_bits(kind);
	const int8_t *q = x->q + row * x->q_stride;
	const float *da = x->da + row * x->b_stride, *sa = x->sa + row * x->b_stride;
	const int32_t *sum = x->sum + row * x->b_stride;
	v16 acc[DIRECT_ROWS];
	UNROLL for (int t = 0; t < rows; t++)
		acc[t] = v_zero();
	for (uint32_t b = 0; b < w->block_count; b++, block += kind_block_bytes(kind)) {
		dot16 dot[DIRECT_ROWS];
		prefetch_block(block, kind_block_bytes(kind));
		UNROLL for (int t = 0; t < rows; t++)
			dot[t] = dot_start(sum[t * x->b_stride + b], bits);
		UNROLL for (int j = 0; j < 8; j++) {
			b64 vector = block_vector(kind, block, j);
			UNROLL for (int t = 0; t < rows; t++)
				dot[t] = dot_step(dot[t], vector, q + t * x->q_stride + b * BLOCK, j, bits);
		}
		v16 scale = block_scale(kind, block);
		UNROLL for (int t = 0; t < rows; t++) {
			v16 factor = v_mul(scale, v_set1(da[t * x->b_stride + b]));
			acc[t] = v_fma(v_from_i32(dot_end(dot[t])), factor, acc[t]);
		}
		if (kind_has_minimum(kind)) {
			v16 minimum = block_minimum(kind, block);
			UNROLL for (int t = 0; t < rows; t++)
				acc[t] = v_fma(minimum, v_set1(sa[t * x->b_stride + b]), acc[t]);
		}
	}
	UNROLL for (int t = 0; t < rows; t++)
		store_row(y + t * y_stride, acc[t], add);
}

/* Q6_K: two sub-blocks of 16 with integer scales; w = q - 32. */
INLINE i16 u6_half(const uint8_t *block, const int8_t *q, int half)
{
	const uint8_t offset_bytes[64] = {
		32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32,
		32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32,
		32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32,
		32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32,
	};
	b64 offset = b_load(offset_bytes);
	dot16 dot = dot_start(0, 6), shift = dot_start(0, 6);
	UNROLL for (int j = 0; j < 4; j++) {
		dot = dot_step(dot, b_load(block + 256 * half + 64 * j), q + 16 * half, j, 6);
		shift = dot_step(shift, offset, q + 16 * half, j, 6);
	}
	i16 value = i_sub(dot_end(dot), dot_end(shift));
	return i_mul(value, i_load_i8((const int8_t *)block + 512 + 64 + 16 * half));
}

static void u6_tile(const struct matrix *w, const uint8_t *block, const struct activations *x,
		    uint32_t row, float *y, bool add)
{
	const int8_t *q = x->q + row * x->q_stride;
	const float *da = x->da + row * x->b_stride;
	v16 acc = v_zero();
	for (uint32_t b = 0; b < w->block_count; b++, block += w->block_bytes, q += BLOCK) {
		i16 dot = i_add(u6_half(block, q, 0), u6_half(block, q, 1));
		v16 factor = v_mul(block_scale(TILE_U6, block), v_set1(da[b]));
		acc = v_fma(v_from_i32(dot), factor, acc);
	}
	store_row(y, acc, add);
}

INLINE void direct(const int kind, const struct matrix *w, const uint8_t *tile,
		   const struct activations *x, uint32_t row, uint32_t row_end, float *y,
		   size_t y_stride, bool add)
{
	for (; row + DIRECT_ROWS <= row_end; row += DIRECT_ROWS, y += DIRECT_ROWS * y_stride)
		direct_tile(kind, DIRECT_ROWS, w, tile, x, row, y, y_stride, add);
#define REST(n)                                                                                  \
	case n:                                                                                  \
		direct_tile(kind, n < DIRECT_ROWS ? n : DIRECT_ROWS, w, tile, x, row, y, y_stride, \
			    add);                                                                \
		break
	switch (row_end - row) {
		REST(1);
#if DIRECT_ROWS > 2
		REST(2);
		REST(3);
#endif
#if DIRECT_ROWS > 4
		REST(4);
		REST(5);
		REST(6);
		REST(7);
#endif
	}
#undef REST
}

static void direct_any(const struct matrix *w, const uint8_t *tile, const struct activations *x,
		       uint32_t row, uint32_t row_end, float *y, size_t y_stride, bool add)
{
	switch (w->kind) {
	case TILE_N4:
		direct(TILE_N4, w, tile, x, row, row_end, y, y_stride, add);
		break;
	case TILE_N4F:
		direct(TILE_N4F, w, tile, x, row, row_end, y, y_stride, add);
		break;
	case TILE_U5F:
		direct(TILE_U5F, w, tile, x, row, row_end, y, y_stride, add);
		break;
	case TILE_S8:
		direct(TILE_S8, w, tile, x, row, row_end, y, y_stride, add);
		break;
	default:
		for (; row < row_end; row++, y += y_stride)
			u6_tile(w, tile, x, row, y, add);
	}
}

#if defined(VEC_VNNI) || defined(VEC_AVX512)

INLINE void unpack_tile(const int kind, const struct matrix *w, const uint8_t *block, uint8_t *to,
			size_t to_stride)
{
	for (uint32_t b = 0; b < w->block_count; b++, block += kind_block_bytes(kind), to += to_stride) {
		prefetch_block(block, kind_block_bytes(kind));
		UNROLL for (int j = 0; j < 8; j++)
			b_store(to + 64 * j, block_vector(kind, block, j));
		v_store((float *)(to + 512), block_scale(kind, block));
		if (kind_has_minimum(kind))
			v_store((float *)(to + 576), block_minimum(kind, block));
	}
}

static void unpack_any(const struct matrix *w, const uint8_t *tile, uint8_t *to, size_t to_stride)
{
	switch (w->kind) {
	case TILE_N4:
		unpack_tile(TILE_N4, w, tile, to, to_stride);
		break;
	case TILE_N4F:
		unpack_tile(TILE_N4F, w, tile, to, to_stride);
		break;
	case TILE_U5F:
		unpack_tile(TILE_U5F, w, tile, to, to_stride);
		break;
	default:
		unpack_tile(TILE_S8, w, tile, to, to_stride);
	}
}

/* @tiles unpacked tiles side by side in each block of @from, @rows rows. */
INLINE void unpacked_rows(const int bits, const bool minimum, const int tiles, const int rows,
			  uint32_t block_count, const uint8_t *from, const struct activations *x,
			  uint32_t row, float *y, size_t y_stride, bool add)
{
	const int8_t *q = x->q + row * x->q_stride;
	const float *da = x->da + row * x->b_stride, *sa = x->sa + row * x->b_stride;
	const int32_t *sum = x->sum + row * x->b_stride;
	v16 acc[2][UNPACK_ROWS];
	UNROLL for (int n = 0; n < tiles; n++)
		UNROLL for (int t = 0; t < rows; t++)
			acc[n][t] = v_zero();
	for (uint32_t b = 0; b < block_count; b++, from += tiles * UNPACK_BLOCK_BYTES) {
		dot16 dot[2][UNPACK_ROWS];
		UNROLL for (int n = 0; n < tiles; n++)
			UNROLL for (int t = 0; t < rows; t++)
				dot[n][t] = dot_start(sum[t * x->b_stride + b], bits);
		UNROLL for (int j = 0; j < 8; j++) {
			b64 vector[2];
			UNROLL for (int n = 0; n < tiles; n++)
				vector[n] = b_load(from + n * UNPACK_BLOCK_BYTES + 64 * j);
			UNROLL for (int t = 0; t < rows; t++)
				UNROLL for (int n = 0; n < tiles; n++)
					dot[n][t] = dot_step(dot[n][t], vector[n],
							     q + t * x->q_stride + b * BLOCK, j, bits);
		}
		UNROLL for (int n = 0; n < tiles; n++) {
			const float *scales = (const float *)(from + n * UNPACK_BLOCK_BYTES + 512);
			v16 scale = v_load(scales), low = minimum ? v_load(scales + 16) : v_zero();
			UNROLL for (int t = 0; t < rows; t++) {
				v16 factor = v_mul(scale, v_set1(da[t * x->b_stride + b]));
				acc[n][t] = v_fma(v_from_i32(dot_end(dot[n][t])), factor, acc[n][t]);
				if (minimum)
					acc[n][t] = v_fma(low, v_set1(sa[t * x->b_stride + b]), acc[n][t]);
			}
		}
	}
	UNROLL for (int n = 0; n < tiles; n++)
		UNROLL for (int t = 0; t < rows; t++)
			store_row(y + t * y_stride + 16 * n, acc[n][t], add);
}

INLINE void unpacked(const int bits, const bool minimum, const int tiles, uint32_t block_count,
		     const uint8_t *from, const struct activations *x, uint32_t row, uint32_t row_end,
		     float *y, size_t y_stride, bool add)
{
	for (; row + UNPACK_ROWS <= row_end; row += UNPACK_ROWS, y += UNPACK_ROWS * y_stride)
		unpacked_rows(bits, minimum, tiles, UNPACK_ROWS, block_count, from, x, row, y, y_stride,
			      add);
#define REST(n)                                                                                  \
	case n:                                                                                  \
		unpacked_rows(bits, minimum, tiles, n, block_count, from, x, row, y, y_stride, add); \
		break
	switch (row_end - row) {
		REST(1);
		REST(2);
		REST(3);
		REST(4);
		REST(5);
	}
#undef REST
}

static void unpacked_any(const struct matrix *w, int tiles, const uint8_t *from,
			 const struct activations *x, uint32_t row, uint32_t row_end, float *y,
			 size_t y_stride, bool add)
{
	uint32_t count = w->block_count;
	int bits = kind_bits((int)w->kind);
	if (bits == 8 && tiles == 2)
		unpacked(8, false, 2, count, from, x, row, row_end, y, y_stride, add);
	else if (bits == 8)
		unpacked(8, false, 1, count, from, x, row, row_end, y, y_stride, add);
	else if (bits == 5 && tiles == 2)
		unpacked(5, true, 2, count, from, x, row, row_end, y, y_stride, add);
	else if (bits == 5)
		unpacked(5, true, 1, count, from, x, row, row_end, y, y_stride, add);
	else if (tiles == 2)
		unpacked(4, true, 2, count, from, x, row, row_end, y, y_stride, add);
	else
		unpacked(4, true, 1, count, from, x, row, row_end, y, y_stride, add);
}

#endif

void KERNEL(matmul)(const struct matrix *w, uint32_t tile_first, uint32_t tile_count,
		    const struct activations *x, uint32_t row_first, uint32_t row_count, float *y,
		    size_t y_stride, bool add, uint8_t *scratch)
{
	if (tile_is_float(w->kind)) {
		KERNEL(matmul_float)(w, tile_first, tile_count, x, row_first, row_count, y, y_stride, add);
		return;
	}
	const uint8_t *tile = w->data + tile_first * w->tile_bytes;
	uint32_t row_end = row_first + row_count;
#if defined(VEC_VNNI) || defined(VEC_AVX512)
	if (row_count >= UNPACK_FROM && w->kind != TILE_U6) {
		uint8_t *to = (uint8_t *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
		for (uint32_t i = 0; i < tile_count; i += 2, y += 32) {
			int tiles = tile_count - i >= 2 ? 2 : 1;
			for (int n = 0; n < tiles; n++, tile += w->tile_bytes)
				unpack_any(w, tile, to + n * UNPACK_BLOCK_BYTES,
					   (size_t)tiles * UNPACK_BLOCK_BYTES);
			unpacked_any(w, tiles, to, x, row_first, row_end, y, y_stride, add);
		}
		return;
	}
#else
	(void)scratch;
#endif
	for (uint32_t i = 0; i < tile_count; i++, tile += w->tile_bytes, y += 16)
		direct_any(w, tile, x, row_first, row_end, y, y_stride, add);
}
