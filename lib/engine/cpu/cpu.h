/*
 * The cpu engine's own state. Shapes: M rows of the batch, E embedding, D head_dim, H query heads,
 * KV heads of K and V, F feed_forward, V vocabulary.
 */
#ifndef BATON_ENGINE_CPU_CPU_H
#define BATON_ENGINE_CPU_CPU_H

#include "engine/cpu/kernels.h"
#include "engine/cpu/threads.h"
#include "engine/engine_impl.h"

/* Up to this many rows every thread norms and quantises the inputs itself: cheaper than to wait
 * for another (0.2 us a row against 0.5 us a barrier). */
#define LOCAL_ROWS 4u
/* Rows whose logits are computed in one pass over the head. */
#define LOGIT_ROWS 32u

struct layer {
	struct matrix q, k, v, o, gate, up, down;
	float *attention_norm, *ffn_norm;
	float *q_bias, *k_bias, *v_bias; /* NULL: none */
	float *q_norm, *k_norm;          /* NULL: none */
};

/* One thread's own memory. */
struct lane {
	uint8_t *matmul;             /* unpacked tiles */
	float *attention;            /* scores, widened K and V */
	float *outs;                 /* [ATTENTION_ROWS][D] */
	float *pair;                 /* [M][64]: gate and up of one item */
	struct activations local;    /* LOCAL_ROWS rows of the widest input */
	struct sample_scratch sample;
};

/* Where a row of the batch comes from and where its K and V go. */
struct row {
	uint32_t token, position;
	uint8_t *block;  /* of the arena */
	uint32_t offset; /* of the token in its block */
};

/* A piece of attention: queries [first, first + count) of one kv head. split < 0: all splits in
 * order (prefill); else one split, merged by whoever finishes the row's last one. */
struct attention_job {
	uint32_t entry, row, count, kv_head;
	int32_t split;
	uint32_t split_count;
	uint32_t partial; /* first partial state of the row and head; its counter too */
};

struct logit_row {
	uint32_t entry, row, in_entry;
	bool sampled; /* the entry's last row, with samples wanted */
};

struct cpu {
	struct engine base;
	const struct model_config *model;
	const struct cpu_kernels *kernels;
	struct pool *pool;
	uint32_t threads;

	/* Weights, for the engine's life. */
	const struct tensor *embedding;
	struct layer *layers;
	struct matrix head;
	float *output_norm;
	double *rope_frequency; /* [rope_dim / 2] */
	uint8_t *weights;
	size_t weights_bytes;
	float *vectors; /* norms and biases */
	float score_scale; /* 1 / sqrt(D) */
	bool quantised_input, float_input; /* forms of activations that some matrix wants */

	/* The batch in hand. */
	uint32_t layer_now;
	uint64_t slice_offset_now;
	float *norm_now; /* weights of the norm that precedes the phase */
	uint32_t logit_first, logit_count; /* logit rows of the current pass */
	const struct engine_batch *batch;
	struct row *rows;
	uint32_t row_count;
	struct logit_row *logit_rows;
	uint32_t logit_row_count;
	struct attention_job *jobs;
	uint32_t job_count, job_capacity;
	struct attention_state *partials;
	float *partial_outs;
	atomic_uint *partial_left; /* splits to come, at the index of a row and head's first partial */
	uint32_t partial_count, partial_capacity;

	float *x;                 /* [M][E] residual */
	float *rope_c, *rope_s;   /* [M][D] */
	float *qkv;               /* [M][(H + 2 KV) D] */
	struct activations norm;  /* [M] rows of E */
	struct activations mixed; /* [M] rows of H D: attention's output */
	struct activations inner; /* [M] rows of F: SwiGLU's output */
	struct activations final; /* [LOGIT_ROWS] rows of E */
	float *logits;            /* [LOGIT_ROWS][logit_stride] */
	size_t logit_stride;

	struct lane *lanes; /* [threads] */
	struct work work;
	void *memory; /* one allocation behind all of the above */
};

/* cpu.c: the kernels of a path, the best for AUTO; NULL where this CPU lacks it. */
const struct cpu_kernels *cpu_kernels_find(enum engine_isa isa);
/* load.c */
int cpu_load(struct cpu *cpu, char *ret_error, size_t error_bytes);
void cpu_unload(struct cpu *cpu);
/* memory.c */
int cpu_memory_new(struct cpu *cpu);
void cpu_memory_free(struct cpu *cpu);
/* plan.c: rows, logit rows and attention jobs of a batch. Return: 0 or -ENOMEM. */
int cpu_plan(struct cpu *cpu, const struct engine_batch *batch);
/* attend.c: phase function */
void cpu_attend(void *context, uint32_t thread);
/* graph.c */
int cpu_run(struct engine *engine, const struct engine_batch *batch);

static inline uint32_t cpu_qkv_stride(const struct cpu *cpu)
{
	return (cpu->model->head_count + 2 * cpu->model->kv_head_count) * cpu->model->head_dim;
}

/* K of a head in a layer slice; V follows after block_tokens * head_dim halves. */
static inline uint16_t *cpu_kv_head(const struct cpu *cpu, uint8_t *slice, uint32_t kv_head)
{
	size_t halves = (size_t)cpu->base.config.shape.block_tokens * cpu->model->head_dim;
	return (uint16_t *)slice + 2 * halves * kv_head;
}

#endif
