/* Row work: norm, quantise, SwiGLU, RoPE, storing K and V. Compiled once per instruction set. */
#include "engine/cpu/kernels_impl.h"

/* y = x / sqrt(mean(x^2) + epsilon) * weight; the sum in 16 lanes, folded 8, 4, 2, 1. */
void KERNEL(rms_norm)(const float *x, const float *weight, uint32_t count, float epsilon, float *y)
{
	v16 sum = v_zero();
	for (uint32_t i = 0; i < count; i += 16) {
		v16 a = v_load(x + i);
		sum = v_fma(a, a, sum);
	}
	float mean = v_fold_add(sum) / (float)count;
	v16 factor = v_set1(1.0f / sqrtf(mean + epsilon));
	for (uint32_t i = 0; i < count; i += 16)
		v_store(y + i, v_mul(v_mul(v_load(x + i), factor), v_load(weight + i)));
}

/* Per block of 32: da = max|x| / 127, q = rne(x * (127 / max|x|)), never -128. A block whose
 * largest value is below 2^-100 (or not finite) gets da = 0, so that the quotient stays finite. */
void KERNEL(quantise)(const float *x, uint32_t count, int8_t *q, float *da, float *sa, int32_t *sum)
{
	v16 limit = v_set1(127.0f), floor = v_set1(-127.0f);
	for (uint32_t b = 0; b < count / BLOCK; b++, x += BLOCK, q += BLOCK) {
		v16 lo = v_load(x), hi = v_load(x + 16);
		float max = v_fold_max(v_max(v_abs(lo), v_abs(hi)));
		bool zero = !(max >= 0x1p-100f && max <= F32_MAX);
		v16 inverse = v_set1(zero ? 0.0f : 127.0f / max);
		/* The clamp is for NaN only: it becomes -127 on every path. */
		i16 qlo = v_to_i32(v_min(v_max(v_mul(lo, inverse), floor), limit));
		i16 qhi = v_to_i32(v_min(v_max(v_mul(hi, inverse), floor), limit));
		i_store_i8(q, qlo);
		i_store_i8(q + 16, qhi);
		int32_t total = i_fold_add(i_add(qlo, qhi));
		da[b] = zero ? 0.0f : max / 127.0f;
		sa[b] = da[b] * (float)total;
		sum[b] = -128 * total;
	}
}

/* y = gate / (1 + exp(-gate)) * up */
void KERNEL(swiglu)(const float *gate, const float *up, uint32_t count, float *y)
{
	v16 one = v_set1(1.0f), zero = v_zero();
	for (uint32_t i = 0; i < count; i += 16) {
		v16 g = v_load(gate + i);
		v16 silu = v_div(g, v_add(one, v_exp(v_sub(zero, g))));
		v_store(y + i, v_mul(silu, v_load(up + i)));
	}
}

void KERNEL(rope)(float *x, uint32_t dim, uint32_t rope_dim, bool interleaved, const float *c,
		  const float *s)
{
	if (interleaved) {
		for (uint32_t i = 0; i < dim; i += 16) {
			v16 a = v_load(x + i);
			v16 turned = v_mul(v_swap_pairs(a), v_load(s + i));
			v_store(x + i, v_fma(a, v_load(c + i), turned));
		}
		return;
	}
	uint32_t half = rope_dim / 2;
	for (uint32_t i = 0; i < half; i++) {
		float a = x[i], b = x[i + half];
		x[i] = fmaf(a, c[i], b * s[i]);
		x[i + half] = fmaf(b, c[i + half], a * s[i + half]);
	}
}

void KERNEL(scale)(float *x, uint32_t count, float factor)
{
	for (uint32_t i = 0; i < count; i += 16)
		v_store(x + i, v_mul(v_load(x + i), v_set1(factor)));
}

void KERNEL(add)(float *x, const float *y, uint32_t count)
{
	for (uint32_t i = 0; i < count; i += 16)
		v_store(x + i, v_add(v_load(x + i), v_load(y + i)));
}

void KERNEL(store_kv)(const float *x, uint32_t count, uint16_t *y, uint32_t stride)
{
	v16 limit = v_set1(F16_MAX), floor = v_set1(-F16_MAX);
	for (uint32_t i = 0; i < count; i += 16) {
		v16 a = v_max(v_min(v_load(x + i), limit), floor);
		if (stride == 1) {
			v_store_f16(y + i, a);
			continue;
		}
		uint16_t half[16];
		v_store_f16(half, a);
		for (uint32_t l = 0; l < 16; l++)
			y[(size_t)(i + l) * stride] = half[l];
	}
}
