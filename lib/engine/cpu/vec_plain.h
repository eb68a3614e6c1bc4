/* vec.h in plain C: the meaning of each operation, and the path for CPUs without AVX2. fmaf()
 * is exact everywhere, an instruction where the compiler may use it and libm's otherwise. */
#ifndef BATON_ENGINE_CPU_VEC_PLAIN_H
#define BATON_ENGINE_CPU_VEC_PLAIN_H

#include "engine/half.h"

typedef struct {
	float f[16];
} v16;
typedef struct {
	int32_t i[16];
} i16;
typedef struct {
	uint8_t b[64];
} b64;

#define LANES(expression)                                                                        \
	do {                                                                                     \
		v16 r;                                                                           \
		for (int l = 0; l < 16; l++)                                                     \
			r.f[l] = (expression);                                                   \
		return r;                                                                        \
	} while (0)
#define ILANES(expression)                                                                       \
	do {                                                                                     \
		i16 r;                                                                           \
		for (int l = 0; l < 16; l++)                                                     \
			r.i[l] = (expression);                                                   \
		return r;                                                                        \
	} while (0)

INLINE v16 v_load(const float *p) { LANES(p[l]); }
INLINE void v_store(float *p, v16 a) { memcpy(p, a.f, sizeof a.f); }
INLINE v16 v_set1(float a) { LANES(a); }
INLINE v16 v_zero(void) { LANES(0.0f); }
INLINE v16 v_add(v16 a, v16 b) { LANES(a.f[l] + b.f[l]); }
INLINE v16 v_sub(v16 a, v16 b) { LANES(a.f[l] - b.f[l]); }
INLINE v16 v_mul(v16 a, v16 b) { LANES(a.f[l] * b.f[l]); }
INLINE v16 v_div(v16 a, v16 b) { LANES(a.f[l] / b.f[l]); }
INLINE v16 v_fma(v16 a, v16 b, v16 c) { LANES(fmaf(a.f[l], b.f[l], c.f[l])); }
/* As maxps and minps: the second operand where the comparison fails (NaN, equal zeros). */
INLINE v16 v_max(v16 a, v16 b) { LANES(a.f[l] > b.f[l] ? a.f[l] : b.f[l]); }
INLINE v16 v_min(v16 a, v16 b) { LANES(a.f[l] < b.f[l] ? a.f[l] : b.f[l]); }
INLINE v16 v_abs(v16 a) { LANES(f32_from_bits(f32_bits(a.f[l]) & 0x7fffffffu)); }
INLINE v16 v_load_f16(const uint16_t *p) { LANES(half_to_f32(p[l])); }
INLINE void v_store_f16(uint16_t *p, v16 a)
{
	for (int l = 0; l < 16; l++)
		p[l] = half_from_f32(a.f[l]);
}
INLINE v16 v_load_bf16(const uint16_t *p) { LANES(f32_from_bits((uint32_t)p[l] << 16)); }

/* Round to nearest even; what does not fit becomes INT32_MIN, as cvtps2dq gives it. */
INLINE i16 v_to_i32(v16 a)
{
	ILANES(fabsf(a.f[l]) < 2147483648.0f ? (int32_t)rintf(a.f[l]) : INT32_MIN);
}
INLINE v16 v_from_i32(i16 a) { LANES((float)a.i[l]); }
INLINE v16 v_pow2(i16 n) { LANES(f32_from_bits((uint32_t)(n.i[l] + 127) << 23)); }
INLINE v16 v_first(v16 a, v16 b, uint32_t count)
{
	LANES((uint32_t)l < count ? a.f[l] : b.f[l]);
}
INLINE v16 v_swap_pairs(v16 a) { LANES(a.f[l ^ 1]); }

INLINE float v_fold_add(v16 a)
{
	for (int width = 8; width; width /= 2)
		for (int l = 0; l < width; l++)
			a.f[l] = a.f[l] + a.f[l + width];
	return a.f[0];
}

INLINE float v_fold_max(v16 a)
{
	for (int width = 8; width; width /= 2)
		for (int l = 0; l < width; l++)
			a.f[l] = a.f[l] > a.f[l + width] ? a.f[l] : a.f[l + width];
	return a.f[0];
}

INLINE i16 i_zero(void) { ILANES(0); }
INLINE i16 i_set1(int32_t a) { ILANES(a); }
INLINE i16 i_add(i16 a, i16 b) { ILANES(a.i[l] + b.i[l]); }
INLINE i16 i_sub(i16 a, i16 b) { ILANES(a.i[l] - b.i[l]); }
INLINE i16 i_mul(i16 a, i16 b) { ILANES(a.i[l] * b.i[l]); }
INLINE i16 i_load_i8(const int8_t *p) { ILANES(p[l]); }
INLINE int32_t i_fold_add(i16 a)
{
	int32_t sum = 0;
	for (int l = 0; l < 16; l++)
		sum += a.i[l];
	return sum;
}
INLINE void i_store_i8(int8_t *p, i16 a)
{
	for (int l = 0; l < 16; l++)
		p[l] = (int8_t)(a.i[l] < -128 ? -128 : a.i[l] > 127 ? 127 : a.i[l]);
}

INLINE b64 b_load(const void *p)
{
	b64 r;
	memcpy(r.b, p, sizeof r.b);
	return r;
}
INLINE void b_store(void *p, b64 a) { memcpy(p, a.b, sizeof a.b); }
INLINE b64 b_low(b64 a)
{
	for (int l = 0; l < 64; l++)
		a.b[l] &= 15;
	return a;
}
INLINE b64 b_high(b64 a)
{
	for (int l = 0; l < 64; l++)
		a.b[l] >>= 4;
	return a;
}

/* Dot of one 32-block: w[j] holds weights 4j..4j+3 of sixteen rows; 8 bits stand for w + 128. */
typedef i16 dot16;
INLINE dot16 dot_start(int32_t correction, int bits) { return i_set1(bits == 8 ? correction : 0); }
INLINE dot16 dot_step(dot16 acc, b64 w, const int8_t *x, int j, int bits)
{
	(void)bits;
	x += 4 * j;
	for (int l = 0; l < 16; l++)
		acc.i[l] += w.b[4 * l] * x[0] + w.b[4 * l + 1] * x[1] + w.b[4 * l + 2] * x[2] +
			    w.b[4 * l + 3] * x[3];
	return acc;
}
INLINE i16 dot_end(dot16 acc) { return acc; }

#endif
