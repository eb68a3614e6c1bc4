/*
 * Runs one batch. One engine per process (per device), one calling thread (the engine thread);
 * it opens no socket and knows no request.
 *
 * K and V of every row are written into the arena blocks named by the row's page table, in the
 * pool format (kv/shape.h), and attention reads them back from there, also inside the current
 * chunk. In class `exact` the results are the same bits whatever the batching, chunking, thread
 * count and instruction set (docs/ARCHITECTURE.md, Numerics).
 */
#ifndef BATON_ENGINE_ENGINE_H
#define BATON_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/sample.h"
#include "kv/shape.h"
#include "model/model.h"

struct engine;

/* Several consecutive rows of one sequence. */
struct engine_rows {
	const kv_block_id *blocks; /* page table from token 0; [>= (position + count) / block_tokens up] */
	uint32_t position;         /* of tokens[0] in the sequence; K/V of all before it are there */
	const uint32_t *tokens;
	uint32_t token_count;
	/* Tokens sampled from the last row: several choices after a prefill, one in decode, none
	 * for a chunk in the middle of a prompt. */
	const struct sample_request *samples;
	struct sample_result *ret_samples;
	uint32_t sample_count;
	float *ret_logits; /* NULL, or [token_count][vocab_count]: raw logits of every row (tests) */
};

struct engine_batch {
	const struct engine_rows *rows;
	uint32_t rows_count;
	uint32_t layer_first, layer_end; /* 0, layer_count: whole model */
	/* Called on the engine thread after each layer: K/V of all rows of this layer are final. */
	void (*on_layer)(void *context, uint32_t layer);
	void *context;
};

enum engine_kind { ENGINE_CPU, ENGINE_SIM, ENGINE_CUDA };
enum engine_isa { ENGINE_ISA_AUTO, ENGINE_ISA_PLAIN, ENGINE_ISA_AVX2, ENGINE_ISA_AVX512, ENGINE_ISA_VNNI };

struct engine_config {
	enum engine_kind kind;
	const struct model *model;
	struct kv_shape shape;
	void *kv_base; /* arena: block i at kv_base + i * kv_shape_block_bytes() */
	uint32_t block_count;
	uint32_t thread_count;       /* 0: one per CPU this process may use */
	uint32_t batch_tokens_max;   /* rows of all sequences in one batch */
	uint32_t batch_seqs_max;
	enum engine_isa isa; /* forced paths are refused (-ENOTSUP) where the CPU lacks them */
	/* sim: seconds of modelled time per real second; the coefficients of MOONCAKE's model */
	struct engine_sim_config {
		double prefill_token_s, prefill_square_s; /* T = a(n-p) + b(n^2-p^2) */
		double step_s, step_seq_s, step_context_s; /* decode: base + per sequence + per context token */
		double speed; /* 1: real time */
	} sim;
};

/* Takes nothing; the model and the arena must outlive the engine. */
int engine_open(const struct engine_config *config, struct engine **ret_engine, char *ret_error,
		size_t error_bytes);
void engine_close(struct engine *engine);

/* Runs the batch to its end. Return: 0, or -EIO when the device failed (the node ends). */
int engine_run(struct engine *engine, const struct engine_batch *batch);

const char *engine_numerics(const struct engine *engine); /* "exact", "sim", "cuda"... */
const char *engine_describe(const struct engine *engine); /* "cpu vnni, 2 threads" */

#endif
