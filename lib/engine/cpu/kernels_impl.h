/* Names of one path's kernels: KERNEL(matmul) is cpu_matmul_vnni in the VNNI library. */
#ifndef BATON_ENGINE_CPU_KERNELS_IMPL_H
#define BATON_ENGINE_CPU_KERNELS_IMPL_H

#include <stdbool.h>

#include "engine/cpu/kernels.h"
#include "engine/cpu/vec.h"

#if defined(VEC_VNNI)
#define KERNEL(name) cpu_##name##_vnni
#elif defined(VEC_AVX512)
#define KERNEL(name) cpu_##name##_avx512
#elif defined(VEC_AVX2)
#define KERNEL(name) cpu_##name##_avx2
#else
#define KERNEL(name) cpu_##name##_plain
#endif

void KERNEL(matmul)(const struct matrix *w, uint32_t tile_first, uint32_t tile_count,
		    const struct activations *x, uint32_t row_first, uint32_t row_count, float *y,
		    size_t y_stride, bool add, uint8_t *scratch);
void KERNEL(matmul_float)(const struct matrix *w, uint32_t tile_first, uint32_t tile_count,
			  const struct activations *x, uint32_t row_first, uint32_t row_count,
			  float *y, size_t y_stride, bool add);
void KERNEL(rms_norm)(const float *x, const float *weight, uint32_t count, float epsilon, float *y);
void KERNEL(quantise)(const float *x, uint32_t count, int8_t *q, float *da, float *sa, int32_t *sum);
void KERNEL(swiglu)(const float *gate, const float *up, uint32_t count, float *y);
void KERNEL(rope)(float *x, uint32_t dim, uint32_t rope_dim, bool interleaved, const float *c,
		  const float *s);
void KERNEL(scale)(float *x, uint32_t count, float factor);
void KERNEL(add)(float *x, const float *y, uint32_t count);
void KERNEL(store_kv)(const float *x, uint32_t count, uint16_t *y, uint32_t stride);
void KERNEL(attention_decode)(const struct attention_split *split,
			      const struct attention_query *queries, uint32_t query_count,
			      struct attention_state *states, float *scratch);
void KERNEL(attention_prefill)(const struct attention_split *split,
			       const struct attention_query *queries, uint32_t query_count,
			       struct attention_state *states, float *scratch);
void KERNEL(attention_merge)(struct attention_state *state, const struct attention_state *later,
			     uint32_t head_dim);
void KERNEL(attention_finish)(const struct attention_state *state, uint32_t head_dim, float *y);

#endif
