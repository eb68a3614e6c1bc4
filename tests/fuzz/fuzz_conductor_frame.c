/*
 * Frames that a node might send, through the conductor's codec into its core. The input is a row
 * of frames, each u16 type, u16 length, body. A member (a node that does both) has one request
 * running; whatever comes, the codec refuses it or gives what codec.h promises, the core keeps its
 * invariants, and the client of that request gets its tokens in order, without gap or repeat.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "conductor/codec.h"
#include "frame.h"

#define INCARNATION 7
#define MAX_TOKENS 6

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct target {
	struct conductor *core;
	struct conductor_actions actions;
	struct conductor_node_id node;
	uint64_t now_ns;
	uint32_t delivered[2];
	bool ended[2], over;
};

static struct codec *codec; /* one for all inputs, as in the daemon */

static void perform(struct target *t, const struct conductor_action *action)
{
	if (action->kind == ACTION_NODE_ADMIT)
		t->node = action->node;
	if (action->kind == ACTION_DELIVER) {
		CHECK(action->request == 1 && action->choice < 2 && !t->over);
		CHECK(!t->ended[action->choice]);
		CHECK(action->position == t->delivered[action->choice]);
		t->delivered[action->choice] += action->count;
		CHECK(t->delivered[action->choice] <= MAX_TOKENS);
		t->ended[action->choice] = action->finish != CONDUCTOR_GOES_ON;
	}
	if (action->kind == ACTION_END) {
		CHECK(!t->over);
		t->over = true;
	}
}

static void step(struct target *t, struct conductor_event *event)
{
	event->now_ns = ++t->now_ns;
	event->node = t->node;
	(void)conductor_step(t->core, event, &t->actions);
	for (uint32_t i = 0; i < t->actions.count; i++)
		perform(t, &t->actions.items[i]);
	conductor_check(t->core);
}

static void open_target(struct target *t)
{
	struct conductor_config config = {
		.incarnation = INCARNATION,
		.requests_max = 4,
		.model_count = 1,
		.traces_max = 1,
		.policy = conductor_policy_find("least-loaded"),
		.lease_ns = 1000000,
		.resume_wait_ns = 1000000,
		.predicted_tokens = 4,
	};
	struct conductor_hello hello = { .name = "n", .incarnation = 1, .role = ROLE_BOTH };
	struct conductor_report report = { .role = ROLE_BOTH, .state = 2 };
	struct conductor_submit submit = {
		.name = "r", .prompt_count = 3, .choice_count = 2, .max_tokens = MAX_TOKENS
	};

	CHECK(conductor_new(&config, &t->core) == 0);
	CHECK(conductor_actions_init(&t->actions, t->core) == 0);
	step(t, &(struct conductor_event){ .kind = EVENT_NODE_JOINED, .hello = &hello });
	step(t, &(struct conductor_event){ .kind = EVENT_NODE_REPORT, .report = &report });
	step(t, &(struct conductor_event){ .kind = EVENT_SUBMITTED, .request = 1, .submit = &submit });
}

static void give_tokens(struct target *t, const struct codec_tokens *tokens)
{
	step(t, &(struct conductor_event){ .kind = EVENT_MEASURED,
					   .ref = tokens->ref,
					   .measured = &tokens->measured });
	for (uint32_t i = 0; i < tokens->run_count; i++) {
		const struct codec_run *run = &tokens->runs[i];
		CHECK(run->choice < CONDUCTOR_CHOICES_MAX && run->top_count <= CODEC_TOP_MAX);
		CHECK(run->count || run->finish);
		CHECK(!run->count || run->ids);
		CHECK(!run->top_count || (run->top_ids && run->top_logprobs));
		step(t, &(struct conductor_event){ .kind = EVENT_TOKENS,
						   .ref = tokens->ref,
						   .choice = run->choice,
						   .position = run->position,
						   .count = run->count,
						   .finish = run->finish,
						   .has_stop_id = run->has_stop_id,
						   .stop_id = run->stop_id });
	}
}

static void give(struct target *t, uint16_t type, const uint8_t *body, uint32_t bytes)
{
	struct codec_frame frame;
	int error = codec_read(codec, type, body, bytes, &frame);

	CHECK(error == 0 || error == BATON_EPROTOCOL || error == BATON_EVERSION || error == -ENOTSUP);
	if (error)
		return;
	if (frame.type == FRAME_HELLO) {
		CHECK(strlen(frame.hello.node) < CONDUCTOR_NAME_BYTES);
		CHECK(frame.hello.role >= ROLE_PREFILL && frame.hello.role <= ROLE_BOTH);
	} else if (frame.type == FRAME_REPORT) {
		step(t, &(struct conductor_event){ .kind = EVENT_NODE_REPORT,
						   .report = &frame.report });
	} else if (frame.type == FRAME_TOKENS) {
		give_tokens(t, &frame.tokens);
	} else {
		step(t, &(struct conductor_event){ .kind = EVENT_RETURNED,
						   .ref = frame.returned.ref,
						   .choice = frame.returned.choice,
						   .cause = frame.returned.cause,
						   .detail = frame.returned.detail });
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct target t = { .now_ns = 1 };

	if (!codec)
		CHECK(codec_new(&codec) == 0);
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
	conductor_actions_fini(&t.actions);
	conductor_free(t.core);
	return 0;
}
