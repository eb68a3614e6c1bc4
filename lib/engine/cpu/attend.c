/* The attention phase: hands pieces to the kernels, finds K and V through the page table, and
 * leaves each row's output in `mixed`, quantised where the next product wants that. */
#include "base/check.h"
#include "engine/cpu/cpu.h"

static const uint16_t *find_k(const struct cpu *cpu, const struct engine_rows *rows, uint64_t offset,
			      uint32_t kv_head, uint32_t position)
{
	uint32_t block_tokens = cpu->base.config.shape.block_tokens;
	uint64_t block = rows->blocks[position / block_tokens].v;
	uint8_t *slice = (uint8_t *)cpu->base.config.kv_base + block * cpu->base.block_bytes + offset;
	return cpu_kv_head(cpu, slice, kv_head) +
	       (size_t)(position % block_tokens) * cpu->model->head_dim;
}

/* Split @s of a sequence, as far as @tokens tokens are present. */
static void find_split(const struct cpu *cpu, const struct engine_rows *rows, uint32_t layer,
		       uint32_t kv_head, uint32_t s, uint32_t tokens, struct attention_split *ret_split)
{
	const struct kv_shape *shape = &cpu->base.config.shape;
	uint32_t dim = cpu->model->head_dim;
	uint64_t offset = kv_shape_slice_offset(shape, layer);
	ret_split->head_dim = dim;
	ret_split->first = s * SPLIT_TOKENS;
	ret_split->count = MIN(SPLIT_TOKENS, tokens - ret_split->first);
	for (uint32_t c = 0; c * 16 < ret_split->count; c++) {
		ret_split->k[c] = find_k(cpu, rows, offset, kv_head, ret_split->first + 16 * c);
		ret_split->v[c] = ret_split->k[c] + (size_t)shape->block_tokens * dim;
	}
	for (uint32_t c = 0; c < ARRAY_COUNT(ret_split->next_k); c++) {
		uint32_t position = ret_split->first + SPLIT_TOKENS + 16 * c;
		ret_split->next_k[c] =
			position < tokens ? find_k(cpu, rows, offset, kv_head, position) : NULL;
	}
}

/* Where head @g of the group leaves its output; finishing quantises it when heads are whole blocks. */
static void finish(struct cpu *cpu, const struct attention_state *state, uint32_t row, uint32_t head)
{
	uint32_t dim = cpu->model->head_dim;
	struct activations *mixed = &cpu->mixed;
	float *out = mixed->f + row * mixed->f_stride + head * dim;
	cpu->kernels->attention_finish(state, dim, out);
	if (mixed->q && dim % BLOCK == 0) {
		size_t block = row * mixed->b_stride + head * dim / BLOCK;
		cpu->kernels->quantise(out, dim, mixed->q + row * mixed->q_stride + head * dim,
				       mixed->da + block, mixed->sa + block, mixed->sum + block);
	}
}

static void decode_job(struct cpu *cpu, struct lane *lane, const struct attention_job *job)
{
	const struct model_config *m = cpu->model;
	uint32_t heads = m->head_count / m->kv_head_count, first_head = job->kv_head * heads;
	struct attention_query queries[ATTENTION_ROWS];
	struct attention_state own[ATTENTION_ROWS], *states = own;
	struct attention_split split;
	uint32_t position = cpu->rows[job->row].position;
	const float *q = cpu->qkv + (size_t)job->row * cpu_qkv_stride(cpu) + first_head * m->head_dim;

	find_split(cpu, &cpu->batch->rows[job->entry], cpu->layer_now, job->kv_head, (uint32_t)job->split,
		   position + 1, &split);
	if (job->split_count > 1)
		states = cpu->partials + job->partial + (uint32_t)job->split * heads;
	for (uint32_t g = 0; g < heads; g++) {
		queries[g] = (struct attention_query){ q + g * m->head_dim, position };
		own[g].out = lane->outs + g * m->head_dim;
	}
	cpu->kernels->attention_decode(&split, queries, heads, states, lane->attention);
	if (job->split_count > 1) {
		atomic_uint *left = &cpu->partial_left[job->partial];
		if (atomic_fetch_sub(left, 1) != 1)
			return; /* the last one merges, in split order */
		atomic_store(left, job->split_count);
		states = cpu->partials + job->partial;
		for (uint32_t s = 1; s < job->split_count; s++)
			for (uint32_t g = 0; g < heads; g++)
				cpu->kernels->attention_merge(&states[g], &states[s * heads + g], m->head_dim);
	}
	for (uint32_t g = 0; g < heads; g++)
		finish(cpu, &states[g], job->row, first_head + g);
}

static void prefill_job(struct cpu *cpu, struct lane *lane, const struct attention_job *job)
{
	const struct model_config *m = cpu->model;
	uint32_t heads = m->head_count / m->kv_head_count, first_head = job->kv_head * heads;
	struct attention_query queries[ATTENTION_ROWS];
	struct attention_state states[ATTENTION_ROWS];
	uint32_t first = cpu->rows[job->row].position, last = first + job->count - 1;
	uint32_t count = job->count * heads;

	for (uint32_t i = 0; i < count; i++) {
		size_t row = job->row + i / heads, head = first_head + i % heads;
		queries[i] = (struct attention_query){
			cpu->qkv + row * cpu_qkv_stride(cpu) + head * m->head_dim, first + i / heads
		};
		states[i].out = lane->outs + i * m->head_dim;
	}
	for (uint32_t s = 0; s <= last / SPLIT_TOKENS; s++) {
		struct attention_split split;
		uint32_t skip = 0; /* queries that end before this split */
		find_split(cpu, &cpu->batch->rows[job->entry], cpu->layer_now, job->kv_head, s, last + 1,
			   &split);
		while (queries[skip].position < split.first)
			skip++;
		cpu->kernels->attention_prefill(&split, queries + skip, count - skip, states + skip,
						lane->attention);
	}
	for (uint32_t i = 0; i < count; i++)
		finish(cpu, &states[i], job->row + i / heads, first_head + i % heads);
}

void cpu_attend(void *context, uint32_t thread)
{
	struct cpu *cpu = context;
	uint32_t first, end;
	while (work_take(&cpu->work, &first, &end)) {
		for (uint32_t i = first; i < end; i++) {
			if (cpu->jobs[i].split < 0)
				prefill_job(cpu, &cpu->lanes[thread], &cpu->jobs[i]);
			else
				decode_job(cpu, &cpu->lanes[thread], &cpu->jobs[i]);
		}
	}
}
