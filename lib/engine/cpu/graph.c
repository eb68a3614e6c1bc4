/*
 * A batch through the layers, as fork-join phases:
 *
 *   prepare     embedding, RoPE tables, zeroing of blocks begun here
 *   per layer   [norm] | q, k, v, RoPE, K/V to the arena | attention | [quantise] | o |
 *               [norm] | gate, up, SwiGLU, quantise | down
 *   at the end  final norm | head | sampling
 *
 * The phases in brackets exist only for more than LOCAL_ROWS rows: with fewer, each thread norms
 * and quantises the input itself. An item of a matrix phase is some columns (a head, or 32) times
 * some rows, so every value is computed whole by one thread and thread counts cannot change bits.
 */
#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "engine/cpu/cpu.h"
#include "engine/real.h"

/* Columns by rows of a matrix phase: rows are cut only when columns are too few for the threads. */
static uint32_t row_parts(const struct cpu *cpu, uint32_t items)
{
	uint32_t wanted = DIV_UP(4 * cpu->threads, items);
	return cpu->threads <= 2 ? 1 : MAX(1u, MIN(wanted, cpu->row_count / 16));
}

static void run_items(struct cpu *cpu, pool_fn fn, uint32_t count)
{
	work_init(&cpu->work, count, cpu->threads);
	pool_run(cpu->pool, fn, cpu);
}

static void part_rows(const struct cpu *cpu, uint32_t part, uint32_t parts, uint32_t *ret_first,
		      uint32_t *ret_count)
{
	*ret_first = (uint32_t)((uint64_t)cpu->row_count * part / parts);
	*ret_count = (uint32_t)((uint64_t)cpu->row_count * (part + 1) / parts) - *ret_first;
}

static bool is_local(const struct cpu *cpu)
{
	return cpu->row_count <= LOCAL_ROWS;
}

static void quantise_row(const struct cpu *cpu, struct activations *a, uint32_t row, uint32_t count,
			 const float *from)
{
	cpu->kernels->quantise(from, count, a->q + row * a->q_stride, a->da + row * a->b_stride,
			       a->sa + row * a->b_stride, a->sum + row * a->b_stride);
}

static void rope_row(const struct cpu *cpu, uint32_t row)
{
	const struct model_config *m = cpu->model;
	float *c = cpu->rope_c + (size_t)row * m->head_dim, *s = cpu->rope_s + (size_t)row * m->head_dim;
	uint32_t half = m->rope_dim / 2;
	for (uint32_t i = 0; i < half; i++) {
		double sine, cosine;
		real_sincos(cpu->rows[row].position * cpu->rope_frequency[i], &sine, &cosine);
		uint32_t a = m->rope_interleaved ? 2 * i : i, b = m->rope_interleaved ? a + 1 : i + half;
		c[a] = c[b] = (float)cosine;
		s[a] = (float)-sine;
		s[b] = (float)sine;
	}
	for (uint32_t i = m->rope_dim; i < m->head_dim; i++) {
		c[i] = 1;
		s[i] = 0;
	}
}

/* A block's first token zeroes it, so that what travels is deterministic and V is finite beyond
 * the end. */
static void prepare_phase(void *context, uint32_t thread)
{
	struct cpu *cpu = context;
	const struct engine_batch *batch = cpu->batch;
	const struct kv_shape *shape = &cpu->base.config.shape;
	uint64_t from = kv_shape_slice_offset(shape, batch->layer_first);
	uint64_t to = kv_shape_slice_offset(shape, batch->layer_end);
	uint32_t first, end;
	(void)thread;
	while (work_take(&cpu->work, &first, &end)) {
		for (uint32_t r = first; r < end; r++) {
			const struct row *row = &cpu->rows[r];
			rope_row(cpu, r);
			if (row->offset == 0)
				memset(row->block + from, 0, to - from);
			if (batch->layer_first == 0)
				tensor_row_f32(cpu->embedding, row->token,
					       cpu->x + (size_t)r * cpu->model->embedding);
		}
	}
}

static void norm_row(const struct cpu *cpu, uint32_t x_row, const float *weight, struct activations *a,
		     uint32_t row)
{
	uint32_t count = cpu->model->embedding;
	float *to = a->f + row * a->f_stride;
	cpu->kernels->rms_norm(cpu->x + (size_t)x_row * count, weight, count, cpu->model->norm_epsilon, to);
	if (a->q && count % BLOCK == 0)
		quantise_row(cpu, a, row, count, to);
}

static void norm_phase(void *context, uint32_t thread)
{
	struct cpu *cpu = context;
	uint32_t first, end;
	(void)thread;
	while (work_take(&cpu->work, &first, &end))
		for (uint32_t r = first; r < end; r++)
			norm_row(cpu, r, cpu->norm_now, &cpu->norm, r);
}

/* The normed input of a phase: the shared one, or this thread's own for few rows. */
static const struct activations *normed(struct cpu *cpu, uint32_t thread)
{
	struct activations *local = &cpu->lanes[thread].local;
	if (!is_local(cpu))
		return &cpu->norm;
	for (uint32_t r = 0; r < cpu->row_count; r++)
		norm_row(cpu, r, cpu->norm_now, local, r);
	return local;
}

static void run_norm(struct cpu *cpu, float *weight)
{
	cpu->norm_now = weight;
	if (!is_local(cpu))
		run_items(cpu, norm_phase, cpu->row_count);
}

/* What a head of q, k or v gets after the product. */
static void finish_head(struct cpu *cpu, uint32_t item, uint32_t row, float *x)
{
	const struct model_config *m = cpu->model;
	const struct cpu_kernels *kernels = cpu->kernels;
	const struct layer *layer = &cpu->layers[cpu->layer_now];
	uint32_t dim = m->head_dim, keys = m->head_count, values = keys + m->kv_head_count;
	bool is_q = item < keys, is_k = !is_q && item < values;
	uint32_t head = is_q ? item : is_k ? item - keys : item - values;
	const float *bias = is_q ? layer->q_bias : is_k ? layer->k_bias : layer->v_bias;
	const float *norm = is_q ? layer->q_norm : layer->k_norm;
	const struct row *to = &cpu->rows[row];

	if (bias)
		kernels->add(x, bias + (size_t)head * dim, dim);
	if (is_q || is_k) {
		if (norm)
			kernels->rms_norm(x, norm, dim, m->norm_epsilon, x);
		kernels->rope(x, dim, m->rope_dim, m->rope_interleaved,
			      cpu->rope_c + (size_t)row * dim, cpu->rope_s + (size_t)row * dim);
	}
	if (is_q) {
		kernels->scale(x, dim, cpu->score_scale);
		return;
	}
	const struct kv_shape *shape = &cpu->base.config.shape;
	uint16_t *k = cpu_kv_head(cpu, to->block + cpu->slice_offset_now, head);
	if (is_k)
		kernels->store_kv(x, dim, k + (size_t)(to->offset / 16) * 16 * dim + to->offset % 16, 16);
	else
		kernels->store_kv(x, dim, k + (size_t)(shape->block_tokens + to->offset) * dim, 1);
}

static void qkv_phase(void *context, uint32_t thread)
{
	struct cpu *cpu = context;
	const struct model_config *m = cpu->model;
	const struct layer *layer = &cpu->layers[cpu->layer_now];
	const struct activations *input = normed(cpu, thread);
	uint32_t heads = m->head_count + 2 * m->kv_head_count, tiles = m->head_dim / TILE_ROWS;
	uint32_t parts = cpu->work.count / heads, first, end;
	size_t stride = cpu_qkv_stride(cpu);
	while (work_take(&cpu->work, &first, &end)) {
		for (uint32_t i = first; i < end; i++) {
			uint32_t item = i / parts, row, count, head = item;
			const struct matrix *w = &layer->q;
			if (item >= m->head_count) {
				head = (item - m->head_count) % m->kv_head_count;
				w = item < m->head_count + m->kv_head_count ? &layer->k : &layer->v;
			}
			part_rows(cpu, i % parts, parts, &row, &count);
			float *y = cpu->qkv + row * stride + (size_t)item * m->head_dim;
			cpu->kernels->matmul(w, head * tiles, tiles, input, row, count, y, stride, false,
					     cpu->lanes[thread].matmul);
			for (uint32_t t = 0; t < count; t++)
				finish_head(cpu, item, row + t, y + t * stride);
		}
	}
}

/* For heads that are not whole blocks of 32: attention could not quantise its output. */
static void quantise_phase(void *context, uint32_t thread)
{
	struct cpu *cpu = context;
	struct activations *mixed = &cpu->mixed;
	uint32_t first, end;
	(void)thread;
	while (work_take(&cpu->work, &first, &end))
		for (uint32_t r = first; r < end; r++)
			quantise_row(cpu, mixed, r, cpu->model->head_count * cpu->model->head_dim,
				     mixed->f + r * mixed->f_stride);
}

/* x += w * input, 32 columns at a time. */
static void residual(struct cpu *cpu, uint32_t thread, const struct matrix *w,
		     const struct activations *input)
{
	uint32_t units = DIV_UP(w->tile_count, 2), parts = cpu->work.count / units, first, end;
	size_t stride = cpu->model->embedding;
	while (work_take(&cpu->work, &first, &end)) {
		for (uint32_t i = first; i < end; i++) {
			uint32_t tile = i / parts * 2, row, count;
			part_rows(cpu, i % parts, parts, &row, &count);
			cpu->kernels->matmul(w, tile, MIN(2u, w->tile_count - tile), input, row, count,
					     cpu->x + row * stride + tile * TILE_ROWS, stride, true,
					     cpu->lanes[thread].matmul);
		}
	}
}

static void o_phase(void *context, uint32_t thread)
{
	struct cpu *cpu = context;
	residual(cpu, thread, &cpu->layers[cpu->layer_now].o, &cpu->mixed);
}

static void down_phase(void *context, uint32_t thread)
{
	struct cpu *cpu = context;
	residual(cpu, thread, &cpu->layers[cpu->layer_now].down, &cpu->inner);
}

/* One item: 32 columns of gate and of up for some rows, then SwiGLU and one quantised block. */
static void gate_up_item(struct cpu *cpu, struct lane *lane, const struct activations *input,
			 uint32_t tile, uint32_t row, uint32_t count)
{
	const struct layer *layer = &cpu->layers[cpu->layer_now];
	uint32_t tiles = MIN(2u, layer->gate.tile_count - tile), columns = tiles * TILE_ROWS;
	struct activations *inner = &cpu->inner;
	float block[BLOCK];
	cpu->kernels->matmul(&layer->gate, tile, tiles, input, row, count, lane->pair, 64, false,
			     lane->matmul);
	cpu->kernels->matmul(&layer->up, tile, tiles, input, row, count, lane->pair + 32, 64, false,
			     lane->matmul);
	for (uint32_t t = 0; t < count; t++) {
		const float *pair = lane->pair + (size_t)t * 64;
		size_t at = row + t;
		float *to = inner->f ? inner->f + at * inner->f_stride + tile * TILE_ROWS : block;
		cpu->kernels->swiglu(pair, pair + 32, columns, to);
		if (inner->q && columns == BLOCK) {
			size_t b = at * inner->b_stride + tile / 2;
			cpu->kernels->quantise(to, BLOCK, inner->q + at * inner->q_stride + tile * TILE_ROWS,
					       inner->da + b, inner->sa + b, inner->sum + b);
		}
	}
}

static void gate_up_phase(void *context, uint32_t thread)
{
	struct cpu *cpu = context;
	const struct activations *input = normed(cpu, thread);
	uint32_t units = DIV_UP(cpu->layers[cpu->layer_now].gate.tile_count, 2);
	uint32_t parts = cpu->work.count / units, first, end;
	while (work_take(&cpu->work, &first, &end)) {
		for (uint32_t i = first; i < end; i++) {
			uint32_t row, count;
			part_rows(cpu, i % parts, parts, &row, &count);
			gate_up_item(cpu, &cpu->lanes[thread], input, i / parts * 2, row, count);
		}
	}
}

static void run_layer(struct cpu *cpu, uint32_t index)
{
	const struct model_config *m = cpu->model;
	struct layer *layer = &cpu->layers[index];
	uint32_t heads = m->head_count + 2 * m->kv_head_count;
	uint32_t units = DIV_UP(m->embedding, BLOCK), inner_units = DIV_UP(m->feed_forward, BLOCK);
	cpu->layer_now = index;
	cpu->slice_offset_now = kv_shape_slice_offset(&cpu->base.config.shape, index);
	run_norm(cpu, layer->attention_norm);
	run_items(cpu, qkv_phase, heads * row_parts(cpu, heads));
	run_items(cpu, cpu_attend, cpu->job_count);
	if (!tile_is_float(layer->o.kind) && m->head_dim % BLOCK)
		run_items(cpu, quantise_phase, cpu->row_count);
	run_items(cpu, o_phase, units * row_parts(cpu, units));
	run_norm(cpu, layer->ffn_norm);
	run_items(cpu, gate_up_phase, inner_units * row_parts(cpu, inner_units));
	run_items(cpu, down_phase, units * row_parts(cpu, units));
}

static void final_norm_phase(void *context, uint32_t thread)
{
	struct cpu *cpu = context;
	uint32_t first, end;
	(void)thread;
	while (work_take(&cpu->work, &first, &end))
		for (uint32_t i = first; i < end; i++)
			norm_row(cpu, cpu->logit_rows[cpu->logit_first + i].row, cpu->output_norm, &cpu->final, i);
}

static void head_phase(void *context, uint32_t thread)
{
	struct cpu *cpu = context;
	uint32_t first, end;
	while (work_take(&cpu->work, &first, &end)) {
		uint32_t tile = first * 2, tiles = MIN(end * 2, cpu->head.tile_count) - tile;
		cpu->kernels->matmul(&cpu->head, tile, tiles, &cpu->final, 0, cpu->logit_count,
				     cpu->logits + tile * TILE_ROWS, cpu->logit_stride, false,
				     cpu->lanes[thread].matmul);
	}
}

static void sample_phase(void *context, uint32_t thread)
{
	struct cpu *cpu = context;
	uint32_t first, end, vocab = cpu->model->vocab_count;
	while (work_take(&cpu->work, &first, &end)) {
		for (uint32_t i = first; i < end; i++) {
			const struct logit_row *row = &cpu->logit_rows[cpu->logit_first + i];
			const struct engine_rows *rows = &cpu->batch->rows[row->entry];
			const float *logits = cpu->logits + i * cpu->logit_stride;
			if (rows->ret_logits)
				memcpy(rows->ret_logits + (size_t)row->in_entry * vocab, logits,
				       vocab * sizeof *logits);
			for (uint32_t s = 0; row->sampled && s < rows->sample_count; s++)
				sample_token(logits, vocab, &rows->samples[s], &cpu->lanes[thread].sample,
					     &rows->ret_samples[s]);
		}
	}
}

static void run_logits(struct cpu *cpu)
{
	for (uint32_t first = 0; first < cpu->logit_row_count; first += LOGIT_ROWS) {
		cpu->logit_first = first;
		cpu->logit_count = MIN(LOGIT_ROWS, cpu->logit_row_count - first);
		run_items(cpu, final_norm_phase, cpu->logit_count);
		run_items(cpu, head_phase, DIV_UP(cpu->head.tile_count, 2));
		run_items(cpu, sample_phase, cpu->logit_count);
	}
}

int cpu_run(struct engine *engine, const struct engine_batch *batch)
{
	struct cpu *cpu = (struct cpu *)engine;
	if (cpu_plan(cpu, batch) < 0)
		return -EIO;
	if (!cpu->row_count)
		return 0;
	run_items(cpu, prepare_phase, cpu->row_count);
	for (uint32_t layer = batch->layer_first; layer < batch->layer_end; layer++) {
		run_layer(cpu, layer);
		if (batch->on_layer)
			batch->on_layer(batch->context, layer);
	}
	if (batch->layer_end == cpu->model->layer_count)
		run_logits(cpu);
	return 0;
}
