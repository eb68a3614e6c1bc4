/* What a batch asks for, laid out for the phases: its rows, the rows whose logits are wanted, and
 * the pieces of attention, which are the same in every layer. */
#include <errno.h>
#include <stdlib.h>

#include "base/check.h"
#include "engine/cpu/cpu.h"

/* Rows of one sequence from which widening K and V once pays. */
#define PREFILL_ROWS 8u

static uint32_t group_heads(const struct cpu *cpu)
{
	return cpu->model->head_count / cpu->model->kv_head_count;
}

static int jobs_reserve(struct cpu *cpu, uint32_t more)
{
	if (cpu->job_count + more <= cpu->job_capacity)
		return 0;
	uint32_t capacity = MAX(cpu->job_capacity * 2, cpu->job_count + more);
	struct attention_job *jobs = realloc(cpu->jobs, capacity * sizeof *jobs);
	if (!jobs)
		return -ENOMEM;
	cpu->jobs = jobs;
	cpu->job_capacity = capacity;
	return 0;
}

static int partials_reserve(struct cpu *cpu, uint32_t count)
{
	if (count <= cpu->partial_capacity)
		return 0;
	uint32_t capacity = MAX(cpu->partial_capacity * 2, count);
	size_t dim = cpu->model->head_dim;
	free(cpu->partials);
	free(cpu->partial_outs);
	free(cpu->partial_left);
	cpu->partials = malloc(capacity * sizeof *cpu->partials);
	cpu->partial_outs = aligned_alloc(64, ALIGN_UP(capacity * dim * sizeof(float), (size_t)64));
	cpu->partial_left = malloc(capacity * sizeof *cpu->partial_left);
	cpu->partial_capacity = 0;
	if (!cpu->partials || !cpu->partial_outs || !cpu->partial_left)
		return -ENOMEM;
	cpu->partial_capacity = capacity;
	for (uint32_t i = 0; i < capacity; i++)
		cpu->partials[i].out = cpu->partial_outs + i * dim;
	return 0;
}

static int plan_prefill(struct cpu *cpu, uint32_t entry, uint32_t row, uint32_t count)
{
	uint32_t block = MAX(ATTENTION_ROWS / group_heads(cpu), 1u);
	uint32_t blocks = DIV_UP(count, block), heads = cpu->model->kv_head_count;
	int error = jobs_reserve(cpu, blocks * heads);
	if (error)
		return error;
	for (uint32_t b = blocks; b-- > 0;) /* the last sees the most: first */
		for (uint32_t head = 0; head < heads; head++)
			cpu->jobs[cpu->job_count++] = (struct attention_job){
				.entry = entry,
				.row = row + b * block,
				.count = MIN(block, count - b * block),
				.kv_head = head,
				.split = -1,
			};
	return 0;
}

static int plan_decode(struct cpu *cpu, uint32_t entry, uint32_t row)
{
	uint32_t splits = cpu->rows[row].position / SPLIT_TOKENS + 1, heads = cpu->model->kv_head_count;
	int error = jobs_reserve(cpu, splits * heads);
	if (error)
		return error;
	for (uint32_t head = 0; head < heads; head++) {
		for (uint32_t s = 0; s < splits; s++)
			cpu->jobs[cpu->job_count++] = (struct attention_job){
				.entry = entry,
				.row = row,
				.count = 1,
				.kv_head = head,
				.split = (int32_t)s,
				.split_count = splits,
				.partial = cpu->partial_count,
			};
		if (splits > 1)
			cpu->partial_count += splits * group_heads(cpu);
	}
	return 0;
}

static int plan_attention(struct cpu *cpu)
{
	const struct engine_batch *batch = cpu->batch;
	int error = 0;
	cpu->job_count = 0;
	cpu->partial_count = 0;
	for (int decode = 0; decode < 2; decode++) {
		uint32_t row = 0;
		for (uint32_t e = 0; e < batch->rows_count && !error; e++) {
			uint32_t count = batch->rows[e].token_count;
			if (!decode && count >= PREFILL_ROWS)
				error = plan_prefill(cpu, e, row, count);
			if (decode && count < PREFILL_ROWS)
				for (uint32_t t = 0; t < count && !error; t++)
					error = plan_decode(cpu, e, row + t);
			row += count;
		}
	}
	if (!error)
		error = partials_reserve(cpu, cpu->partial_count);
	if (error)
		return error;
	for (uint32_t i = 0; i < cpu->job_count; i++)
		if (cpu->jobs[i].split_count > 1)
			atomic_store(&cpu->partial_left[cpu->jobs[i].partial], cpu->jobs[i].split_count);
	return 0;
}

int cpu_plan(struct cpu *cpu, const struct engine_batch *batch)
{
	uint32_t block_tokens = cpu->base.config.shape.block_tokens;
	uint8_t *arena = cpu->base.config.kv_base;
	cpu->batch = batch;
	cpu->row_count = 0;
	cpu->logit_row_count = 0;
	for (uint32_t e = 0; e < batch->rows_count; e++) {
		const struct engine_rows *rows = &batch->rows[e];
		for (uint32_t t = 0; t < rows->token_count; t++) {
			uint32_t position = rows->position + t;
			uint32_t block = rows->blocks[position / block_tokens].v;
			bool sampled = t == rows->token_count - 1 && rows->sample_count;
			if (sampled || rows->ret_logits)
				cpu->logit_rows[cpu->logit_row_count++] =
					(struct logit_row){ e, cpu->row_count, t, sampled };
			cpu->rows[cpu->row_count++] = (struct row){
				.token = rows->tokens[t],
				.position = position,
				.block = arena + block * cpu->base.block_bytes,
				.offset = position % block_tokens,
			};
		}
	}
	return plan_attention(cpu);
}
