/* vec.h for AVX-512 F, BW, DQ, VL, with or without VNNI. */
#ifndef BATON_ENGINE_CPU_VEC_AVX512_H
#define BATON_ENGINE_CPU_VEC_AVX512_H

#include <immintrin.h>

typedef __m512 v16;
typedef __m512i i16;
typedef __m512i b64;

INLINE v16 v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void v_store(float *p, v16 a) { _mm512_storeu_ps(p, a); }
INLINE v16 v_set1(float a) { return _mm512_set1_ps(a); }
INLINE v16 v_zero(void) { return _mm512_setzero_ps(); }
INLINE v16 v_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
INLINE v16 v_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
INLINE v16 v_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
INLINE v16 v_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
INLINE v16 v_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
INLINE v16 v_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
INLINE v16 v_min(v16 a, v16 b) { return _mm512_min_ps(a, b); }
INLINE v16 v_abs(v16 a) { return _mm512_abs_ps(a); }

INLINE v16 v_load_f16(const uint16_t *p)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE void v_store_f16(uint16_t *p, v16 a)
{
	_mm256_storeu_si256((__m256i *)p,
			    _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

INLINE v16 v_load_bf16(const uint16_t *p)
{
	__m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
	return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

INLINE i16 v_to_i32(v16 a) { return _mm512_cvtps_epi32(a); }
INLINE v16 v_from_i32(i16 a) { return _mm512_cvtepi32_ps(a); }

INLINE v16 v_pow2(i16 n)
{
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}

/* Lanes below @count from @a, the others from @b. */
INLINE v16 v_first(v16 a, v16 b, uint32_t count)
{
	return _mm512_mask_blend_ps((__mmask16)(count >= 16 ? 0xffff : (1u << count) - 1), b, a);
}

INLINE v16 v_swap_pairs(v16 a) { return _mm512_permute_ps(a, 0xb1); }

INLINE float v_fold_add(v16 a)
{
	__m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
	__m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
	q = _mm_add_ps(q, _mm_movehl_ps(q, q));
	return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}

INLINE float v_fold_max(v16 a)
{
	__m256 h = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
	__m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
	q = _mm_max_ps(q, _mm_movehl_ps(q, q));
	return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

INLINE i16 i_zero(void) { return _mm512_setzero_si512(); }
INLINE i16 i_set1(int32_t a) { return _mm512_set1_epi32(a); }
INLINE i16 i_add(i16 a, i16 b) { return _mm512_add_epi32(a, b); }
INLINE i16 i_sub(i16 a, i16 b) { return _mm512_sub_epi32(a, b); }
INLINE i16 i_mul(i16 a, i16 b) { return _mm512_mullo_epi32(a, b); }
INLINE i16 i_load_i8(const int8_t *p)
{
	return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
}
INLINE int32_t i_fold_add(i16 a) { return _mm512_reduce_add_epi32(a); }
/* Values must lie in -128..127. */
INLINE void i_store_i8(int8_t *p, i16 a)
{
	_mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a));
}

INLINE b64 b_load(const void *p) { return _mm512_loadu_si512(p); }
INLINE void b_store(void *p, b64 a) { _mm512_storeu_si512(p, a); }
INLINE b64 b_low(b64 a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
INLINE b64 b_high(b64 a)
{
	return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15));
}

INLINE i16 b_broadcast4(const int8_t *x)
{
	int32_t word;
	memcpy(&word, x, sizeof word);
	return _mm512_set1_epi32(word);
}

/*
 * Dot of one 32-block: w[j] holds weights 4j..4j+3 of sixteen rows. @bits: an unsigned weight lies
 * below 1 << bits; 8 stands for w + 128 with w signed, where @correction is -128 * sum(x).
 */
#ifdef VEC_VNNI
typedef i16 dot16;
INLINE dot16 dot_start(int32_t correction, int bits)
{
	return bits == 8 ? i_set1(correction) : i_zero();
}
INLINE dot16 dot_step(dot16 acc, b64 w, const int8_t *x, int j, int bits)
{
	(void)bits;
	return _mm512_dpbusd_epi32(acc, w, b_broadcast4(x + 4 * j));
}
INLINE i16 dot_end(dot16 acc) { return acc; }
#else
/* 16-bit sums are widened before they can overflow: each step adds at most 2 (2^bits - 1) 127. */
typedef struct {
	__m512i wide, narrow;
} dot16;
INLINE dot16 dot_start(int32_t correction, int bits)
{
	(void)correction;
	(void)bits;
	return (dot16){ i_zero(), i_zero() };
}
INLINE dot16 dot_step(dot16 acc, b64 w, const int8_t *x, int j, int bits)
{
	__m512i xb = b_broadcast4(x + 4 * j);
	int steps = bits <= 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;
	if (bits == 8) { /* the sign of w goes to x */
		w = _mm512_xor_si512(w, _mm512_set1_epi8((char)0x80));
		xb = _mm512_mask_sub_epi8(xb, _mm512_movepi8_mask(w), i_zero(), xb);
		w = _mm512_abs_epi8(w);
	}
	acc.narrow = _mm512_add_epi16(acc.narrow, _mm512_maddubs_epi16(w, xb));
	if (j % steps == steps - 1) {
		acc.wide = i_add(acc.wide, _mm512_madd_epi16(acc.narrow, _mm512_set1_epi16(1)));
		acc.narrow = i_zero();
	}
	return acc;
}
INLINE i16 dot_end(dot16 acc) { return acc.wide; }
#endif

#endif
