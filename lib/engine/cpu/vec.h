/*
 * Sixteen f32 lanes, written once, compiled per instruction set (VEC_PLAIN, VEC_AVX2, VEC_AVX512,
 * VEC_VNNI; meson gives one of them). Class `exact` rests on this file: every operation gives the
 * same bits on every path. Lane-wise IEEE operations do by themselves; folds have one fixed tree
 * (8, 4, 2, 1); conversions round to nearest even; integer dots are exact in any grouping.
 *
 * Legend: v16 sixteen floats; i16 sixteen int32; b64 sixty-four bytes (one tile vector: byte
 * 4r+i belongs to row r).
 */
#ifndef BATON_ENGINE_CPU_VEC_H
#define BATON_ENGINE_CPU_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline, unused))

INLINE float f32_from_bits(uint32_t bits)
{
	float value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

INLINE uint32_t f32_bits(float value)
{
	uint32_t bits;
	memcpy(&bits, &value, sizeof bits);
	return bits;
}

/* Largest finite f16; K and V are clamped to it, so that a masked token's V stays finite. */
#define F16_MAX 65504.0f
#define F32_MAX 0x1.fffffep127f

#if defined(VEC_AVX512) || defined(VEC_VNNI)
#include "engine/cpu/vec_avx512.h"
#elif defined(VEC_AVX2)
#include "engine/cpu/vec_avx2.h"
#else
#include "engine/cpu/vec_plain.h"
#endif

/*
 * exp(x), x clamped to [-87, 88]: n = rne(x log2 e), r = x - n ln 2 in two steps, a polynomial of
 * degree 6 in r, times 2^n. Relative error below 2e-7. Coefficients: Cephes expf (Moshier).
 */
INLINE v16 v_exp(v16 x)
{
	x = v_min(v_max(x, v_set1(-87.0f)), v_set1(88.0f));
	i16 n = v_to_i32(v_mul(x, v_set1(1.44269504088896341f)));
	v16 nf = v_from_i32(n);
	v16 r = v_fma(nf, v_set1(-0.693359375f), x);
	r = v_fma(nf, v_set1(2.12194440e-4f), r);
	v16 p = v_set1(1.9875691500e-4f);
	p = v_fma(p, r, v_set1(1.3981999507e-3f));
	p = v_fma(p, r, v_set1(8.3334519073e-3f));
	p = v_fma(p, r, v_set1(4.1665795894e-2f));
	p = v_fma(p, r, v_set1(1.6666665459e-1f));
	p = v_fma(p, r, v_set1(5.0000001201e-1f));
	p = v_fma(p, v_mul(r, r), v_add(r, v_set1(1.0f)));
	return v_mul(p, v_pow2(n));
}

INLINE float f32_exp(float x)
{
	float lanes[16];
	v_store(lanes, v_exp(v_set1(x)));
	return lanes[0];
}

#endif
