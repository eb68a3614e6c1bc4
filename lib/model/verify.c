/* Checks that both loaders share: a config within what this build can hold, and exactly the
 * tensors that the graph reads, with the shapes that the config says. A tensor that the graph
 * would not read means that the file holds another graph: refused, never ignored. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "model/private.h"

/* Far above any model of these families; they keep every later product within 64 bits. */
#define LAYERS_MAX 1024
#define EMBEDDING_MAX 65536
#define HEADS_MAX 1024
#define HEAD_DIM_MAX 512
#define FEED_FORWARD_MAX (1u << 20)
#define VOCAB_MAX (1u << 22)
#define CONTEXT_MAX (1u << 24)

static int check_range(struct model *model, const char *name, uint32_t value, uint32_t max)
{
	if (value >= 1 && value <= max)
		return 0;
	return model__fail(model, "%s is %u; it must lie in 1..%u", name, value, max);
}

int model__check_config(struct model *model)
{
	struct model_config *c = &model->config;
	const struct {
		const char *name;
		uint32_t value, max;
	} ranges[] = {
		{ "the layer count", c->layer_count, LAYERS_MAX },
		{ "the embedding length", c->embedding, EMBEDDING_MAX },
		{ "the head count", c->head_count, HEADS_MAX },
		{ "the KV head count", c->kv_head_count, c->head_count },
		{ "the head dimension", c->head_dim, HEAD_DIM_MAX },
		{ "the feed-forward length", c->feed_forward, FEED_FORWARD_MAX },
		{ "the vocabulary size", c->vocab_count, VOCAB_MAX },
		{ "the context length", c->context_tokens, CONTEXT_MAX },
		{ "the rope dimension", c->rope_dim, c->head_dim },
	};
	for (size_t i = 0; i < ARRAY_COUNT(ranges); i++) {
		int error = check_range(model, ranges[i].name, ranges[i].value, ranges[i].max);
		if (error < 0)
			return error;
	}
	if (c->head_count % c->kv_head_count != 0)
		return model__fail(model, "%u heads cannot share %u KV heads evenly", c->head_count,
				   c->kv_head_count);
	if (c->rope_dim % 2 != 0)
		return model__fail(model, "the rope dimension %u is odd", c->rope_dim);
	if (!(c->norm_epsilon >= 0 && c->norm_epsilon < 1))
		return model__fail(model, "the norm epsilon %g is not in [0, 1)", c->norm_epsilon);
	if (!(c->rope_base > 0 && c->rope_base < 1e15f))
		return model__fail(model, "the rope base %g is not a positive number", c->rope_base);
	for (uint32_t i = 0; model->rope_divisors && i < c->rope_dim / 2; i++) {
		if (!(model->rope_divisors[i] > 0 && model->rope_divisors[i] < 1e9f))
			return model__fail(model, "rope divisor %u is %g, not a positive number", i,
					   model->rope_divisors[i]);
	}
	if (c->bos_id >= 0 && (uint32_t)c->bos_id >= model->vocab.token_count)
		c->bos_id = -1;
	if (c->bos_id < 0)
		c->add_bos = false;
	c->rope_divisors = model->rope_divisors;
	return 0;
}

static int compare_tensors(const void *a, const void *b)
{
	return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static int sort_tensors(struct model *model)
{
	if (model->tensor_count)
		qsort(model->tensors, model->tensor_count, sizeof(model->tensors[0]),
		      compare_tensors);
	for (uint32_t i = 1; i < model->tensor_count; i++) {
		if (strcmp(model->tensors[i - 1].name, model->tensors[i].name) == 0)
			return model__fail(model, "tensor %s occurs twice", model->tensors[i].name);
	}
	return 0;
}

struct expectation {
	struct model *model;
	uint32_t seen; /* tensors that the graph reads */
};

/* A matrix may have any type; a vector (@rows 1) is read as F32 and small. */
static int expect(struct expectation *e, const char *name, uint32_t columns, uint32_t rows)
{
	const struct tensor *tensor = model_tensor(e->model, name);
	if (!tensor)
		return model__fail(e->model, "tensor %s is missing", name);
	if (tensor->column_count != columns || tensor->row_count != rows)
		return model__fail(e->model, "tensor %s is %u x %u; the config makes it %u x %u", name,
				   tensor->column_count, tensor->row_count, columns, rows);
	e->seen++;
	return 0;
}

static int expect_layer(struct expectation *e, uint32_t layer)
{
	const struct model_config *c = &e->model->config;
	uint32_t query = c->head_count * c->head_dim, pair = c->kv_head_count * c->head_dim;
	const struct {
		const char *name;
		uint32_t columns, rows;
		bool wanted;
	} parts[] = {
		{ "attn_norm.weight", c->embedding, 1, true },
		{ "attn_q.weight", c->embedding, query, true },
		{ "attn_k.weight", c->embedding, pair, true },
		{ "attn_v.weight", c->embedding, pair, true },
		{ "attn_output.weight", query, c->embedding, true },
		{ "attn_q.bias", query, 1, c->qkv_bias },
		{ "attn_k.bias", pair, 1, c->qkv_bias },
		{ "attn_v.bias", pair, 1, c->qkv_bias },
		{ "attn_q_norm.weight", c->head_dim, 1, c->qk_norm },
		{ "attn_k_norm.weight", c->head_dim, 1, c->qk_norm },
		{ "ffn_norm.weight", c->embedding, 1, true },
		{ "ffn_gate.weight", c->embedding, c->feed_forward, true },
		{ "ffn_up.weight", c->embedding, c->feed_forward, true },
		{ "ffn_down.weight", c->feed_forward, c->embedding, true },
	};
	for (size_t i = 0; i < ARRAY_COUNT(parts); i++) {
		char name[64];
		snprintf(name, sizeof(name), "blk.%u.%s", layer, parts[i].name);
		int error = parts[i].wanted ? expect(e, name, parts[i].columns, parts[i].rows) : 0;
		if (error < 0)
			return error;
	}
	return 0;
}

static bool is_expected(const struct model_config *c, const char *name)
{
	static const char *const parts[] = {
		"attn_norm.weight",   "attn_q.weight", "attn_k.weight",	  "attn_v.weight",
		"attn_output.weight", "ffn_norm.weight", "ffn_gate.weight", "ffn_up.weight",
		"ffn_down.weight",
	};
	static const char *const bias[] = { "attn_q.bias", "attn_k.bias", "attn_v.bias" };
	static const char *const norms[] = { "attn_q_norm.weight", "attn_k_norm.weight" };
	unsigned layer;
	int end = 0;
	if (sscanf(name, "blk.%u.%n", &layer, &end) != 1 || !end)
		return false;
	const char *part = name + end;
	for (size_t i = 0; i < ARRAY_COUNT(parts); i++) {
		if (strcmp(part, parts[i]) == 0)
			return layer < c->layer_count;
	}
	for (size_t i = 0; c->qkv_bias && i < ARRAY_COUNT(bias); i++) {
		if (strcmp(part, bias[i]) == 0)
			return layer < c->layer_count;
	}
	for (size_t i = 0; c->qk_norm && i < ARRAY_COUNT(norms); i++) {
		if (strcmp(part, norms[i]) == 0)
			return layer < c->layer_count;
	}
	return false;
}

/* Only called when the counts differ: finds the tensor that nobody asked for, to name it. */
static int name_stranger(struct model *model)
{
	for (uint32_t i = 0; i < model->tensor_count; i++) {
		const char *name = model->tensors[i].name;
		if (strcmp(name, "token_embd.weight") != 0 && strcmp(name, "output.weight") != 0 &&
		    strcmp(name, "output_norm.weight") != 0 &&
		    strcmp(name, "rope_freqs.weight") != 0 && !is_expected(&model->config, name))
			return model__fail(model,
					   "tensor %s is not part of the llama, qwen2 or qwen3 graph",
					   name);
	}
	return model__fail(model, "the file holds tensors that the graph does not read");
}

static bool tensor_has_bytes(const struct tensor *tensor)
{
	size_t row = tensor_row_bytes(tensor->type, tensor->column_count);
	return row && tensor->bytes == row * tensor->row_count && tensor->data;
}

/* Scaling that the file gives as a tensor of divisors (Llama 3). */
static int take_rope_freqs(struct model *model)
{
	struct model_config *c = &model->config;
	const struct tensor *tensor = model_tensor(model, "rope_freqs.weight");
	if (!tensor)
		return 0;
	if (tensor->column_count != c->rope_dim / 2 || tensor->row_count != 1)
		return model__fail(model, "rope_freqs.weight has %u values; the config makes it %u",
				   tensor->column_count, c->rope_dim / 2);
	float *divisors = model__alloc(model, c->rope_dim / 2, sizeof(float));
	if (!divisors)
		return -ENOMEM;
	tensor_row_f32(tensor, 0, divisors);
	for (uint32_t i = 0; i < c->rope_dim / 2; i++) {
		if (model->rope_divisors)
			divisors[i] *= model->rope_divisors[i];
		if (!(divisors[i] > 0 && divisors[i] < 1e9f))
			return model__fail(model, "rope_freqs.weight holds %g, not a divisor",
					   divisors[i]);
	}
	model->rope_divisors = divisors;
	c->rope_divisors = divisors;
	return 0;
}

int model__check_tensors(struct model *model)
{
	struct model_config *c = &model->config;
	int error = sort_tensors(model);
	if (error < 0)
		return error;
	for (uint32_t i = 0; i < model->tensor_count; i++)
		CHECK(tensor_has_bytes(&model->tensors[i])); /* the loaders' promise */
	const struct tensor *embedding = model_tensor(model, "token_embd.weight");
	if (!embedding)
		return model__fail(model, "tensor token_embd.weight is missing");
	if (embedding->row_count > VOCAB_MAX)
		return model__fail(model, "the embedding has %u rows; %u are supported",
				   embedding->row_count, VOCAB_MAX);
	c->vocab_count = embedding->row_count;
	c->tied_embeddings = !model_tensor(model, "output.weight");
	c->qkv_bias = model_tensor(model, "blk.0.attn_q.bias") != NULL;
	c->qk_norm = model_tensor(model, "blk.0.attn_q_norm.weight") != NULL;
	if (c->arch == MODEL_QWEN3 && !c->qk_norm)
		return model__fail(model, "tensor blk.0.attn_q_norm.weight is missing");
	struct expectation e = { .model = model };
	if ((error = expect(&e, "token_embd.weight", c->embedding, c->vocab_count)) < 0 ||
	    (error = expect(&e, "output_norm.weight", c->embedding, 1)) < 0)
		return error;
	if (!c->tied_embeddings &&
	    (error = expect(&e, "output.weight", c->embedding, c->vocab_count)) < 0)
		return error;
	for (uint32_t i = 0; i < c->layer_count; i++) {
		if ((error = expect_layer(&e, i)) < 0)
			return error;
	}
	if (model_tensor(model, "rope_freqs.weight"))
		e.seen++;
	if (e.seen != model->tensor_count)
		return name_stranger(model);
	return take_rope_freqs(model);
}

void model__add_eos(struct model *model, int64_t id)
{
	struct model_config *c = &model->config;
	if (id < 0 || id >= model->vocab.token_count || c->eos_count == MODEL_EOS_MAX)
		return;
	for (uint32_t i = 0; i < c->eos_count; i++) {
		if (c->eos_ids[i] == id)
			return;
	}
	c->eos_ids[c->eos_count++] = (uint32_t)id;
}

/* Files name one end token although instruction-tuned models also end a turn with the others. */
void model__find_eos(struct model *model)
{
	static const char *const ends[] = {
		"<|endoftext|>", "<|im_end|>",	  "<|eot_id|>",	   "<|eom_id|>",
		"<|end_of_text|>", "<end_of_turn>", "<|end|>",
	};
	const struct vocab *v = &model->vocab;
	for (uint32_t id = 0; id < v->token_count; id++) {
		if (v->types[id] != VOCAB_CONTROL)
			continue;
		for (size_t i = 0; i < ARRAY_COUNT(ends); i++) {
			if (text_is(v->tokens[id], ends[i]))
				model__add_eos(model, id);
		}
	}
}

int model__rope_linear(struct model *model, double factor)
{
	uint32_t pair_count = model->config.rope_dim / 2;
	if (!(factor > 0 && factor < 1e6))
		return model__fail(model, "the rope scaling factor %g is not a positive number",
				   factor);
	if (model->config.rope_dim > HEAD_DIM_MAX)
		return 0; /* model__check_config() refuses it by name */
	if (factor == 1)
		return 0;
	model->rope_divisors = model__alloc(model, pair_count, sizeof(float));
	if (!model->rope_divisors)
		return -ENOMEM;
	for (uint32_t i = 0; i < pair_count; i++)
		model->rope_divisors[i] = (float)factor;
	return 0;
}

/* Long waves are slowed by @factor, short ones left, those between blended linearly in the
 * number of turns within the original context. Source: Llama 3.1's reference code. */
int model__rope_llama3(struct model *model, double factor, double low, double high,
		       double original_tokens)
{
	const struct model_config *c = &model->config;
	if (!(factor > 0 && factor < 1e6 && low > 0 && high > low && original_tokens > 0))
		return model__fail(model, "the llama3 rope scaling needs factor > 0, "
					  "0 < low_freq_factor < high_freq_factor and "
					  "original_max_position_embeddings > 0");
	if (c->rope_dim > HEAD_DIM_MAX)
		return 0;
	model->rope_divisors = model__alloc(model, c->rope_dim / 2, sizeof(float));
	if (!model->rope_divisors)
		return -ENOMEM;
	for (uint32_t i = 0; i < c->rope_dim / 2; i++) {
		double frequency = pow(c->rope_base, -2.0 * i / c->rope_dim);
		double turns = original_tokens * frequency / (2 * M_PI);
		double blend = (turns - low) / (high - low);
		blend = blend < 0 ? 0 : blend > 1 ? 1 : blend;
		model->rope_divisors[i] = (float)(1 / ((1 - blend) / factor + blend));
	}
	return 0;
}
