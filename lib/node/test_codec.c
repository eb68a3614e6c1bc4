/* What the writers write, read back with the generated code or with the readers; and what the
 * readers must refuse. Random bytes are the fuzz target's (tests/fuzz/fuzz_node_frame.c). */
#include "base/test_util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "baton.pb-c.h"
#include "node/codec.h"
#include "proto/frame.h"

#define VOCAB 1000
#define MODEL_LEN 256

static const struct node_ref ref = { UINT64_C(0xfedcba9876543210), 77, 3 };

static struct node_codec *codec_open(void)
{
	struct node_codec *codec = node_codec_new(&(struct node_codec_limits){ VOCAB, MODEL_LEN });
	assert_non_null(codec);
	return codec;
}

static void fill_request(struct node_request *request, const uint32_t tokens[], uint32_t count)
{
	*request = (struct node_request){
		.ref = ref,
		.model = "a model",
		.sampling = { .temperature = 0.7f,
			      .top_p = 0.9f,
			      .min_p = 0.05f,
			      .top_k = 40,
			      .seed = UINT64_MAX,
			      .top_logprobs = 5,
			      .want_logprobs = true,
			      .ignore_eos = true,
			      .max_tokens = 300,
			      .min_tokens = 2,
			      .stop_ids = { 0, 999 },
			      .stop_id_count = 2 },
		.tokens = tokens,
		.token_count = count,
		.prompt_count = count,
		.choices = { 0, 127, 5 },
		.choice_count = 3,
		.root_key = { { 1, 2, 3, 255 } },
		.priority = -7,
	};
}

static void test_reserve(void **state)
{
	struct node_codec *codec = codec_open();
	uint32_t tokens[MODEL_LEN];
	struct node_request request;
	struct node_peer peer = { .incarnation = 99 };
	struct node_action action = { .kind = NODE_DO_RESERVE, .ref = ref };
	struct node_event event;
	struct buf body;

	for (uint32_t i = 0; i < MODEL_LEN; i++)
		tokens[i] = i * 3;
	fill_request(&request, tokens, MODEL_LEN);
	action.reserve.request = &request;
	action.reserve.peer = &peer;
	action.reserve.predicted_tokens = 64;
	for (int resumed = 0; resumed < 2; resumed++) {
		if (resumed) {
			request.prompt_count = 200;
			request.choice_count = 1;
		}
		buf_init(&body, 0);
		node_codec_reserve(&body, &action, 12, "prefill-0");
		assert_int_equal(node_codec_read(codec, FRAME_RESERVE, (const uint8_t *)body.data,
						 (uint32_t)body.bytes, &event),
				 0);
		const struct node_request *read = &event.reserve.request;
		assert_int_equal(event.kind, NODE_RESERVE);
		assert_true(event.reserve.source == 12 && event.reserve.target == 99);
		assert_string_equal(event.reserve.source_node, "prefill-0");
		assert_int_equal(event.reserve.predicted_tokens, 64);
		assert_false(event.reserve.local);
		assert_true(node_ref_equal(&read->ref, &ref));
		assert_string_equal(read->model, "a model");
		assert_memory_equal(&read->sampling, &request.sampling, sizeof read->sampling);
		assert_int_equal(read->token_count, MODEL_LEN);
		assert_int_equal(read->prompt_count, request.prompt_count);
		assert_memory_equal(read->tokens, tokens, sizeof tokens);
		assert_int_equal(read->choice_count, request.choice_count);
		assert_memory_equal(read->choices, request.choices,
				    request.choice_count * sizeof(uint32_t));
		assert_true(kv_key_equal(&read->root_key, &request.root_key));
		assert_int_equal(read->priority, -7);
		buf_fini(&body);
	}
	node_codec_free(codec);
}

/* Another process may have another limit: that costs the one request, not the connection. */
static void test_longer_than_fits(void **state)
{
	struct node_codec *codec = codec_open();
	uint32_t tokens[MODEL_LEN + 44];
	struct node_request request;
	struct node_peer peer = { .incarnation = 99 };
	struct node_action action = { .kind = NODE_DO_RESERVE, .ref = ref };
	struct node_event event;
	struct buf body;

	for (uint32_t i = 0; i < ARRAY_COUNT(tokens); i++)
		tokens[i] = i;
	fill_request(&request, tokens, ARRAY_COUNT(tokens));
	action.reserve.request = &request;
	action.reserve.peer = &peer;
	buf_init(&body, 0);
	node_codec_reserve(&body, &action, 12, "prefill-0");
	assert_int_equal(node_codec_read(codec, FRAME_RESERVE, (const uint8_t *)body.data,
					 (uint32_t)body.bytes, &event),
			 0);
	assert_int_equal(event.reserve.request.token_count, ARRAY_COUNT(tokens));
	assert_memory_equal(event.reserve.request.tokens, tokens, MODEL_LEN * sizeof tokens[0]);

	tokens[MODEL_LEN + 1] = VOCAB; /* what is not kept is looked at all the same */
	buf_clear(&body);
	node_codec_reserve(&body, &action, 12, "prefill-0");
	assert_int_equal(node_codec_read(codec, FRAME_RESERVE, (const uint8_t *)body.data,
					 (uint32_t)body.bytes, &event),
			 BATON_EPROTOCOL);
	buf_fini(&body);
	node_codec_free(codec);
}

static void test_answer_first_release(void **state)
{
	struct node_codec *codec = codec_open();
	struct node_event event;
	struct buf body;
	const struct node_first_token firsts[] = { { 0, 5, false }, { 9, 999, true } };
	struct node_action action = { .kind = NODE_DO_FIRST_TOKENS, .ref = ref };

	buf_init(&body, 0);
	node_codec_reserve_answer(&body, &ref, true, 3, NULL, (const uint8_t *)"ticket", 6);
	assert_int_equal(node_codec_read(codec, FRAME_RESERVE_ANSWER, (const uint8_t *)body.data,
					 (uint32_t)body.bytes, &event),
			 0);
	assert_true(event.answer.accepted);
	assert_int_equal(event.answer.cached_blocks, 3);
	assert_int_equal(event.answer.ticket_bytes, 6);
	assert_memory_equal(event.answer.ticket, "ticket", 6);
	buf_clear(&body);
	node_codec_reserve_answer(&body, &ref, false, 0, "no\nroom", NULL, 0);
	assert_int_equal(node_codec_read(codec, FRAME_RESERVE_ANSWER, (const uint8_t *)body.data,
					 (uint32_t)body.bytes, &event),
			 0);
	assert_false(event.answer.accepted);
	assert_int_equal(event.answer.ticket_bytes, 0);
	assert_string_equal(event.answer.reason, "no"); /* one line of a log, never two */

	buf_clear(&body);
	action.first.tokens = firsts;
	action.first.token_count = 2;
	node_codec_first_tokens(&body, &action);
	assert_int_equal(node_codec_read(codec, FRAME_FIRST_TOKENS, (const uint8_t *)body.data,
					 (uint32_t)body.bytes, &event),
			 0);
	assert_int_equal(event.first.token_count, 2);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(event.first.tokens[i].choice, firsts[i].choice);
		assert_int_equal(event.first.tokens[i].token, firsts[i].token);
		assert_int_equal(event.first.tokens[i].ended, firsts[i].ended);
	}

	buf_clear(&body);
	node_codec_release(&body, &ref);
	assert_int_equal(node_codec_read(codec, FRAME_RELEASE, (const uint8_t *)body.data,
					 (uint32_t)body.bytes, &event),
			 0);
	assert_true(node_ref_equal(&event.release.ref, &ref));
	assert_false(event.release.one_choice);
	buf_fini(&body);
	node_codec_free(codec);
}

static Baton__Tokens *write_tokens(const struct node_action *action,
				   const struct sample_result results[])
{
	struct buf body;
	buf_init(&body, 0);
	node_codec_tokens(&body, action, results, 2);
	assert_false(body.failed);
	Baton__Tokens *read = baton__tokens__unpack(NULL, body.bytes, (const uint8_t *)body.data);
	assert_non_null(read);
	buf_fini(&body);
	return read;
}

static void test_tokens(void **state)
{
	struct sample_result results[3] = {
		[1] = { .token = 40,
			.logprob = -0.5f,
			.top_count = 2,
			.top_ids = { 40, 7 },
			.top_logprobs = { -0.5f, -1.5f } },
		[2] = { .token = 2, .logprob = -0.25f },
	};
	const struct node_token tokens[] = { { 4, 10, 40, 1, NODE_FINISH_NONE },
					     { 5, 0, 2, 2, NODE_FINISH_STOP } };
	struct node_action action = { .kind = NODE_DO_TOKENS, .ref = ref };

	action.tokens.v = tokens;
	action.tokens.count = 2;
	action.tokens.want_logprobs = true;
	action.tokens.has_prefill = true;
	action.tokens.cached_tokens = 128;
	action.tokens.prefill_ns = 5000999;
	action.tokens.queue_ns = 1000;
	Baton__Tokens *read = write_tokens(&action, results);
	assert_int_equal(read->n_runs, 2);
	assert_int_equal(read->runs[0]->choice, 4);
	assert_int_equal(read->runs[0]->position, 10);
	assert_int_equal(read->runs[0]->n_ids, 1);
	assert_int_equal(read->runs[0]->ids[0], 40);
	assert_true(read->runs[0]->logprobs[0] == -0.5f);
	assert_int_equal(read->runs[0]->n_top_ids, 2);
	assert_int_equal(read->runs[0]->top_ids[1], 7);
	assert_true(read->runs[0]->top_logprobs[1] == -1.5f);
	assert_int_equal(read->runs[0]->finish, 0);
	assert_false(read->runs[0]->has_stop_id);
	assert_int_equal(read->runs[1]->finish, 1);
	assert_true(read->runs[1]->has_stop_id);
	assert_int_equal(read->runs[1]->stop_id, 2);
	assert_int_equal(read->runs[1]->n_top_ids, 0);
	assert_int_equal(read->cached_tokens, 128);
	assert_int_equal(read->prefill_us, 5000);
	assert_int_equal(read->queue_us, 1);
	assert_false(read->has_transfer_us || read->has_hidden_permille);
	baton__tokens__free_unpacked(read, NULL);

	/* Without logprobs the results are not looked at; facts may come alone. */
	action.tokens.want_logprobs = false;
	read = write_tokens(&action, NULL);
	assert_int_equal(read->runs[0]->n_logprobs, 0);
	baton__tokens__free_unpacked(read, NULL);
	action = (struct node_action){ .kind = NODE_DO_TOKENS, .ref = ref };
	action.tokens.has_transfer = action.tokens.has_hidden = true;
	action.tokens.transfer_ns = UINT64_MAX;
	action.tokens.transfer_bytes = UINT64_C(1) << 40;
	action.tokens.hidden_permille = 875;
	read = write_tokens(&action, NULL);
	assert_int_equal(read->n_runs, 0);
	assert_int_equal(read->transfer_us, UINT32_MAX);
	assert_true(read->transfer_bytes == UINT64_C(1) << 40);
	assert_int_equal(read->transport, 2);
	assert_int_equal(read->hidden_permille, 875);
	baton__tokens__free_unpacked(read, NULL);
}

static void test_returned(void **state)
{
	struct node_action action = { .kind = NODE_DO_RETURNED, .ref = ref };
	struct buf body;

	action.returned.one_choice = true;
	action.returned.choice = 6;
	action.returned.reason = RETURNED_PREEMPTED;
	action.returned.detail = node_returned_text(RETURNED_PREEMPTED);
	buf_init(&body, 0);
	node_codec_returned(&body, &action);
	Baton__Returned *read = baton__returned__unpack(NULL, body.bytes,
							(const uint8_t *)body.data);
	assert_non_null(read);
	assert_true(read->ref->conductor == ref.conductor && read->ref->epoch == 3);
	assert_true(read->has_choice);
	assert_int_equal(read->choice, 6);
	assert_int_equal(read->reason, 2); /* the values are on the wire */
	assert_string_equal(read->detail, "preempted, blocks ran out");
	baton__returned__free_unpacked(read, NULL);
	buf_fini(&body);
}

static void test_joining(void **state)
{
	struct node_codec *codec = codec_open();
	uint8_t kv_format[32] = { 9, 8, 7 };
	struct node_hello hello = {
		.node = "decode-3",
		.incarnation = 123456789,
		.role = NODE_ROLE_BOTH,
		.model = "m",
		.kv_format = kv_format,
		.numerics = "exact",
		.block_tokens = 64,
		.block_bytes = 1474560,
		.blocks_total = 100,
		.max_num_seqs = 16,
		.max_num_batched_tokens = 512,
		.max_model_len = 2048,
		.peer_host = "::1",
		.peer_port = 7601,
		.transfer = "addr",
		.transfer_bytes = 4,
		.admin_host = "::1",
		.admin_port = 9601,
	};
	struct node_welcome welcome = { .accepted = true,
					.reason = "",
					.incarnation = 5,
					.node = "c",
					.heartbeat_ms = 500,
					.lease_ms = 3000 };
	struct node_hello read_hello;
	struct node_welcome read_welcome;
	struct buf body;

	buf_init(&body, 0);
	node_codec_hello(&body, &hello);
	assert_int_equal(node_codec_read_hello(codec, (const uint8_t *)body.data,
					       (uint32_t)body.bytes, &read_hello),
			 0);
	assert_string_equal(read_hello.node, "decode-3");
	assert_true(read_hello.incarnation == 123456789);
	assert_int_equal(read_hello.role, NODE_ROLE_BOTH);
	assert_memory_equal(read_hello.kv_format, kv_format, 32);
	assert_string_equal(read_hello.numerics, "exact");
	assert_int_equal(read_hello.block_bytes, 1474560);
	assert_int_equal(read_hello.max_model_len, 2048);
	assert_string_equal(read_hello.peer_host, "::1");
	assert_memory_equal(read_hello.transfer, "addr", 4);
	assert_string_equal(read_hello.admin_host, "::1"); /* the last colon parts host and port */
	assert_int_equal(read_hello.admin_port, 9601);

	/* Without a format nobody can tell whether its blocks mean the same. */
	buf_clear(&body);
	hello.kv_format = NULL;
	node_codec_hello(&body, &hello);
	assert_int_equal(node_codec_read_hello(codec, (const uint8_t *)body.data,
					       (uint32_t)body.bytes, &read_hello),
			 BATON_EPROTOCOL);

	buf_clear(&body);
	node_codec_welcome(&body, &welcome);
	assert_int_equal(node_codec_read_welcome(codec, (const uint8_t *)body.data,
						 (uint32_t)body.bytes, &read_welcome),
			 0);
	assert_true(read_welcome.accepted);
	assert_int_equal(read_welcome.lease_ms, 3000);
	buf_clear(&body);
	welcome.accepted = false;
	welcome.reason = "an older life";
	node_codec_welcome(&body, &welcome);
	assert_int_equal(node_codec_read_welcome(codec, (const uint8_t *)body.data,
						 (uint32_t)body.bytes, &read_welcome),
			 0);
	assert_false(read_welcome.accepted);
	assert_string_equal(read_welcome.reason, "an older life");
	buf_fini(&body);
	node_codec_free(codec);
}

static void test_report(void **state)
{
	struct node_report report = {
		.role = NODE_ROLE_DECODE,
		.state = 2,
		.dispatches_seen = 9,
		.sequence = 4,
		.load = { .running = 1,
			  .waiting = 2,
			  .queued_tokens = 3,
			  .running_tokens = 4,
			  .reserved_tokens = 5,
			  .preemptions = 6,
			  .prefix_queries = 7,
			  .prefix_hits = 8,
			  .prefill_tokens = 9,
			  .decode_tokens = 10 },
		.blocks = { [KV_FREE] = 11,
			    [KV_RESERVED] = 12,
			    [KV_USED] = 13,
			    [KV_CACHED] = 14,
			    [KV_QUARANTINED] = 15 },
		.landed_shm = 16,
		.landed_tcp = 17,
		.landed_rdma = 18,
		.sent = 19,
		.slices_corrupt = 20,
		.frames_refused = 21,
	};
	struct buf body;

	buf_init(&body, 0);
	node_codec_report(&body, &report);
	Baton__Report *read = baton__report__unpack(NULL, body.bytes, (const uint8_t *)body.data);
	assert_non_null(read);
	assert_int_equal(read->dispatches_seen, 9);
	assert_int_equal(read->running, 1);
	assert_int_equal(read->waiting, 2);
	assert_int_equal(read->queued_tokens, 3);
	assert_int_equal(read->running_tokens, 4);
	assert_int_equal(read->reserved_tokens, 5);
	assert_int_equal(read->preemptions, 6);
	assert_int_equal(read->prefix_queries, 7);
	assert_int_equal(read->prefix_hits, 8);
	assert_int_equal(read->prefill_tokens, 9);
	assert_int_equal(read->decode_tokens, 10);
	assert_int_equal(read->blocks_free, 11);
	assert_int_equal(read->blocks_reserved, 12);
	assert_int_equal(read->blocks_used, 13);
	assert_int_equal(read->blocks_cached, 14);
	assert_int_equal(read->blocks_quarantined, 15);
	assert_int_equal(read->transfer_bytes_shm, 16);
	assert_int_equal(read->transfer_bytes_tcp, 17);
	assert_int_equal(read->transfer_bytes_rdma, 18);
	assert_int_equal(read->transfer_bytes_sent, 19);
	assert_int_equal(read->slices_corrupt, 20);
	assert_int_equal(read->frames_refused, 21);
	baton__report__free_unpacked(read, NULL);
	buf_fini(&body);
}

/* A message of a megabyte of two-byte fields would make the parser note half a million places. */
static void test_arena_is_bounded(void **state)
{
	struct node_codec *codec = codec_open();
	struct node_event event;
	uint32_t bytes = FRAME_BODY_BYTES_MAX;
	uint8_t *body = malloc(bytes);

	assert_non_null(body);
	for (uint32_t i = 0; i < bytes; i += 2) {
		body[i] = 5 << 3; /* Prefill.prompt, not packed */
		body[i + 1] = 1;
	}
	assert_int_equal(node_codec_read(codec, FRAME_PREFILL, body, bytes, &event), -EMSGSIZE);
	assert_int_equal(node_codec_read(codec, FRAME_PREFILL, body, 2, &event), BATON_EPROTOCOL);
	assert_int_equal(node_codec_read(codec, FRAME_TOKENS, body, 2, &event), BATON_EPROTOCOL);
	free(body);
	node_codec_free(codec);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reserve),
		cmocka_unit_test(test_longer_than_fits),
		cmocka_unit_test(test_answer_first_release),
		cmocka_unit_test(test_tokens),
		cmocka_unit_test(test_returned),
		cmocka_unit_test(test_joining),
		cmocka_unit_test(test_report),
		cmocka_unit_test(test_arena_is_bounded),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
