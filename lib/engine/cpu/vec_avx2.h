/* vec.h for AVX2 with FMA and F16C: two halves of eight lanes. */
#ifndef BATON_ENGINE_CPU_VEC_AVX2_H
#define BATON_ENGINE_CPU_VEC_AVX2_H

#include <immintrin.h>

typedef struct {
	__m256 lo, hi;
} v16;
typedef struct {
	__m256i lo, hi;
} i16;
typedef i16 b64;

#define V2(op, a, b) ((v16){ op((a).lo, (b).lo), op((a).hi, (b).hi) })
#define I2(op, a, b) ((i16){ op((a).lo, (b).lo), op((a).hi, (b).hi) })

INLINE v16 v_load(const float *p)
{
	return (v16){ _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8) };
}
INLINE void v_store(float *p, v16 a)
{
	_mm256_storeu_ps(p, a.lo);
	_mm256_storeu_ps(p + 8, a.hi);
}
INLINE v16 v_set1(float a) { return (v16){ _mm256_set1_ps(a), _mm256_set1_ps(a) }; }
INLINE v16 v_zero(void) { return (v16){ _mm256_setzero_ps(), _mm256_setzero_ps() }; }
INLINE v16 v_add(v16 a, v16 b) { return V2(_mm256_add_ps, a, b); }
INLINE v16 v_sub(v16 a, v16 b) { return V2(_mm256_sub_ps, a, b); }
INLINE v16 v_mul(v16 a, v16 b) { return V2(_mm256_mul_ps, a, b); }
INLINE v16 v_div(v16 a, v16 b) { return V2(_mm256_div_ps, a, b); }
INLINE v16 v_max(v16 a, v16 b) { return V2(_mm256_max_ps, a, b); }
INLINE v16 v_min(v16 a, v16 b) { return V2(_mm256_min_ps, a, b); }
INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
	return (v16){ _mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi) };
}
INLINE v16 v_abs(v16 a)
{
	__m256 sign = _mm256_set1_ps(-0.0f);
	return (v16){ _mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi) };
}

INLINE v16 v_load_f16(const uint16_t *p)
{
	return (v16){ _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
		      _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))) };
}

INLINE void v_store_f16(uint16_t *p, v16 a)
{
	_mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
	_mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}

INLINE v16 v_load_bf16(const uint16_t *p)
{
	__m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
	__m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + 8)));
	return (v16){ _mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
		      _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16)) };
}

INLINE i16 v_to_i32(v16 a) { return (i16){ _mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi) }; }
INLINE v16 v_from_i32(i16 a)
{
	return (v16){ _mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi) };
}

INLINE v16 v_pow2(i16 n)
{
	__m256i bias = _mm256_set1_epi32(127);
	return (v16){ _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.lo, bias), 23)),
		      _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.hi, bias), 23)) };
}

INLINE v16 v_first(v16 a, v16 b, uint32_t count)
{
	__m256i limit = _mm256_set1_epi32((int)count);
	__m256i lo = _mm256_cmpgt_epi32(limit, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
	__m256i hi = _mm256_cmpgt_epi32(limit, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15));
	return (v16){ _mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(lo)),
		      _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(hi)) };
}

INLINE v16 v_swap_pairs(v16 a)
{
	return (v16){ _mm256_permute_ps(a.lo, 0xb1), _mm256_permute_ps(a.hi, 0xb1) };
}

INLINE float v_fold_add(v16 a)
{
	__m256 h = _mm256_add_ps(a.lo, a.hi);
	__m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
	q = _mm_add_ps(q, _mm_movehl_ps(q, q));
	return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}

INLINE float v_fold_max(v16 a)
{
	__m256 h = _mm256_max_ps(a.lo, a.hi);
	__m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
	q = _mm_max_ps(q, _mm_movehl_ps(q, q));
	return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

INLINE i16 i_zero(void) { return (i16){ _mm256_setzero_si256(), _mm256_setzero_si256() }; }
INLINE i16 i_set1(int32_t a) { return (i16){ _mm256_set1_epi32(a), _mm256_set1_epi32(a) }; }
INLINE i16 i_add(i16 a, i16 b) { return I2(_mm256_add_epi32, a, b); }
INLINE i16 i_sub(i16 a, i16 b) { return I2(_mm256_sub_epi32, a, b); }
INLINE i16 i_mul(i16 a, i16 b) { return I2(_mm256_mullo_epi32, a, b); }
INLINE i16 i_load_i8(const int8_t *p)
{
	return (i16){ _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)),
		      _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8))) };
}

INLINE int32_t i_fold_add(i16 a)
{
	__m256i h = _mm256_add_epi32(a.lo, a.hi);
	__m128i q = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
	q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4e));
	return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}

INLINE void i_store_i8(int8_t *p, i16 a)
{
	__m128i lo = _mm_packs_epi32(_mm256_castsi256_si128(a.lo), _mm256_extracti128_si256(a.lo, 1));
	__m128i hi = _mm_packs_epi32(_mm256_castsi256_si128(a.hi), _mm256_extracti128_si256(a.hi, 1));
	_mm_storeu_si128((__m128i *)p, _mm_packs_epi16(lo, hi));
}

INLINE b64 b_load(const void *p)
{
	return (b64){ _mm256_loadu_si256(p), _mm256_loadu_si256((const __m256i *)p + 1) };
}
INLINE void b_store(void *p, b64 a)
{
	_mm256_storeu_si256(p, a.lo);
	_mm256_storeu_si256((__m256i *)p + 1, a.hi);
}
INLINE b64 b_low(b64 a)
{
	__m256i mask = _mm256_set1_epi8(15);
	return (b64){ _mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask) };
}
INLINE b64 b_high(b64 a)
{
	return b_low((b64){ _mm256_srli_epi16(a.lo, 4), _mm256_srli_epi16(a.hi, 4) });
}

/*
 * Dot of one 32-block, as in vec_avx512.h: 16-bit sums are widened before they can overflow (each
 * step adds at most 2 (2^bits - 1) 127); 8 bits stand for w + 128, taken back to w here.
 */
typedef struct {
	i16 wide, narrow;
} dot16;

INLINE dot16 dot_start(int32_t correction, int bits)
{
	(void)correction;
	(void)bits;
	return (dot16){ i_zero(), i_zero() };
}

INLINE dot16 dot_step(dot16 acc, b64 w, const int8_t *x, int j, int bits)
{
	int32_t word;
	memcpy(&word, x + 4 * j, sizeof word);
	__m256i xb = _mm256_set1_epi32(word);
	i16 products;
	int steps = bits <= 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;
	if (bits == 8) {
		__m256i flip = _mm256_set1_epi8((char)0x80);
		w.lo = _mm256_xor_si256(w.lo, flip);
		w.hi = _mm256_xor_si256(w.hi, flip);
		products.lo = _mm256_maddubs_epi16(_mm256_abs_epi8(w.lo), _mm256_sign_epi8(xb, w.lo));
		products.hi = _mm256_maddubs_epi16(_mm256_abs_epi8(w.hi), _mm256_sign_epi8(xb, w.hi));
	} else {
		products.lo = _mm256_maddubs_epi16(w.lo, xb);
		products.hi = _mm256_maddubs_epi16(w.hi, xb);
	}
	acc.narrow = I2(_mm256_add_epi16, acc.narrow, products);
	if (j % steps == steps - 1) {
		__m256i ones = _mm256_set1_epi16(1);
		acc.wide.lo = _mm256_add_epi32(acc.wide.lo, _mm256_madd_epi16(acc.narrow.lo, ones));
		acc.wide.hi = _mm256_add_epi32(acc.wide.hi, _mm256_madd_epi16(acc.narrow.hi, ones));
		acc.narrow = i_zero();
	}
	return acc;
}

INLINE i16 dot_end(dot16 acc) { return acc.wide; }

#endif
