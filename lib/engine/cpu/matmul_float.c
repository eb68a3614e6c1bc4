/* Products of f32, f16 and bf16 weights with f32 activations: one fma per weight in rising order
 * of the column, sixteen outputs in the lanes. Compiled once per instruction set. */
#include "engine/cpu/kernels_impl.h"

#if defined(VEC_VNNI) || defined(VEC_AVX512)
#define FLOAT_ROWS 12
#elif defined(VEC_AVX2)
#define FLOAT_ROWS 4
#else
#define FLOAT_ROWS 1
#endif
#define UNROLL _Pragma("GCC unroll 16")

INLINE v16 weight_column(const int kind, const uint8_t *data, uint32_t k)
{
	if (kind == TILE_F32)
		return v_load((const float *)data + 16 * (size_t)k);
	if (kind == TILE_F16)
		return v_load_f16((const uint16_t *)data + 16 * (size_t)k);
	return v_load_bf16((const uint16_t *)data + 16 * (size_t)k);
}

INLINE void float_tile(const int kind, const int rows, const struct matrix *w, const uint8_t *data,
		       const struct activations *x, uint32_t row, float *y, size_t y_stride, bool add)
{
	const float *f = x->f + row * x->f_stride;
	v16 acc[FLOAT_ROWS];
	UNROLL for (int t = 0; t < rows; t++)
		acc[t] = v_zero();
	for (uint32_t k = 0; k < w->column_count; k++) {
		v16 weight = weight_column(kind, data, k);
		__builtin_prefetch(data + (16 * (size_t)k) * (kind == TILE_F32 ? 4 : 2) + 2048, 0, 2);
		UNROLL for (int t = 0; t < rows; t++)
			acc[t] = v_fma(weight, v_set1(f[t * x->f_stride + k]), acc[t]);
	}
	UNROLL for (int t = 0; t < rows; t++) {
		float *to = y + t * y_stride;
		v_store(to, add ? v_add(v_load(to), acc[t]) : acc[t]);
	}
}

INLINE void float_rows(const int kind, const struct matrix *w, const uint8_t *tile,
		       const struct activations *x, uint32_t row, uint32_t row_end, float *y,
		       size_t y_stride, bool add)
{
	for (; row + FLOAT_ROWS <= row_end; row += FLOAT_ROWS, y += FLOAT_ROWS * y_stride)
		float_tile(kind, FLOAT_ROWS, w, tile, x, row, y, y_stride, add);
#if FLOAT_ROWS > 4
	for (; row + 4 <= row_end; row += 4, y += 4 * y_stride)
		float_tile(kind, 4, w, tile, x, row, y, y_stride, add);
#endif
	for (; row < row_end; row++, y += y_stride)
		float_tile(kind, 1, w, tile, x, row, y, y_stride, add);
}

void KERNEL(matmul_float)(const struct matrix *w, uint32_t tile_first, uint32_t tile_count,
			  const struct activations *x, uint32_t row_first, uint32_t row_count,
			  float *y, size_t y_stride, bool add)
{
	const uint8_t *tile = w->data + tile_first * w->tile_bytes;
	uint32_t row_end = row_first + row_count;
	for (uint32_t i = 0; i < tile_count; i++, tile += w->tile_bytes, y += 16) {
		if (w->kind == TILE_F32)
			float_rows(TILE_F32, w, tile, x, row_first, row_end, y, y_stride, add);
		else if (w->kind == TILE_F16)
			float_rows(TILE_F16, w, tile, x, row_first, row_end, y, y_stride, add);
		else
			float_rows(TILE_BF16, w, tile, x, row_first, row_end, y, y_stride, add);
	}
}
