/* Frames to events and actions to frames, and that nothing malformed passes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <cmocka.h>

#include <errno.h>

#include "base/err.h"
#include "base/rand.h"
#include "baton.pb-c.h"
#include "conductor/codec.h"
#include "frame.h"

static uint8_t body[1 << 20];

static int read_message(struct codec *codec, uint16_t type, const ProtobufCMessage *message,
			struct codec_frame *frame)
{
	assert_true(protobuf_c_message_get_packed_size(message) <= sizeof body);
	size_t bytes = protobuf_c_message_pack(message, body);
	return codec_read(codec, type, body, (uint32_t)bytes, frame);
}

static void hello_base(Baton__Hello *hello)
{
	static uint8_t format[32] = { 1, 2, 3 };

	baton__hello__init(hello);
	hello->version_min = 1;
	hello->version_max = 3;
	hello->node = (char *)"prefill-0";
	hello->incarnation = 5;
	hello->role = ROLE_PREFILL;
	hello->model = (char *)"tiny";
	hello->has_kv_format = true;
	hello->kv_format = (ProtobufCBinaryData){ 32, format };
	hello->has_blocks_total = hello->has_block_tokens = true;
	hello->blocks_total = 100;
	hello->block_tokens = 64;
}

static void hello_reads(void **state)
{
	struct codec_frame frame;
	struct codec *codec;
	Baton__Hello hello;
	char name[100];

	(void)state;
	assert_int_equal(codec_new(&codec), 0);
	hello_base(&hello);
	assert_int_equal(read_message(codec, FRAME_HELLO, &hello.base, &frame), 0);
	assert_string_equal(frame.hello.node, "prefill-0");
	assert_int_equal(frame.hello.version, 1);
	assert_int_equal(frame.hello.blocks_total, 100);
	assert_string_equal(frame.hello.admin, "");
	assert_int_equal(frame.hello.kv_format[2], 3);
	hello.version_min = 2;
	assert_int_equal(read_message(codec, FRAME_HELLO, &hello.base, &frame), BATON_EVERSION);
	hello_base(&hello);
	hello.kv_format.len = 31;
	assert_int_equal(read_message(codec, FRAME_HELLO, &hello.base, &frame), BATON_EPROTOCOL);
	hello_base(&hello);
	hello.peer_host = (char *)"a b";
	assert_int_equal(read_message(codec, FRAME_HELLO, &hello.base, &frame), BATON_EPROTOCOL);
	hello.peer_host = (char *)"0123456789012345678901234567890123456789012345678901234567890123";
	assert_int_equal(read_message(codec, FRAME_HELLO, &hello.base, &frame), BATON_EPROTOCOL);
	hello.peer_host++; /* 63 */
	assert_int_equal(read_message(codec, FRAME_HELLO, &hello.base, &frame), 0);
	hello_base(&hello);
	hello.role = 4;
	assert_int_equal(read_message(codec, FRAME_HELLO, &hello.base, &frame), BATON_EPROTOCOL);
	hello_base(&hello);
	hello.node = (char *)"a b";
	assert_int_equal(read_message(codec, FRAME_HELLO, &hello.base, &frame), BATON_EPROTOCOL);
	memset(name, 'a', sizeof name - 1);
	name[99] = '\0';
	hello.node = name;
	assert_int_equal(read_message(codec, FRAME_HELLO, &hello.base, &frame), BATON_EPROTOCOL);
	assert_int_equal(codec_read(codec, FRAME_PREFILL, body, 0, &frame), -ENOTSUP);
	assert_int_equal(codec_read(codec, 999, body, 0, &frame), -ENOTSUP);
	assert_int_equal(codec_read(codec, FRAME_HELLO, body, 0, &frame), BATON_EPROTOCOL);
	codec_free(codec);
}

struct tokens_example {
	Baton__Tokens tokens;
	Baton__Ref ref;
	Baton__TokenRun run, *runs[1];
	uint32_t ids[2], top_ids[4];
	float logprobs[2], top_logprobs[4];
};

static void tokens_base(struct tokens_example *example)
{
	memset(example, 0, sizeof *example);
	baton__tokens__init(&example->tokens);
	baton__ref__init(&example->ref);
	baton__token_run__init(&example->run);
	example->tokens.ref = &example->ref;
	example->tokens.n_runs = 1;
	example->tokens.runs = example->runs;
	example->runs[0] = &example->run;
	example->ref.conductor = 7;
	example->ref.request = 9;
	example->ref.epoch = 2;
	example->run.choice = 1;
	example->run.position = 4;
	example->run.n_ids = 2;
	example->run.ids = example->ids;
	example->run.n_logprobs = 2;
	example->run.logprobs = example->logprobs;
	example->run.n_top_ids = example->run.n_top_logprobs = 4;
	example->run.top_ids = example->top_ids;
	example->run.top_logprobs = example->top_logprobs;
	example->ids[1] = 77;
	example->logprobs[1] = -0.5f;
	example->top_logprobs[0] = -INFINITY;
	example->tokens.has_cached_tokens = true;
	example->tokens.cached_tokens = 64;
}

static void tokens_read(void **state)
{
	struct tokens_example example;
	struct codec_frame frame;
	struct codec *codec;

	(void)state;
	assert_int_equal(codec_new(&codec), 0);
	tokens_base(&example);
	assert_int_equal(read_message(codec, FRAME_TOKENS, &example.tokens.base, &frame), 0);
	assert_int_equal(frame.tokens.ref.request, 9);
	assert_true(frame.tokens.measured.has_cached);
	assert_int_equal(frame.tokens.measured.cached_tokens, 64);
	assert_int_equal(frame.tokens.runs[0].ids[1], 77);
	assert_int_equal(frame.tokens.runs[0].top_count, 2);
	example.run.n_logprobs = 1;
	assert_int_equal(read_message(codec, FRAME_TOKENS, &example.tokens.base, &frame),
			 BATON_EPROTOCOL);
	tokens_base(&example);
	example.logprobs[0] = NAN;
	assert_int_equal(read_message(codec, FRAME_TOKENS, &example.tokens.base, &frame),
			 BATON_EPROTOCOL);
	tokens_base(&example);
	example.run.n_top_ids = 3;
	assert_int_equal(read_message(codec, FRAME_TOKENS, &example.tokens.base, &frame),
			 BATON_EPROTOCOL);
	tokens_base(&example);
	example.run.choice = CONDUCTOR_CHOICES_MAX;
	assert_int_equal(read_message(codec, FRAME_TOKENS, &example.tokens.base, &frame),
			 BATON_EPROTOCOL);
	tokens_base(&example);
	example.run.n_ids = example.run.n_logprobs = 0;
	example.run.n_top_ids = example.run.n_top_logprobs = 0;
	assert_int_equal(read_message(codec, FRAME_TOKENS, &example.tokens.base, &frame),
			 BATON_EPROTOCOL);
	example.run.has_finish = true;
	example.run.finish = CONDUCTOR_STOP;
	assert_int_equal(read_message(codec, FRAME_TOKENS, &example.tokens.base, &frame), 0);
	codec_free(codec);
}

/* A frame of the smallest submessages: the arena, not the machine, bounds what it takes. */
static void arena_bounds(void **state)
{
	static uint8_t bomb[4 << 20];
	struct codec_frame frame;
	struct codec *codec;
	size_t at = 0;

	(void)state;
	assert_int_equal(codec_new(&codec), 0);
	while (at + 2 <= sizeof bomb) {
		bomb[at++] = 2 << 3 | 2; /* runs, empty: each is malformed, but first it is many */
		bomb[at++] = 0;
	}
	assert_int_equal(codec_read(codec, FRAME_TOKENS, bomb, sizeof bomb, &frame),
			 BATON_EPROTOCOL);
	codec_free(codec);
}

static void reasons_read(void **state)
{
	static const enum conductor_cause causes[] = {
		CAUSE_ERROR,	 CAUSE_REFUSED, CAUSE_PREEMPTED, CAUSE_TRANSFER, CAUSE_PEER_LOST,
		CAUSE_DRAINED, CAUSE_NO_MEMORY, CAUSE_DEADLINE,	 CAUSE_ERROR,	 CAUSE_ERROR,
	};
	Baton__Returned returned;
	struct codec_frame frame;
	struct codec *codec;
	Baton__Ref ref;

	(void)state;
	assert_int_equal(codec_new(&codec), 0);
	baton__returned__init(&returned);
	baton__ref__init(&ref);
	returned.ref = &ref;
	for (uint32_t i = 0; i < sizeof causes / sizeof causes[0]; i++) {
		returned.reason = i;
		assert_int_equal(read_message(codec, FRAME_RETURNED, &returned.base, &frame), 0);
		assert_int_equal(frame.returned.cause, causes[i]);
		assert_int_equal(frame.returned.choice, CONDUCTOR_CHOICE_ALL);
	}
	codec_free(codec);
}

static void prefill_writes(void **state)
{
	uint32_t prompt[3] = { 1, 2, 300000 }, output[2] = { 4, 5 };
	uint64_t choices[2] = { 0, 2 };
	uint8_t transfer[3] = { 9, 8, 7 };
	struct codec_prefill prefill = {
		.ref = { 7, 9, 3 },
		.dispatch = 11,
		.model = "tiny",
		.trace = "cmpl-1",
		.temperature = 0.5f,
		.top_p = 0.9f,
		.seed = UINT64_MAX,
		.max_tokens = 16,
		.prompt = prompt,
		.prompt_count = 3,
		.output = output,
		.output_count = 2,
		.choices = choices,
		.decode_node = "decode-0",
		.decode_incarnation = 5,
		.decode_host = "127.0.0.1",
		.decode_port = 7700,
		.decode_transfer = transfer,
		.decode_transfer_bytes = 3,
	};
	struct buf out;

	(void)state;
	buf_init(&out, 0);
	assert_int_equal(codec_write_prefill(&out, &prefill), 0);
	Baton__Prefill *back =
		baton__prefill__unpack(NULL, out.bytes, (const uint8_t *)out.data);
	assert_non_null(back);
	assert_int_equal(back->ref->epoch, 3);
	assert_int_equal(back->n_choices, 1);
	assert_int_equal(back->choices[0], 65);
	assert_int_equal(back->n_prompt, 3);
	assert_int_equal(back->prompt[2], 300000);
	assert_int_equal(back->output[1], 5);
	assert_true(back->sampling->seed == UINT64_MAX);
	assert_int_equal(back->root_key.len, 16);
	assert_string_equal(back->decode_node, "decode-0");
	assert_int_equal(back->decode_transfer.len, 3);
	baton__prefill__free_unpacked(back, NULL);
	prefill.decode_node = NULL;
	assert_int_equal(codec_write_prefill(&out, &prefill), 0);
	back = baton__prefill__unpack(NULL, out.bytes, (const uint8_t *)out.data);
	assert_null(back->decode_node);
	assert_false(back->has_decode_port);
	baton__prefill__free_unpacked(back, NULL);
	buf_fini(&out);
}

static void others_write(void **state)
{
	struct conductor_ref ref = { 7, 9, 3 };
	struct buf out;

	(void)state;
	buf_init(&out, 0);
	assert_int_equal(codec_write_release(&out, &ref, CONDUCTOR_CHOICE_ALL), 0);
	Baton__Release *release =
		baton__release__unpack(NULL, out.bytes, (const uint8_t *)out.data);
	assert_false(release->has_choice);
	baton__release__free_unpacked(release, NULL);
	assert_int_equal(codec_write_release(&out, &ref, 5), 0);
	release = baton__release__unpack(NULL, out.bytes, (const uint8_t *)out.data);
	assert_int_equal(release->choice, 5);
	baton__release__free_unpacked(release, NULL);
	assert_int_equal(codec_write_command(&out, COMMAND_ROLE, ROLE_DECODE), 0);
	Baton__Command *command =
		baton__command__unpack(NULL, out.bytes, (const uint8_t *)out.data);
	assert_int_equal(command->role, ROLE_DECODE);
	baton__command__free_unpacked(command, NULL);
	buf_fini(&out);
}

/* Damaged frames are refused or read as some valid frame; nothing else happens. */
static void damage_is_survived(void **state)
{
	struct tokens_example example;
	struct codec_frame frame;
	uint64_t seed = 42;
	struct codec *codec;
	uint8_t whole[256];

	(void)state;
	assert_int_equal(codec_new(&codec), 0);
	tokens_base(&example);
	size_t bytes = protobuf_c_message_pack(&example.tokens.base, whole);
	for (uint32_t i = 0; i < 20000; i++) {
		memcpy(body, whole, bytes);
		size_t cut = rand_next(&seed) % (bytes + 1);
		for (uint32_t flips = 0; flips < 3; flips++)
			body[rand_next(&seed) % bytes] ^= (uint8_t)(1u << rand_next(&seed) % 8);
		int error = codec_read(codec, FRAME_TOKENS, body, (uint32_t)cut, &frame);
		assert_true(error == 0 || error == BATON_EPROTOCOL);
	}
	codec_free(codec);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hello_reads),	    cmocka_unit_test(tokens_read),
		cmocka_unit_test(arena_bounds),	    cmocka_unit_test(reasons_read),
		cmocka_unit_test(prefill_writes),   cmocka_unit_test(others_write),
		cmocka_unit_test(damage_is_survived),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
