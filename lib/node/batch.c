/*
 * Schedule -> run -> settle. The cores fill a node_batch; here it becomes the engine's batch, and
 * each layer that the engine reports final sends the slices of the blocks that are complete.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "node/private.h"

/* ---- one batch ---- */

static void batch_do_copies(struct node *node)
{
	for (uint32_t i = 0; i < node->batch.copy_count; i++)
		memcpy(arena_block(&node->arena, node->batch.copies[i].target),
		       arena_block(&node->arena, node->batch.copies[i].source), node->arena.block_bytes);
}

static void batch_translate(struct node *node)
{
	const struct node_batch *batch = &node->batch;
	for (uint32_t r = 0; r < batch->row_count; r++) {
		const struct node_rows *rows = &batch->rows[r];
		const struct node_sampling *s = rows->sampling;
		node->sample_params[r] = (struct sample_params){
			.temperature = s->temperature, .top_p = s->top_p, .min_p = s->min_p, .top_k = s->top_k,
			.seed = s->seed, .top_logprobs = s->top_logprobs, .want_logprob = s->want_logprobs,
		};
		for (uint32_t i = rows->sample_first; i < rows->sample_first + rows->sample_count; i++)
			node->sample_requests[i] = (struct sample_request){
				.params = &node->sample_params[r],
				.choice = batch->samples[i].choice,
				.position = batch->samples[i].position,
				.bans = batch->samples[i].bans,
				.ban_count = batch->samples[i].ban_count,
			};
		node->engine_rows[r] = (struct engine_rows){
			.blocks = rows->blocks,
			.position = rows->position,
			.tokens = rows->tokens,
			.token_count = rows->token_count,
			.samples = node->sample_requests + rows->sample_first,
			.ret_samples = node->sample_results + rows->sample_first,
			.sample_count = rows->sample_count,
		};
	}
	node->engine_batch = (struct engine_batch){
		.rows = node->engine_rows,
		.rows_count = batch->row_count,
		.layer_end = kv_shape_layer_count(&node->shape),
	};
}

void node_pump(struct node *node)
{
	node_flush(node);
	if (!node->engine || !engine_thread_engine(node->engine) || node->warming || node->failed ||
	    engine_thread_busy(node->engine))
		return;
	uint64_t now_ns = clock_now_ns();
	node_batch_clear(&node->batch);
	for (uint32_t i = 0; i < node->role_count; i++) {
		node->roles[i].maker->ops->schedule(node->roles[i].core, now_ns, &node->batch,
						    &node->roles[i].actions);
		node_do(node, i);
	}
	node_flush(node);
	if (!node->batch.row_count)
		return;
	batch_do_copies(node);
	batch_translate(node);
	node->batch_started_ns = now_ns;
	engine_thread_run(node->engine, &node->engine_batch);
}

/* ---- the engine's callbacks ---- */

/* A batch of one token in a free block: a node is ready when it has served a token to itself. */
static void warm_up(struct node *node)
{
	static const kv_block_id first_block = { 0 };
	static const uint32_t token = 0;
	static const struct sample_params greedy = { .top_p = 1 };
	node->sample_requests[0] = (struct sample_request){ .params = &greedy };
	node->engine_rows[0] = (struct engine_rows){
		.blocks = &first_block,
		.tokens = &token,
		.token_count = 1,
		.samples = node->sample_requests,
		.ret_samples = node->sample_results,
		.sample_count = 1,
	};
	node->engine_batch = (struct engine_batch){
		.rows = node->engine_rows,
		.rows_count = 1,
		.layer_end = kv_shape_layer_count(&node->shape),
	};
	node->warming = true;
	engine_thread_run(node->engine, &node->engine_batch);
}

static void on_open(int status, const char *error, void *context)
{
	struct node *node = context;
	if (status < 0) {
		log_error("the engine did not open: %s", error[0] ? error : err_text(status));
		node->failed = true;
		node_stop(node);
		return;
	}
	log_info("engine: %s, class %s", engine_describe(engine_thread_engine(node->engine)),
		 engine_numerics(engine_thread_engine(node->engine)));
	warm_up(node);
}

static void on_layer(uint32_t layer, void *context)
{
	struct node *node = context;
	if (node->warming)
		return;
	for (uint32_t r = 0; r < node->batch.row_count; r++) {
		const struct node_rows *rows = &node->batch.rows[r];
		if (rows->send_first < rows->send_end)
			node__transfer_send(node, rows->handle, rows->blocks, rows->send_first,
					    rows->send_end, rows->send_base, layer, layer + 1);
	}
	node_flush(node);
}

static void on_done(int status, void *context)
{
	struct node *node = context;
	if (status < 0) {
		log_error("the engine failed: %s", err_text(status));
		node->failed = true;
		node_stop(node);
		return;
	}
	if (node->warming) {
		node->warming = false;
		node__links_start(node);
		return;
	}
	node_notice_sleep(node);
	metric_add(node->steps, 1);
	metric_observe(node->step_tokens, node->batch.token_count);
	metric_observe(node->step_seconds, (double)(clock_now_ns() - node->batch_started_ns) / NS_PER_S);
	for (uint32_t i = 0; i < node->batch.sample_count; i++)
		node->sampled[i] = node->sample_results[i].token;
	node_event(node, &(struct node_event){ .kind = NODE_BATCH_DONE,
					       .batch = { &node->batch, node->sampled } });
	node_pump(node);
}

static const struct engine_thread_callbacks engine_callbacks = { on_open, on_layer, on_done };

/* ---- life ---- */

int node__batch_open(struct node *node)
{
	const struct node_config *config = &node->config;
	static const enum engine_kind kinds[] = { ENGINE_CPU, ENGINE_SIM, ENGINE_CUDA };
	uint32_t rows_max = (uint32_t)config->max_num_batched_tokens; /* a row has at least a token */

	if (node_batch_init(&node->batch, rows_max, (uint32_t)config->max_num_batched_tokens) < 0)
		return -ENOMEM;
	node->engine_rows = calloc(rows_max, sizeof *node->engine_rows);
	node->sample_params = calloc(rows_max, sizeof *node->sample_params);
	node->sample_requests = calloc(node->batch.sample_max, sizeof *node->sample_requests);
	node->sample_results = calloc(node->batch.sample_max, sizeof *node->sample_results);
	node->sampled = calloc(node->batch.sample_max, sizeof *node->sampled);
	if (!node->engine_rows || !node->sample_params || !node->sample_requests ||
	    !node->sample_results || !node->sampled)
		return -ENOMEM;
	node->engine_config = (struct engine_config){
		.kind = kinds[config->engine],
		.model = node->model,
		.shape = node->shape,
		.kv_base = node->arena.base,
		.block_count = node->arena.block_count,
		.thread_count = (uint32_t)config->threads,
		.batch_tokens_max = (uint32_t)config->max_num_batched_tokens,
		.batch_seqs_max = rows_max,
		.isa = (enum engine_isa)config->isa,
		.sim = { .prefill_token_s = config->sim_prefill_token_us * 1e-6,
			 .prefill_square_s = config->sim_prefill_square_ns * 1e-9,
			 .step_s = config->sim_step_ms * 1e-3,
			 .step_seq_s = config->sim_step_seq_us * 1e-6,
			 .step_context_s = config->sim_step_context_ns * 1e-9,
			 .speed = config->sim_speed },
	};
	return engine_thread_start(&node->loop, &node->engine_config, &engine_callbacks, node, &node->engine);
}

void node__batch_close(struct node *node)
{
	engine_thread_stop(node->engine);
	node->engine = NULL;
	node_batch_fini(&node->batch);
	free(node->engine_rows);
	free(node->sample_params);
	free(node->sample_requests);
	free(node->sample_results);
	free(node->sampled);
}
