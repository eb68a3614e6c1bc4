/*
 * An engine that takes modelled time and makes real bytes. Each token's record in each layer slice
 * is a pattern of (token, position, layer), written where the shape puts it; a sampled token is a
 * hash over one word of every record of its context, read back from the arena, the word's place
 * varying with the position. So KV that was lost, corrupted or put in the wrong place gives a
 * wrong token, while text never depends on node, batch or time.
 *
 * Time: a prompt piece of n tokens after p costs a*n + b*((p+n)^2 - p^2); a decode step costs a
 * base, and something per sequence and per token of context. Layers share it evenly, so layer-wise
 * streaming overlaps as it would with a real engine.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/rand.h"
#include "engine/engine_impl.h"

struct sim {
	struct engine base;
	const struct model_config *model;
};

static uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t state = a ^ (b * UINT64_C(0x9e3779b97f4a7c15));
	return rand_next(&state);
}

static const struct kv_group *layer_group(const struct kv_shape *shape, uint32_t layer)
{
	uint32_t g = 0;
	while (layer >= shape->groups[g].layer_count)
		layer -= shape->groups[g++].layer_count;
	return &shape->groups[g];
}

static uint32_t record_bytes(const struct kv_shape *shape, uint32_t layer)
{
	const struct kv_group *group = layer_group(shape, layer);
	return 2 * group->head_count * group->head_dim * group->element_bytes;
}

/* Record of the token at @position, in @layer of the block that holds it. */
static uint8_t *record(const struct sim *sim, const kv_block_id blocks[], uint32_t layer,
		       uint32_t position)
{
	const struct kv_shape *shape = &sim->base.config.shape;
	uint32_t inside = position % shape->block_tokens;
	uint8_t *block = (uint8_t *)sim->base.config.kv_base +
			 blocks[position / shape->block_tokens].v * sim->base.block_bytes;
	return block + kv_shape_slice_offset(shape, layer) +
	       (size_t)inside * record_bytes(shape, layer);
}

static void write_records(const struct sim *sim, const struct engine_rows *rows, uint32_t layer)
{
	const struct kv_shape *shape = &sim->base.config.shape;
	uint32_t words = record_bytes(shape, layer) / 8;
	for (uint32_t t = 0; t < rows->token_count; t++) {
		uint32_t position = rows->position + t;
		uint8_t *to = record(sim, rows->blocks, layer, position);
		if (position % shape->block_tokens == 0) /* the rest travels zeroed */
			memset(to, 0, kv_shape_slice_bytes(shape, layer));
		uint64_t state = mix((uint64_t)rows->tokens[t] << 32 | position, layer);
		for (uint32_t w = 0; w < words; w++) {
			uint64_t word = rand_next(&state);
			memcpy(to + 8 * w, &word, sizeof word);
		}
	}
}

static uint64_t context_hash(const struct sim *sim, const struct engine_rows *rows, uint32_t position)
{
	const struct kv_shape *shape = &sim->base.config.shape;
	uint64_t hash = position;
	for (uint32_t layer = 0; layer < sim->model->layer_count; layer++) {
		uint32_t words = record_bytes(shape, layer) / 8;
		for (uint32_t t = 0; t <= position; t++) {
			uint64_t word;
			uint64_t place = mix(position, t) % words;
			memcpy(&word, record(sim, rows->blocks, layer, t) + 8 * place, sizeof word);
			hash = mix(hash, word);
		}
	}
	return hash;
}

/* Ends of text never come by themselves: lengths are the workload's business. */
static bool may_come(const struct model_config *model, const struct sample_request *request, uint32_t id)
{
	for (uint32_t i = 0; i < model->eos_count; i++)
		if (model->eos_ids[i] == id)
			return false;
	for (uint32_t i = 0; i < request->ban_count; i++)
		if (request->bans[i] == id)
			return false;
	return true;
}

static void sample(const struct sim *sim, uint64_t hash, const struct sample_request *request,
		   struct sample_result *ret_result)
{
	const struct sample_params *params = request->params;
	uint32_t vocab = sim->model->vocab_count;
	memset(ret_result, 0, sizeof *ret_result);
	if (params->temperature > 0) {
		double u = rand_sample(params->seed, request->choice, request->position);
		hash = mix(hash, (uint64_t)(u * 0x1p53));
	}
	uint32_t token = (uint32_t)(hash % vocab), tries = 0;
	while (!may_come(sim->model, request, token) && tries++ < vocab)
		token = (token + 1) % vocab;
	ret_result->token = token;
	ret_result->logprob = -(float)(hash >> 40) * 0x1p-24f;
	ret_result->top_count = MIN(MIN(params->top_logprobs, SAMPLE_TOP_MAX), vocab);
	for (uint32_t i = 0; i < ret_result->top_count; i++) {
		ret_result->top_ids[i] = (token + i) % vocab;
		ret_result->top_logprobs[i] = ret_result->logprob - (float)i;
	}
}

static double batch_seconds(const struct sim *sim, const struct engine_batch *batch)
{
	const struct engine_sim_config *c = &sim->base.config.sim;
	double seconds = 0;
	bool step = false;
	for (uint32_t e = 0; e < batch->rows_count; e++) {
		double p = batch->rows[e].position, n = batch->rows[e].token_count;
		if (batch->rows[e].token_count == 1 && batch->rows[e].position) {
			step = true;
			seconds += c->step_seq_s + c->step_context_s * p;
		} else {
			seconds += c->prefill_token_s * n +
				   c->prefill_square_s * ((p + n) * (p + n) - p * p);
		}
	}
	if (step)
		seconds += c->step_s;
	double share = (double)(batch->layer_end - batch->layer_first) / sim->model->layer_count;
	return seconds * share / c->speed;
}

static void sleep_until(const struct timespec *start, double seconds)
{
	if (!(seconds > 0))
		return;
	uint64_t ns = (uint64_t)start->tv_nsec + (uint64_t)(seconds * 1e9);
	struct timespec end = { start->tv_sec + (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR)
		;
}

static void sample_rows(const struct sim *sim, const struct engine_rows *rows)
{
	uint32_t vocab = sim->model->vocab_count;
	for (uint32_t t = 0; t < rows->token_count; t++) {
		bool last = t == rows->token_count - 1;
		if (!rows->ret_logits && !(last && rows->sample_count))
			continue;
		uint64_t hash = context_hash(sim, rows, rows->position + t);
		if (rows->ret_logits) {
			float *logits = rows->ret_logits + (size_t)t * vocab;
			memset(logits, 0, vocab * sizeof *logits);
			logits[hash % vocab] = 1;
		}
		for (uint32_t s = 0; last && s < rows->sample_count; s++)
			sample(sim, hash, &rows->samples[s], &rows->ret_samples[s]);
	}
}

static int sim_run(struct engine *engine, const struct engine_batch *batch)
{
	struct sim *sim = (struct sim *)engine;
	double seconds = batch_seconds(sim, batch);
	uint32_t layers = batch->layer_end - batch->layer_first;
	struct timespec start;
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (uint32_t layer = batch->layer_first; layer < batch->layer_end; layer++) {
		for (uint32_t e = 0; e < batch->rows_count; e++)
			write_records(sim, &batch->rows[e], layer);
		sleep_until(&start, seconds * (layer - batch->layer_first + 1) / layers);
		if (batch->on_layer)
			batch->on_layer(batch->context, layer);
	}
	if (batch->layer_end == sim->model->layer_count)
		for (uint32_t e = 0; e < batch->rows_count; e++)
			sample_rows(sim, &batch->rows[e]);
	return 0;
}

static void sim_close(struct engine *engine)
{
	free(engine);
}

static const struct engine_ops ops = { .numerics = "sim", .run = sim_run, .close = sim_close };

static const char *sim_objection(const struct engine_config *config)
{
	const struct engine_sim_config *c = &config->sim;
	if (kv_shape_layer_count(&config->shape) != model_config(config->model)->layer_count)
		return "the KV shape has another number of layers than the model";
	for (uint32_t layer = 0; layer < kv_shape_layer_count(&config->shape); layer++)
		if (record_bytes(&config->shape, layer) < 8)
			return "the sim engine needs at least 8 bytes of KV per token and layer";
	if (!(c->speed > 0 && c->speed <= 1e9))
		return "sim speed must be above 0";
	if (!(c->prefill_token_s >= 0 && c->prefill_square_s >= 0 && c->step_s >= 0 &&
	      c->step_seq_s >= 0 && c->step_context_s >= 0))
		return "the sim engine's times must not be negative";
	return NULL;
}

int engine_sim_open(const struct engine_config *config, struct engine **ret_engine, char *ret_error,
		    size_t error_bytes)
{
	const char *objection = sim_objection(config);
	if (objection) {
		snprintf(ret_error, error_bytes, "%s", objection);
		return -EINVAL;
	}
	struct sim *sim = calloc(1, sizeof *sim);
	if (!sim) {
		snprintf(ret_error, error_bytes, "no memory for the engine");
		return -ENOMEM;
	}
	sim->base.ops = &ops;
	sim->base.config = *config;
	sim->base.block_bytes = kv_shape_block_bytes(&config->shape);
	sim->model = model_config(config->model);
	snprintf(sim->base.description, sizeof sim->base.description, "sim, %g times real time",
		 config->sim.speed);
	*ret_engine = &sim->base;
	return 0;
}
