/*
 * Frames from outside, through the node's codec into both cores. The input is a row of frames,
 * each u16 type, u16 length, body. Whatever it is, the codec refuses it or gives an event that
 * keeps the promises of codec.h, and the cores keep their invariants.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "decode-node/core/decode.h"
#include "node/codec.h"
#include "prefill-node/core/prefill.h"
#include "proto/frame.h"

#define VOCAB 100
#define MODEL_LEN 64

struct target {
	struct node_codec *codec;
	struct kv_node node;
	struct prefill *prefill;
	struct decode *decode;
	struct node_batch batch;
	struct node_actions actions;
	uint64_t now_ns;
};

static void check_request(const struct node_request *request)
{
	bool seen[NODE_CHOICES_MAX] = { false };

	CHECK(strnlen(request->model, sizeof request->model) < sizeof request->model);
	CHECK(request->token_count >= 1);
	CHECK(request->prompt_count >= 1 && request->prompt_count <= request->token_count);
	/* Of one that is too long only the beginning is kept. */
	for (uint32_t i = 0; i < MIN(request->token_count, MODEL_LEN); i++)
		CHECK(request->tokens[i] < VOCAB);
	CHECK(request->choice_count >= 1 && request->choice_count <= NODE_CHOICES_MAX);
	for (uint32_t i = 0; i < request->choice_count; i++) {
		CHECK(request->choices[i] < NODE_CHOICES_MAX);
		CHECK(!seen[request->choices[i]]);
		seen[request->choices[i]] = true;
	}
	CHECK(request->prompt_count == request->token_count || request->choice_count == 1);
	CHECK(request->sampling.max_tokens > request->token_count - request->prompt_count);
	CHECK(request->sampling.stop_id_count <= NODE_STOP_IDS_MAX);
	CHECK(request->sampling.temperature >= 0 && request->sampling.top_p > 0);
	CHECK(request->sampling.top_logprobs <= SAMPLE_TOP_MAX);
}

/* What a d would read from what p makes of this request is the same again. */
static void check_reserve_again(const struct node_event *event, struct node_codec *codec)
{
	struct node_action action = { .kind = NODE_DO_RESERVE, .ref = event->prefill.request.ref };
	struct node_request request = event->prefill.request;
	uint32_t tokens[MODEL_LEN];
	struct node_event again;
	struct buf body;

	if (request.token_count > MODEL_LEN)
		return; /* p refuses it */
	memcpy(tokens, request.tokens, request.token_count * sizeof *tokens);
	request.tokens = tokens;
	action.reserve.request = &request;
	action.reserve.peer = &event->prefill.decode;
	buf_init(&body, 0);
	node_codec_reserve(&body, &action, 1, "p");
	CHECK(node_codec_read(codec, FRAME_RESERVE, (const uint8_t *)body.data,
			      (uint32_t)body.bytes, &again) == 0);
	const struct node_request *read = &again.reserve.request;
	CHECK(node_ref_equal(&read->ref, &request.ref));
	CHECK(read->token_count == request.token_count &&
	      read->prompt_count == request.prompt_count);
	CHECK(!memcmp(read->tokens, tokens, read->token_count * sizeof *tokens));
	CHECK(read->choice_count == request.choice_count);
	CHECK(!memcmp(read->choices, request.choices,
		      request.choice_count * sizeof *read->choices));
	CHECK(kv_key_equal(&read->root_key, &request.root_key));
	CHECK(!strcmp(read->model, request.model));
	CHECK(read->sampling.seed == request.sampling.seed);
	CHECK(read->sampling.stop_id_count == request.sampling.stop_id_count);
	buf_fini(&body);
}

/* Nobody is there to answer, send or expect; what the cores decide goes nowhere. */
static void step(struct target *t, const struct node_event *event, bool to_decode)
{
	node_actions_clear(&t->actions);
	if (to_decode)
		decode_step(t->decode, event, &t->actions);
	else
		prefill_step(t->prefill, event, &t->actions);
	decode_check(t->decode);
	prefill_check(t->prefill);
	kv_node_check(&t->node);
}

static void run_batch(struct target *t)
{
	static uint32_t sampled[4 + NODE_CHOICES_MAX];
	struct node_event event = { .kind = NODE_BATCH_DONE, .now_ns = ++t->now_ns };

	node_batch_clear(&t->batch);
	node_actions_clear(&t->actions);
	decode_schedule(t->decode, t->now_ns, &t->batch, &t->actions);
	prefill_schedule(t->prefill, t->now_ns, &t->batch, &t->actions);
	event.batch.batch = &t->batch;
	event.batch.sampled = sampled;
	if (t->batch.row_count == 0)
		return;
	step(t, &event, true);
	step(t, &event, false);
}

static void give(struct target *t, uint16_t type, const uint8_t *body, uint32_t bytes)
{
	struct node_event event = { 0 };

	if (type == FRAME_HELLO) {
		struct node_hello hello;
		(void)node_codec_read_hello(t->codec, body, bytes, &hello);
		return;
	}
	if (type == FRAME_WELCOME) {
		struct node_welcome welcome;
		(void)node_codec_read_welcome(t->codec, body, bytes, &welcome);
		return;
	}
	if (type == FRAME_COMMAND) {
		struct node_command command;
		(void)node_codec_read_command(t->codec, body, bytes, &command);
		return;
	}
	if (node_codec_read(t->codec, type, body, bytes, &event) < 0)
		return;
	event.now_ns = ++t->now_ns;
	switch (event.kind) {
	case NODE_PREFILL:
		check_request(&event.prefill.request);
		step(t, &event, false);
		check_reserve_again(&event, t->codec);
		break;
	case NODE_RESERVE:
		check_request(&event.reserve.request);
		step(t, &event, true);
		break;
	case NODE_RESERVE_ANSWER:
		step(t, &event, false);
		break;
	case NODE_FIRST_TOKENS:
		step(t, &event, true);
		break;
	case NODE_RELEASE:
		step(t, &event, true);
		step(t, &event, false);
		break;
	default:
		CHECK(!"a frame's event");
	}
	run_batch(t);
}

static void open_target(struct target *t)
{
	struct prefill_config prefill = {
		.incarnation = 1,
		.model = "m",
		.layer_count = 1,
		.max_model_len = MODEL_LEN,
		.requests_max = 4,
		.chunk_tokens = 8,
		.ahead_tokens = 16,
		.predicted_tokens = 4,
		.answer_timeout_ns = 1000,
		.send_timeout_ns = 1000,
	};
	struct decode_config decode = {
		.incarnation = 1,
		.model = "m",
		.layer_count = 1,
		.max_model_len = MODEL_LEN,
		.sequences_max = 4,
		.landing_timeout_ns = 1000,
	};
	CHECK(kv_node_init(&t->node, 24, 4) == 0);
	CHECK(prefill_new(&prefill, &t->node, &t->prefill) == 0);
	CHECK(decode_new(&decode, &t->node, &t->decode) == 0);
	CHECK(node_batch_init(&t->batch, 4, 16) == 0);
	CHECK(node_actions_init(&t->actions, 4, t->batch.sample_max) == 0);
}

static void close_target(struct target *t)
{
	node_actions_fini(&t->actions);
	node_batch_fini(&t->batch);
	decode_free(t->decode);
	prefill_free(t->prefill);
	kv_node_fini(&t->node);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static struct node_codec *codec; /* one for all inputs, as in a node */
	struct target t = { 0 };

	if (!codec)
		codec = node_codec_new(&(struct node_codec_limits){ VOCAB, MODEL_LEN });
	t.codec = codec;
	open_target(&t);
	while (bytes >= 4) {
		uint16_t type = (uint16_t)(data[0] | data[1] << 8);
		uint32_t length = (uint32_t)(data[2] | data[3] << 8);
		data += 4;
		bytes -= 4;
		if (length > bytes)
			length = (uint32_t)bytes;
		give(&t, type, data, length);
		data += length;
		bytes -= length;
	}
	close_target(&t);
	return 0;
}
