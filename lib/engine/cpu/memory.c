/* The engine's working memory: sizes add up in one pass over the list below, a second pass hands
 * out addresses. A step allocates nothing, but for plan.c's tables, which grow to their high mark. */
#include <errno.h>
#include <stdlib.h>

#include "base/check.h"
#include "engine/cpu/cpu.h"

struct layout {
	uint8_t *base; /* NULL in the first pass */
	size_t used;
};

static void *place(struct layout *layout, size_t count, size_t element_bytes)
{
	size_t at = layout->used;
	layout->used += ALIGN_UP(count * element_bytes, (size_t)64);
	return layout->base ? layout->base + at : NULL;
}

static void place_activations(struct layout *layout, struct activations *a, size_t rows,
			      uint32_t columns, bool floats, bool quantised)
{
	a->f_stride = columns;
	a->q_stride = ALIGN_UP(columns, BLOCK);
	a->b_stride = DIV_UP(columns, BLOCK);
	if (floats)
		a->f = place(layout, rows * a->f_stride, sizeof(float));
	if (quantised) {
		a->q = place(layout, rows * a->q_stride, 1);
		a->da = place(layout, rows * a->b_stride, sizeof(float));
		a->sa = place(layout, rows * a->b_stride, sizeof(float));
		a->sum = place(layout, rows * a->b_stride, sizeof(int32_t));
	}
}

static void place_lane(struct layout *layout, const struct cpu *cpu, struct lane *lane)
{
	const struct model_config *m = cpu->model;
	uint32_t queries = m->head_count * m->head_dim;
	uint32_t widest = MAX(MAX(m->embedding, queries), m->feed_forward);
	lane->matmul = place(layout, cpu_matmul_scratch_bytes(widest), 1);
	lane->attention = place(layout, cpu_attention_scratch_floats(m->head_dim), sizeof(float));
	lane->outs = place(layout, (size_t)ATTENTION_ROWS * m->head_dim, sizeof(float));
	lane->pair = place(layout, (size_t)cpu->base.config.batch_tokens_max * 64, sizeof(float));
	place_activations(layout, &lane->local, LOCAL_ROWS, MAX(m->embedding, queries), true, true);
	lane->sample.weights = place(layout, m->vocab_count, sizeof(float));
	lane->sample.ids = place(layout, m->vocab_count, sizeof(uint32_t));
}

static void place_all(struct layout *layout, struct cpu *cpu)
{
	const struct model_config *m = cpu->model;
	size_t rows = cpu->base.config.batch_tokens_max;
	bool q = cpu->quantised_input;
	cpu->x = place(layout, rows * m->embedding, sizeof(float));
	cpu->rope_c = place(layout, rows * m->head_dim, sizeof(float));
	cpu->rope_s = place(layout, rows * m->head_dim, sizeof(float));
	cpu->qkv = place(layout, rows * cpu_qkv_stride(cpu), sizeof(float));
	place_activations(layout, &cpu->norm, rows, m->embedding, true, q);
	place_activations(layout, &cpu->mixed, rows, m->head_count * m->head_dim, true, q);
	place_activations(layout, &cpu->inner, rows, m->feed_forward, cpu->float_input, q);
	place_activations(layout, &cpu->final, LOGIT_ROWS, m->embedding, true, q);
	cpu->logit_stride = ALIGN_UP(m->vocab_count, TILE_ROWS);
	cpu->logits = place(layout, LOGIT_ROWS * cpu->logit_stride, sizeof(float));
	cpu->rows = place(layout, rows, sizeof *cpu->rows);
	cpu->logit_rows = place(layout, rows, sizeof *cpu->logit_rows);
	for (uint32_t i = 0; i < cpu->threads; i++)
		place_lane(layout, cpu, &cpu->lanes[i]);
}

int cpu_memory_new(struct cpu *cpu)
{
	struct layout layout = { 0 };
	cpu->lanes = calloc(cpu->threads, sizeof *cpu->lanes);
	if (!cpu->lanes)
		return -ENOMEM;
	place_all(&layout, cpu);
	layout.base = aligned_alloc(4096, ALIGN_UP(layout.used, (size_t)4096));
	if (!layout.base)
		return -ENOMEM;
	cpu->memory = layout.base;
	layout.used = 0;
	place_all(&layout, cpu);
	return 0;
}

void cpu_memory_free(struct cpu *cpu)
{
	free(cpu->memory);
	free(cpu->lanes);
	free(cpu->jobs);
	free(cpu->partials);
	free(cpu->partial_outs);
	free(cpu->partial_left);
}
