/* From the model's tensors to tiles and float vectors. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/check.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/tile.h"
#include "engine/real.h"

struct loader {
	struct cpu *cpu;
	char *ret_error;
	size_t error_bytes;
	/* Of the matrix being packed, for all threads. */
	const struct tensor *tensor;
	const struct matrix *matrix;
	uint8_t *data;
	size_t used; /* of cpu->weights */
	float *vector_end;
};

static const struct tensor *find(struct loader *loader, int layer, const char *name, uint32_t columns,
				 uint32_t rows)
{
	char full[64];
	if (layer < 0)
		snprintf(full, sizeof full, "%s", name);
	else
		snprintf(full, sizeof full, "blk.%d.%s", layer, name);
	const struct tensor *tensor = model_tensor(loader->cpu->base.config.model, full);
	if (!tensor) {
		snprintf(loader->ret_error, loader->error_bytes, "the model has no tensor %s", full);
		return NULL;
	}
	if (tensor->column_count != columns || tensor->row_count != rows) {
		snprintf(loader->ret_error, loader->error_bytes, "tensor %s is %u by %u, expected %u by %u",
			 full, tensor->column_count, tensor->row_count, columns, rows);
		return NULL;
	}
	return tensor;
}

static void pack_phase(void *context, uint32_t thread)
{
	struct loader *loader = context;
	uint32_t first, end;
	(void)thread;
	while (work_take(&loader->cpu->work, &first, &end))
		tile_pack(loader->tensor, loader->matrix, first, end, loader->data);
}

/* With cpu->weights absent it only adds up the bytes; the second pass packs. */
static int load_matrix(struct loader *loader, int layer, const char *name, uint32_t columns,
		       uint32_t rows, struct matrix *ret_matrix)
{
	struct cpu *cpu = loader->cpu;
	const struct tensor *tensor = find(loader, layer, name, columns, rows);
	if (!tensor)
		return -EINVAL;
	if (tile_plan(tensor, ret_matrix) < 0) {
		snprintf(loader->ret_error, loader->error_bytes,
			 "tensor %s is %s, which the cpu engine has no kernel for", tensor->name,
			 tensor_type_name(tensor->type));
		return -ENOTSUP;
	}
	if (tile_is_float(ret_matrix->kind))
		cpu->float_input = true;
	else
		cpu->quantised_input = true;
	if (cpu->weights) {
		loader->tensor = tensor;
		loader->matrix = ret_matrix;
		loader->data = cpu->weights + loader->used;
		work_init(&cpu->work, ret_matrix->tile_count, cpu->threads);
		pool_run(cpu->pool, pack_phase, loader);
		ret_matrix->data = loader->data;
	}
	loader->used += tile_matrix_bytes(ret_matrix);
	return 0;
}

static int load_vector(struct loader *loader, int layer, const char *name, uint32_t count, float **ret)
{
	const struct tensor *tensor = find(loader, layer, name, count, 1);
	if (!tensor)
		return -EINVAL;
	*ret = loader->vector_end;
	loader->vector_end += count;
	tensor_row_f32(tensor, 0, *ret);
	return 0;
}

static int load_layer_matrices(struct loader *loader, int i)
{
	const struct model_config *m = loader->cpu->model;
	struct layer *layer = &loader->cpu->layers[i];
	uint32_t queries = m->head_count * m->head_dim, keys = m->kv_head_count * m->head_dim;
	const struct {
		const char *name;
		uint32_t columns, rows;
		struct matrix *matrix;
	} list[] = {
		{ "attn_q.weight", m->embedding, queries, &layer->q },
		{ "attn_k.weight", m->embedding, keys, &layer->k },
		{ "attn_v.weight", m->embedding, keys, &layer->v },
		{ "attn_output.weight", queries, m->embedding, &layer->o },
		{ "ffn_gate.weight", m->embedding, m->feed_forward, &layer->gate },
		{ "ffn_up.weight", m->embedding, m->feed_forward, &layer->up },
		{ "ffn_down.weight", m->feed_forward, m->embedding, &layer->down },
	};
	for (size_t j = 0; j < ARRAY_COUNT(list); j++) {
		int error = load_matrix(loader, i, list[j].name, list[j].columns, list[j].rows,
					list[j].matrix);
		if (error)
			return error;
	}
	return 0;
}

static int load_matrices(struct loader *loader)
{
	struct cpu *cpu = loader->cpu;
	const struct model_config *m = cpu->model;
	loader->used = 0;
	for (uint32_t i = 0; i < m->layer_count; i++) {
		int error = load_layer_matrices(loader, (int)i);
		if (error)
			return error;
	}
	return load_matrix(loader, -1, m->tied_embeddings ? "token_embd.weight" : "output.weight",
			   m->embedding, m->vocab_count, &cpu->head);
}

static int load_vectors(struct loader *loader)
{
	struct cpu *cpu = loader->cpu;
	const struct model_config *m = cpu->model;
	uint32_t queries = m->head_count * m->head_dim, keys = m->kv_head_count * m->head_dim;
	size_t per_layer = 2 * (size_t)m->embedding + queries + 2 * keys + 2 * m->head_dim;
	cpu->vectors = malloc((per_layer * m->layer_count + m->embedding) * sizeof(float));
	if (!cpu->vectors)
		return -ENOMEM;
	loader->vector_end = cpu->vectors;
	int error = 0;
	for (uint32_t i = 0; i < m->layer_count && !error; i++) {
		struct layer *layer = &cpu->layers[i];
		int n = (int)i;
		error = load_vector(loader, n, "attn_norm.weight", m->embedding, &layer->attention_norm);
		if (!error)
			error = load_vector(loader, n, "ffn_norm.weight", m->embedding, &layer->ffn_norm);
		if (!error && m->qkv_bias)
			error = load_vector(loader, n, "attn_q.bias", queries, &layer->q_bias);
		if (!error && m->qkv_bias)
			error = load_vector(loader, n, "attn_k.bias", keys, &layer->k_bias);
		if (!error && m->qkv_bias)
			error = load_vector(loader, n, "attn_v.bias", keys, &layer->v_bias);
		if (!error && m->qk_norm)
			error = load_vector(loader, n, "attn_q_norm.weight", m->head_dim, &layer->q_norm);
		if (!error && m->qk_norm)
			error = load_vector(loader, n, "attn_k_norm.weight", m->head_dim, &layer->k_norm);
	}
	if (!error)
		error = load_vector(loader, -1, "output_norm.weight", m->embedding, &cpu->output_norm);
	return error;
}

static int load_rope(struct cpu *cpu)
{
	const struct model_config *m = cpu->model;
	uint32_t half = m->rope_dim / 2;
	cpu->rope_frequency = malloc((half + 1) * sizeof *cpu->rope_frequency);
	if (!cpu->rope_frequency)
		return -ENOMEM;
	double step = -real_log((double)m->rope_base) / half;
	for (uint32_t i = 0; i < half; i++) {
		cpu->rope_frequency[i] = real_exp(i * step);
		if (m->rope_divisors)
			cpu->rope_frequency[i] /= (double)m->rope_divisors[i];
	}
	return 0;
}

int cpu_load(struct cpu *cpu, char *ret_error, size_t error_bytes)
{
	const struct model_config *m = cpu->model;
	struct loader loader = { .cpu = cpu, .ret_error = ret_error, .error_bytes = error_bytes };

	snprintf(ret_error, error_bytes, "no memory for the model's weights");
	cpu->layers = calloc(m->layer_count, sizeof *cpu->layers);
	if (!cpu->layers)
		return -ENOMEM;
	cpu->embedding = find(&loader, -1, "token_embd.weight", m->embedding, m->vocab_count);
	if (!cpu->embedding)
		return -EINVAL;
	int error = load_matrices(&loader); /* adds up */
	if (error)
		return error;
	cpu->weights_bytes = loader.used + 4096; /* kernels prefetch beyond the end */
	void *map = mmap(NULL, cpu->weights_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			 0);
	if (map == MAP_FAILED)
		return -ENOMEM;
	cpu->weights = map;
	(void)madvise(map, cpu->weights_bytes, MADV_HUGEPAGE); /* fewer TLB misses, where allowed */
	error = load_matrices(&loader);
	if (!error)
		error = load_vectors(&loader);
	if (!error)
		error = load_rope(cpu);
	return error;
}

void cpu_unload(struct cpu *cpu)
{
	if (cpu->weights)
		munmap(cpu->weights, cpu->weights_bytes);
	free(cpu->vectors);
	free(cpu->rope_frequency);
	free(cpu->layers);
}
