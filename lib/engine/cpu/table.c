/* The table of one path. */
#include "engine/cpu/kernels_impl.h"

#if defined(VEC_VNNI)
#define NAME "vnni"
#define TABLE cpu_kernels_vnni
#elif defined(VEC_AVX512)
#define NAME "avx512"
#define TABLE cpu_kernels_avx512
#elif defined(VEC_AVX2)
#define NAME "avx2"
#define TABLE cpu_kernels_avx2
#else
#define NAME "plain"
#define TABLE cpu_kernels_plain
#endif

const struct cpu_kernels TABLE = {
	.name = NAME,
	.matmul = KERNEL(matmul),
	.rms_norm = KERNEL(rms_norm),
	.quantise = KERNEL(quantise),
	.swiglu = KERNEL(swiglu),
	.rope = KERNEL(rope),
	.scale = KERNEL(scale),
	.add = KERNEL(add),
	.store_kv = KERNEL(store_kv),
	.attention_decode = KERNEL(attention_decode),
	.attention_prefill = KERNEL(attention_prefill),
	.attention_merge = KERNEL(attention_merge),
	.attention_finish = KERNEL(attention_finish),
};
