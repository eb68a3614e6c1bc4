/* The cpu engine's life: checks, choice of the path, weights, memory, threads. */
#include <cpuid.h>
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "engine/cpu/cpu.h"

static const struct {
	enum engine_isa isa;
	const struct cpu_kernels *kernels;
} paths[] = { /* the best first */
#ifdef __x86_64__
	{ ENGINE_ISA_VNNI, &cpu_kernels_vnni },
	{ ENGINE_ISA_AVX512, &cpu_kernels_avx512 },
	{ ENGINE_ISA_AVX2, &cpu_kernels_avx2 },
#endif
	{ ENGINE_ISA_PLAIN, &cpu_kernels_plain },
};

/* clang 14 does not know the name "f16c". */
static bool has_f16c(void)
{
	unsigned int eax, ebx, ecx, edx;
	return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

static bool cpu_has(enum engine_isa isa)
{
	bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
	bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
	switch (isa) {
	case ENGINE_ISA_VNNI:
		return avx512 && __builtin_cpu_supports("avx512vnni");
	case ENGINE_ISA_AVX512:
		return avx512;
	case ENGINE_ISA_AVX2:
		return avx2;
	default:
		return true;
	}
}

const struct cpu_kernels *cpu_kernels_find(enum engine_isa isa)
{
	for (size_t i = 0; i < ARRAY_COUNT(paths); i++)
		if ((isa == ENGINE_ISA_AUTO || isa == paths[i].isa) && cpu_has(paths[i].isa))
			return paths[i].kernels;
	return NULL;
}

static uint32_t allowed_cpus(void)
{
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof set, &set) < 0)
		return 1;
	return (uint32_t)MIN(MAX(CPU_COUNT(&set), 1), POOL_THREADS_MAX);
}

/* What the kernels can do; a sentence when the model is outside. */
static const char *model_objection(const struct model_config *m, const struct kv_shape *shape)
{
	if (m->head_dim % 16 || m->head_dim < 16 || m->head_dim > HEAD_DIM_MAX)
		return "the cpu engine needs head_dim to be a multiple of 16, at most 256";
	if (m->embedding % 16 || m->feed_forward % 16)
		return "the cpu engine needs embedding and feed_forward to be multiples of 16";
	if (!m->kv_head_count || m->head_count % m->kv_head_count ||
	    m->head_count / m->kv_head_count > ATTENTION_ROWS)
		return "the cpu engine needs the query heads to be 1 to 192 times the KV heads";
	if (!m->rope_dim || m->rope_dim % 2 || m->rope_dim > m->head_dim)
		return "the cpu engine needs rope_dim to be even and at most head_dim";
	if (kv_shape_layer_count(shape) != m->layer_count)
		return "the KV shape has another number of layers than the model";
	for (uint32_t g = 0; g < shape->group_count; g++) {
		const struct kv_group *group = &shape->groups[g];
		if (group->element_bytes != 2 || group->head_dim != m->head_dim ||
		    group->head_count != m->kv_head_count)
			return "the cpu engine's KV is f16 with the model's own heads";
		if (group->window)
			return "the cpu engine has no attention windows";
	}
	return NULL;
}

static void cpu_close(struct engine *engine)
{
	struct cpu *cpu = (struct cpu *)engine;
	pool_free(cpu->pool);
	cpu_memory_free(cpu);
	cpu_unload(cpu);
	free(cpu);
}

static const struct engine_ops ops = { .numerics = "exact", .run = cpu_run, .close = cpu_close };

int engine_cpu_open(const struct engine_config *config, struct engine **ret_engine, char *ret_error,
		    size_t error_bytes)
{
	const struct model_config *m = model_config(config->model);
	const struct cpu_kernels *kernels = cpu_kernels_find(config->isa);
	const char *objection = model_objection(m, &config->shape);
	if (!kernels) {
		snprintf(ret_error, error_bytes, "this CPU lacks the instructions of the forced path");
		return -ENOTSUP;
	}
	if (objection) {
		snprintf(ret_error, error_bytes, "%s", objection);
		return -ENOTSUP;
	}
	struct cpu *cpu = calloc(1, sizeof *cpu);
	if (!cpu) {
		snprintf(ret_error, error_bytes, "no memory for the engine");
		return -ENOMEM;
	}
	cpu->base.ops = &ops;
	cpu->base.config = *config;
	cpu->base.block_bytes = kv_shape_block_bytes(&config->shape);
	cpu->model = m;
	cpu->kernels = kernels;
	cpu->score_scale = 1.0f / sqrtf((float)m->head_dim);
	cpu->threads = config->thread_count ? config->thread_count : allowed_cpus();
	snprintf(cpu->base.description, sizeof cpu->base.description, "cpu %s, %u thread%s", kernels->name,
		 cpu->threads, cpu->threads == 1 ? "" : "s");
	int error = pool_new(cpu->threads, &cpu->pool);
	if (error) {
		snprintf(ret_error, error_bytes, "cannot start %u threads", cpu->threads);
		goto err_close;
	}
	error = cpu_load(cpu, ret_error, error_bytes);
	if (error)
		goto err_close;
	error = cpu_memory_new(cpu);
	if (error) {
		snprintf(ret_error, error_bytes, "no memory for batches of %u tokens",
			 config->batch_tokens_max);
		goto err_close;
	}
	*ret_engine = &cpu->base;
	return 0;

err_close:
	cpu_close(&cpu->base);
	return error;
}
