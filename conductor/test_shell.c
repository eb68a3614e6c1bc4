/* The core thread with a real loop and real connections: one fake node that does both roles, one
 * front played by the test. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <errno.h>
#include <jansson.h>

#include "base/clock.h"
#include "base/log.h"
#include "baton.pb-c.h"
#include "conductor/core/conductor.h"
#include "conductor/shell.h"
#include "frame.h"

struct fake {
	uv_loop_t loop;
	struct bridge bridge;
	struct shell *shell;
	uint16_t port;
	struct wire_conn *conn;
	bool ready, closed;
	int close_reason;
	Baton__Welcome *welcome;
	Baton__Prefill *prefill; /* the last one */
	uint32_t prefills, releases, acks, commands;
};

static void on_ready(struct wire_conn *conn, void *context)
{
	struct fake *fake = context;

	(void)conn;
	fake->ready = true;
}

static int on_frame(struct wire_conn *conn, uint16_t type, const uint8_t *body, uint32_t bytes,
		    void *context)
{
	struct fake *fake = context;

	(void)conn;
	if (type == FRAME_WELCOME) {
		fake->welcome = baton__welcome__unpack(NULL, bytes, body);
	} else if (type == FRAME_PREFILL) {
		if (fake->prefill)
			baton__prefill__free_unpacked(fake->prefill, NULL);
		fake->prefill = baton__prefill__unpack(NULL, bytes, body);
		fake->prefills++;
	}
	fake->releases += type == FRAME_RELEASE;
	fake->acks += type == FRAME_ACK;
	fake->commands += type == FRAME_COMMAND;
	return 0;
}

static void on_close(struct wire_conn *conn, int reason, void *context)
{
	struct fake *fake = context;

	(void)conn;
	fake->closed = true;
	fake->close_reason = reason;
	fake->conn = NULL;
}

static void front_woken(uv_async_t *async)
{
	(void)async;
}

static const struct wire_callbacks callbacks = { on_ready, on_frame, on_close };
static struct shell_model model = { .name = "tiny", .block_tokens = 64, .max_model_len = 1024 };

static void fake_open(struct fake *fake)
{
	struct shell_config config = {
		.node = "conductor",
		.control_host = "127.0.0.1",
		.models = &model,
		.model_count = 1,
		.policy = "least-loaded",
		.requests_max = 64,
		.heartbeat_ns = NS_PER_S / 2,
		.lease_ns = 3 * NS_PER_S,
		.resume_wait_ns = 10 * NS_PER_S,
		.predicted_tokens = 64,
	};

	memset(fake, 0, sizeof *fake);
	log_init("test", LOG_ERROR);
	assert_int_equal(uv_loop_init(&fake->loop), 0);
	assert_int_equal(bridge_init(&fake->bridge, 1, metrics_new()), 0);
	uv_async_init(&fake->loop, &fake->bridge.fronts[0].wake_front, front_woken);
	assert_int_equal(shell_open(&fake->loop, &config, &fake->bridge, &fake->shell, &fake->port),
			 0);
	assert_int_not_equal(fake->port, 0);
}

static void shell_is_closed(void *context)
{
	*(bool *)context = true;
}

static void fake_close(struct fake *fake)
{
	bool closed = false;

	assert_int_equal(shell_close(fake->shell, shell_is_closed, &closed), 0);
	while (!closed)
		uv_run(&fake->loop, UV_RUN_ONCE);
	uv_close((uv_handle_t *)&fake->bridge.fronts[0].wake_front, NULL);
	if (fake->conn)
		wire_close(fake->conn, -ECANCELED);
	while (uv_run(&fake->loop, UV_RUN_ONCE))
		;
	assert_int_equal(uv_loop_close(&fake->loop), 0);
	bridge_fini(&fake->bridge);
	metrics_free(fake->bridge.metrics);
	if (fake->prefill)
		baton__prefill__free_unpacked(fake->prefill, NULL);
	if (fake->welcome)
		baton__welcome__free_unpacked(fake->welcome, NULL);
}

/* Runs the loop until @condition. */
#define run_until(fake, condition)                                                               \
	do {                                                                                     \
		uint64_t until = clock_now_ns() + 5 * NS_PER_S;                                  \
		while (!(condition) && clock_now_ns() < until)                                   \
			uv_run(&(fake)->loop, UV_RUN_ONCE);                                      \
		assert_true(condition);                                                          \
	} while (0)

static void send_message(struct fake *fake, uint16_t type, const ProtobufCMessage *message)
{
	uint8_t body[4096];

	assert_true(protobuf_c_message_get_packed_size(message) < sizeof body);
	uint32_t bytes = (uint32_t)protobuf_c_message_pack(message, body);
	assert_int_equal(wire_send(fake->conn, type, body, bytes), 0);
}

static void node_connect_as(struct fake *fake, uint64_t incarnation, const char *served,
			    uint8_t format_byte)
{
	uint8_t format[32] = { format_byte };
	struct wire_key key = { { 0 } };
	Baton__Hello hello;

	fake->ready = fake->closed = false;
	assert_int_equal(wire_connect(&fake->loop, "127.0.0.1", fake->port, NULL, &key, &callbacks,
				      fake, &fake->conn),
			 0);
	run_until(fake, fake->ready);
	baton__hello__init(&hello);
	hello.version_min = hello.version_max = 1;
	hello.node = (char *)"both-0";
	hello.incarnation = incarnation;
	hello.role = ROLE_BOTH;
	hello.model = (char *)served;
	hello.has_kv_format = true;
	hello.kv_format = (ProtobufCBinaryData){ 32, format };
	hello.admin = (char *)"127.0.0.1:9600";
	send_message(fake, FRAME_HELLO, &hello.base);
	run_until(fake, fake->welcome);
}

static void node_connect(struct fake *fake, uint64_t incarnation, const char *served)
{
	node_connect_as(fake, incarnation, served, 0);
}

static void node_ready(struct fake *fake)
{
	Baton__Report report;
	uint32_t before = fake->acks;

	baton__report__init(&report);
	report.role = ROLE_BOTH;
	report.state = 2;
	send_message(fake, FRAME_REPORT, &report.base);
	run_until(fake, fake->acks > before);
}

static void submit(struct fake *fake, uint64_t id, uint32_t choices)
{
	struct bridge_message *message = calloc(1, sizeof *message);
	struct request_spec *spec = calloc(1, sizeof *spec);

	spec->id = id;
	snprintf(spec->name, sizeof spec->name, "cmpl-%u", (unsigned)id);
	spec->prompt = malloc(3 * sizeof *spec->prompt);
	memcpy(spec->prompt, (uint32_t[]){ 5, 6, 7 }, 12);
	spec->prompt_count = 3;
	spec->choice_count = choices;
	spec->max_tokens = 8;
	spec->temperature = spec->top_p = 1;
	spec->arrival_ns = clock_now_ns();
	message->kind = BRIDGE_SUBMIT;
	message->spec = spec;
	atomic_fetch_add(&fake->bridge.requests_open, 1);
	assert_true(bridge_to_core(&fake->bridge, 0, message));
}

static void tell(struct fake *fake, enum bridge_kind kind, uint64_t id, enum bridge_query query,
		 const char *text)
{
	struct bridge_message *message = calloc(1, sizeof *message);

	message->kind = kind;
	message->id = id;
	message->query = query;
	message->reply_to = 77;
	message->text = text ? strdup(text) : NULL;
	assert_true(bridge_to_core(&fake->bridge, 0, message));
}

static struct bridge_message *next_message(struct fake *fake)
{
	struct bridge_message *message = NULL;

	run_until(fake, message || (message = ring_pop(&fake->bridge.fronts[0].to_front)));
	return message;
}

static void send_tokens(struct fake *fake, uint32_t choice, uint32_t position, uint32_t count,
			uint32_t finish)
{
	uint32_t ids[8] = { 10 + position, 11 + position, 12 + position }, top_ids[8] = { 1, 2, 3 };
	float logprobs[8] = { -1, -2, -3 };
	Baton__TokenRun run, *runs[1] = { &run };
	Baton__Tokens tokens;

	baton__tokens__init(&tokens);
	baton__token_run__init(&run);
	tokens.ref = fake->prefill->ref;
	tokens.n_runs = 1;
	tokens.runs = runs;
	tokens.has_cached_tokens = true;
	tokens.cached_tokens = 2;
	run.choice = choice;
	run.position = position;
	run.n_ids = run.n_logprobs = run.n_top_ids = run.n_top_logprobs = count;
	run.ids = ids;
	run.logprobs = run.top_logprobs = logprobs;
	run.top_ids = top_ids;
	run.has_finish = true;
	run.finish = finish;
	send_message(fake, FRAME_TOKENS, &tokens.base);
}

static void a_request_runs(void **state)
{
	struct bridge_message *message;
	struct fake fake;

	(void)state;
	fake_open(&fake);
	assert_false(fake.bridge.ready);
	node_connect(&fake, 5, "tiny");
	assert_true(fake.welcome->accepted);
	assert_int_equal(fake.welcome->lease_ms, 3000);
	node_ready(&fake);
	run_until(&fake, fake.bridge.ready);
	submit(&fake, 1, 1);
	run_until(&fake, fake.prefills == 1);
	assert_int_equal(fake.prefill->n_prompt, 3);
	assert_int_equal(fake.prefill->prompt[2], 7);
	assert_string_equal(fake.prefill->decode_node, "both-0");
	send_tokens(&fake, 0, 0, 2, 0);
	message = next_message(&fake);
	assert_int_equal(message->kind, BRIDGE_TOKENS);
	assert_int_equal(message->token_count, 2);
	assert_int_equal(message->tokens[1].id, 11);
	assert_int_equal(message->tokens[1].top_ids[0], 2);
	assert_true(message->tokens[1].logprob == -2);
	assert_int_equal(message->cached_tokens, 2);
	assert_int_equal(message->finish, FINISH_NONE);
	bridge_message_free(message);

	/* The node gives it back: it is asked to go on after two tokens. */
	Baton__Returned returned;
	baton__returned__init(&returned);
	returned.ref = fake.prefill->ref;
	returned.reason = 2;
	send_message(&fake, FRAME_RETURNED, &returned.base);
	run_until(&fake, fake.prefills == 2);
	assert_int_equal(fake.prefill->ref->epoch, 2);
	assert_int_equal(fake.prefill->n_output, 2);
	assert_int_equal(fake.prefill->output[1], 11);
	send_tokens(&fake, 0, 2, 2, 1);
	message = next_message(&fake);
	assert_int_equal(message->finish, FINISH_STOP);
	assert_int_equal(message->tokens[0].id, 12);
	bridge_message_free(message);
	run_until(&fake, fake.bridge.requests_open == 0);
	run_until(&fake, fake.releases >= 2);
	fake_close(&fake);
}

static void questions_are_answered(void **state)
{
	struct bridge_message *message;
	struct fake fake;

	(void)state;
	fake_open(&fake);
	node_connect(&fake, 5, "tiny");
	node_ready(&fake);
	submit(&fake, 1, 1);
	run_until(&fake, fake.prefills == 1);
	tell(&fake, BRIDGE_QUERY, 0, QUERY_STATS, NULL);
	message = next_message(&fake);
	assert_int_equal(message->kind, BRIDGE_REPLY);
	assert_int_equal(message->status, 200);
	assert_int_equal(message->reply_to, 77);
	json_t *stats = json_loads(message->text, 0, NULL);
	assert_non_null(stats);
	json_t *node = json_array_get(json_object_get(stats, "nodes"), 0);
	assert_string_equal(json_string_value(json_object_get(node, "name")), "both-0");
	assert_string_equal(json_string_value(json_object_get(node, "state")), "ready");
	assert_int_equal(json_integer_value(json_object_get(
				 json_object_get(json_object_get(stats, "conductor"), "requests"),
				 "waiting")),
			 1);
	json_decref(stats);
	bridge_message_free(message);
	tell(&fake, BRIDGE_QUERY, 0, QUERY_TRACE, "cmpl-1");
	message = next_message(&fake);
	json_t *trace = json_loads(message->text, 0, NULL);
	assert_string_equal(json_string_value(json_object_get(trace, "prefill_node")), "both-0");
	assert_int_equal(json_array_size(json_object_get(trace, "events")), 2);
	json_decref(trace);
	bridge_message_free(message);
	tell(&fake, BRIDGE_QUERY, 0, QUERY_TRACE, "cmpl-2");
	message = next_message(&fake);
	assert_int_equal(message->status, 404);
	bridge_message_free(message);
	tell(&fake, BRIDGE_QUERY, 0, QUERY_DRAIN, "both-0");
	message = next_message(&fake);
	assert_int_equal(message->status, 200);
	bridge_message_free(message);
	run_until(&fake, fake.commands == 1);
	assert_false(fake.bridge.ready);
	tell(&fake, BRIDGE_QUERY, 0, QUERY_DRAIN, "nobody");
	message = next_message(&fake);
	assert_int_equal(message->status, 404);
	bridge_message_free(message);
	tell(&fake, BRIDGE_QUERY, 0, QUERY_ROLE, "both-0 dancer");
	message = next_message(&fake);
	assert_int_equal(message->status, 400);
	bridge_message_free(message);
	tell(&fake, BRIDGE_CANCEL, 1, 0, NULL);
	run_until(&fake, fake.bridge.requests_open == 0 && fake.releases == 1);
	fake_close(&fake);
}

static void strangers_are_refused(void **state)
{
	struct fake fake;

	(void)state;
	fake_open(&fake);
	node_connect(&fake, 5, "another-model");
	assert_false(fake.welcome->accepted);
	assert_non_null(strstr(fake.welcome->reason, "model"));
	run_until(&fake, fake.closed);
	baton__welcome__free_unpacked(fake.welcome, NULL);
	fake.welcome = NULL;
	node_connect(&fake, 5, "tiny");
	assert_true(fake.welcome->accepted);
	/* A malformed frame ends the connection, not the conductor. */
	assert_int_equal(wire_send(fake.conn, FRAME_TOKENS, "\xff\xff", 2), 0);
	run_until(&fake, fake.closed);
	fake_close(&fake);
}

/* Who is not let in has no say in what the others' blocks must look like. */
static void a_refused_format_does_not_count(void **state)
{
	struct fake fake;
	uint8_t format[32];

	(void)state;
	fake_open(&fake);
	node_connect_as(&fake, 5, "tiny", 1);
	assert_true(fake.welcome->accepted);
	struct wire_conn *member = fake.conn;
	baton__welcome__free_unpacked(fake.welcome, NULL);
	fake.welcome = NULL;
	node_connect_as(&fake, 4, "tiny", 2); /* an older life of the same node */
	assert_false(fake.welcome->accepted);
	bridge_kv_format(&fake.bridge, 0, format);
	assert_int_equal(format[0], 1);
	run_until(&fake, fake.closed);
	fake.conn = member;
	fake_close(&fake);
}

static void stop_answers_what_is_open(void **state)
{
	struct fake fake;

	(void)state;
	fake_open(&fake);
	submit(&fake, 1, 3);
	submit(&fake, 2, 1);
	run_until(&fake, fake.bridge.requests_open == 2);
	bool closed = false;
	assert_int_equal(shell_close(fake.shell, shell_is_closed, &closed), 0);
	for (uint64_t id = 1; id <= 2; id++) {
		struct bridge_message *message = ring_pop(&fake.bridge.fronts[0].to_front);
		assert_non_null(message);
		assert_int_equal(message->kind, BRIDGE_FAILED);
		assert_int_equal(message->status, 503);
		assert_int_equal(message->id, id);
		bridge_message_free(message);
	}
	assert_int_equal(fake.bridge.requests_open, 0);
	while (!closed)
		uv_run(&fake.loop, UV_RUN_ONCE);
	uv_close((uv_handle_t *)&fake.bridge.fronts[0].wake_front, NULL);
	uv_run(&fake.loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&fake.loop), 0);
	bridge_fini(&fake.bridge);
	metrics_free(fake.bridge.metrics);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_request_runs),
		cmocka_unit_test(questions_are_answered),
		cmocka_unit_test(strangers_are_refused),
		cmocka_unit_test(a_refused_format_does_not_count),
		cmocka_unit_test(stop_answers_what_is_open),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
