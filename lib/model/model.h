/*
 * A model on disk: one GGUF file, or a Hugging Face folder (config.json, tokenizer.json,
 * *.safetensors). The file is mapped read-only; tensors point into the map.
 *
 * The conductor opens with MODEL_NO_WEIGHTS: config, tokenizer and template only. There are no
 * tensors then, and the fingerprint and kv_format are not those of the nodes.
 */
#ifndef BATON_MODEL_MODEL_H
#define BATON_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kv/shape.h"

enum model_arch { MODEL_LLAMA, MODEL_QWEN2, MODEL_QWEN3 };

/* Values are GGUF's (ggml_type), so that a file's number can be used after a check. */
enum tensor_type {
	TENSOR_F32 = 0,
	TENSOR_F16 = 1,
	TENSOR_Q4_0 = 2,
	TENSOR_Q4_1 = 3,
	TENSOR_Q5_0 = 6,
	TENSOR_Q5_1 = 7,
	TENSOR_Q8_0 = 8,
	TENSOR_Q4_K = 12,
	TENSOR_Q5_K = 13,
	TENSOR_Q6_K = 14,
	TENSOR_BF16 = 30,
};

struct tensor {
	const char *name; /* GGUF's names, also for Hugging Face folders: "blk.0.attn_q.weight" */
	enum tensor_type type;
	uint32_t column_count; /* GGUF ne[0]: elements of a row, contiguous; inputs of a matrix */
	uint32_t row_count;    /* GGUF ne[1]; outputs of a matrix; 1 for a vector */
	const void *data;      /* into the map; row after row */
	size_t bytes;
};

enum { MODEL_NO_WEIGHTS = 1 };

#define MODEL_EOS_MAX 8

struct model_config {
	enum model_arch arch;
	const char *name; /* the file's or folder's base name, without .gguf */
	uint32_t layer_count, embedding, head_count, kv_head_count, head_dim, feed_forward;
	uint32_t vocab_count, context_tokens;
	float norm_epsilon;
	float rope_base;
	uint32_t rope_dim;
	/* interleaved: pairs (0,1),(2,3)... as llama-arch GGUF files hold them; else the halves
	 * (i, i + rope_dim/2): qwen files and all Hugging Face folders. */
	bool rope_interleaved;
	/* [rope_dim/2] divisors of the frequencies (Llama-3 scaling, linear scaling); NULL: all 1. */
	const float *rope_divisors;
	bool qkv_bias, qk_norm, tied_embeddings;
	int32_t bos_id;          /* -1: none */
	bool add_bos, add_eos;
	uint32_t eos_ids[MODEL_EOS_MAX]; /* end of generation, as the file says */
	uint32_t eos_count;
};

struct model;

/*
 * model_open() - map and check a model
 * @path: a .gguf file or a folder
 * @ret_error: [error_bytes] on failure one sentence: what was wrong and what would be right
 * Every offset, count, shape and type in the file is validated before use.
 * Return: 0, -errno of the file, or BATON_EFORMAT.
 */
int model_open(const char *path, int flags, struct model **ret_model, char *ret_error,
	       size_t error_bytes);
void model_close(struct model *model);

const struct model_config *model_config(const struct model *model);
/* NULL when there is none. Names as in GGUF. */
const struct tensor *model_tensor(const struct model *model, const char *name);
/* Chat template's source, or NULL. */
const char *model_chat_template(const struct model *model);

/* SHA-256 over config, tokenizer, tensor table and the first and last 4 KiB of every tensor. */
void model_fingerprint(const struct model *model, uint8_t ret_digest[32]);
/* The f16 pool shape of this model; block_tokens from the caller. */
void model_kv_shape(const struct model *model, uint32_t block_tokens, struct kv_shape *ret_shape);
/* kv_format = SHA-256(fingerprint, adapter (none: ""), layer groups, block_tokens, rope, version). */
void model_kv_format(const struct model *model, const struct kv_shape *shape, uint8_t ret_digest[32]);

/* Dequantises a whole row: column_count values. */
void tensor_row_f32(const struct tensor *tensor, uint32_t row, float ret_values[]);
size_t tensor_row_bytes(enum tensor_type type, uint32_t column_count); /* 0: not a whole number of blocks */
const char *tensor_type_name(enum tensor_type type);

#endif
