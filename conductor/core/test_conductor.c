/* Traces of the conductor's core: events in virtual time, actions as lines. */
#include "conductor/core/test_util.h"

#include <errno.h>

static void one_request(void **state)
{
	struct world world;

	(void)state;
	world_2p2d(&world, "least-loaded");
	assert_int_equal(submit(&world, 1, 100, 1, 4), 0);
	expect(&world, "prefill r1.1 p0>d0 from 0 choices 1\n");
	tokens(&world, 0, 1, 1, 0, 0, 1, CONDUCTOR_GOES_ON);
	expect(&world, "keep r1/0 0+1\ndeliver r1/0 0+1\n");
	tokens(&world, 2, 1, 1, 0, 1, 2, CONDUCTOR_GOES_ON);
	expect(&world, "keep r1/0 1+2\ndeliver r1/0 1+2\n");
	tokens(&world, 2, 1, 1, 0, 3, 1, CONDUCTOR_LENGTH);
	expect(&world, "keep r1/0 3+1\ndeliver r1/0 3+1 length\n"
		       "release r1.1 p0 all\nrelease r1.1 d0 all\nend r1\n");
	world_close(&world);
}

/* d's tokens may overtake p's first one: they are held, and only they. */
static void first_token_late(void **state)
{
	struct world world;

	(void)state;
	world_2p2d(&world, "least-loaded");
	submit(&world, 1, 100, 1, 8);
	quiet(&world);
	tokens(&world, 2, 1, 1, 0, 1, 2, CONDUCTOR_GOES_ON);
	expect(&world, "keep r1/0 1+2\n");
	tokens(&world, 2, 1, 1, 0, 3, 1, CONDUCTOR_STOP);
	expect(&world, "keep r1/0 3+1\n");
	tokens(&world, 0, 1, 1, 0, 0, 1, CONDUCTOR_GOES_ON);
	expect(&world, "keep r1/0 0+1\ndeliver r1/0 0+4 stop\n"
		       "release r1.1 p0 all\nrelease r1.1 d0 all\nend r1\n");
	world_close(&world);
}

static void one_token_needs_no_decode(void **state)
{
	struct world world;

	(void)state;
	world_2p2d(&world, "least-loaded");
	submit(&world, 1, 100, 1, 1);
	expect(&world, "prefill r1.1 p0>- from 0 choices 1\n");
	/* The node forgot to say that it is the end: it is, by the count. */
	tokens(&world, 0, 1, 1, 0, 0, 1, CONDUCTOR_GOES_ON);
	expect(&world, "keep r1/0 0+1\ndeliver r1/0 0+1 length\nrelease r1.1 p0 all\nend r1\n");
	world_close(&world);
}

static void decode_lost_resumes(void **state)
{
	struct world world;

	(void)state;
	world_2p2d(&world, "least-loaded");
	submit(&world, 1, 100, 1, 8);
	tokens(&world, 0, 1, 1, 0, 0, 1, CONDUCTOR_GOES_ON);
	tokens(&world, 2, 1, 1, 0, 1, 2, CONDUCTOR_GOES_ON);
	quiet(&world);
	lost(&world, 2);
	expect(&world, "release r1.1 p0 all\nprefill r1.2 p1>d1 from 3 choices 1\n");
	/* The old placement's word does not count any more; its sender is told to let go. */
	assert_int_equal(tokens(&world, 0, 1, 1, 0, 0, 1, CONDUCTOR_GOES_ON), -ESTALE);
	expect(&world, "release r1.1 p0 all\n");
	tokens(&world, 1, 1, 2, 0, 3, 1, CONDUCTOR_GOES_ON);
	expect(&world, "keep r1/0 3+1\ndeliver r1/0 3+1\n");
	world_close(&world);
}

/* p dies when d has begun: d has all it needs. */
static void prefill_lost_late(void **state)
{
	struct world world;

	(void)state;
	world_2p2d(&world, "least-loaded");
	submit(&world, 1, 100, 2, 8);
	tokens(&world, 0, 1, 1, 0, 0, 1, CONDUCTOR_GOES_ON);
	tokens(&world, 2, 1, 1, 0, 1, 1, CONDUCTOR_GOES_ON);
	quiet(&world);
	lost(&world, 0);
	/* Choice 1's first token was lost with p: it is made again. Choice 0 goes on. */
	expect(&world, "release r1.1 d0 1\nprefill r1.2 p1>d1 from 0 choices 2\n");
	tokens(&world, 2, 1, 1, 0, 2, 1, CONDUCTOR_STOP);
	expect(&world, "keep r1/0 2+1\ndeliver r1/0 2+1 stop\nrelease r1.1 d0 all\n");
	world_close(&world);
}

static void prefill_lost_early(void **state)
{
	struct world world;

	(void)state;
	world_2p2d(&world, "least-loaded");
	submit(&world, 1, 100, 1, 8);
	tokens(&world, 0, 1, 1, 0, 0, 1, CONDUCTOR_GOES_ON);
	quiet(&world);
	lost(&world, 0);
	expect(&world, "release r1.1 d0 all\nprefill r1.2 p1>d1 from 1 choices 1\n");
	world_close(&world);
}

static void choices_resume_apart(void **state)
{
	struct world world;

	(void)state;
	world_2p2d(&world, "least-loaded");
	submit(&world, 1, 100, 3, 8);
	expect(&world, "prefill r1.1 p0>d0 from 0 choices 7\n");
	for (uint32_t choice = 0; choice < 2; choice++)
		tokens(&world, 0, 1, 1, choice, 0, 1, CONDUCTOR_GOES_ON);
	tokens(&world, 0, 1, 1, 2, 0, 1, CONDUCTOR_STOP);
	tokens(&world, 2, 1, 1, 1, 1, 4, CONDUCTOR_GOES_ON);
	quiet(&world);
	returned(&world, 2, 1, 1, 1, CAUSE_PREEMPTED);
	expect(&world, "release r1.1 p0 1\nrelease r1.1 d0 1\nprefill r1.2 p1>d1 from 5 choices 2\n");
	lost(&world, 2);
	expect(&world, "release r1.1 p0 all\nprefill r1.3 p0>d1 from 1 choices 1\n");
	world_close(&world);
}

static void refusal_goes_to_another(void **state)
{
	struct world world;

	(void)state;
	world_2p2d(&world, "least-loaded");
	submit(&world, 1, 100, 1, 8);
	quiet(&world);
	returned(&world, 0, 1, 1, CONDUCTOR_CHOICE_ALL, CAUSE_REFUSED);
	expect(&world, "release r1.1 p0 all\nrelease r1.1 d0 all\n"
		       "prefill r1.2 p1>d1 from 0 choices 1\n");
	returned(&world, 1, 1, 2, CONDUCTOR_CHOICE_ALL, CAUSE_REFUSED);
	/* Both have refused: it waits and asks again. */
	expect(&world, "release r1.2 p1 all\nrelease r1.2 d1 all\n");
	world.now_ns += 50 * NS_PER_MS;
	world_step(&world, (struct conductor_event){ .kind = EVENT_TICK });
	expect(&world, "prefill r1.3 p0>d0 from 0 choices 1\n");
	world_close(&world);
}

/* A long history keeps its beginning and its end. */
static void long_traces_lose_the_middle(void **state)
{
	struct conductor_trace_view view;
	struct world world;

	(void)state;
	world_2p2d(&world, "least-loaded");
	submit(&world, 1, 100, 1, 8);
	for (uint32_t epoch = 1; epoch < 40; epoch++) {
		assert_int_equal(conductor_trace_find(world.core, "cmpl-1", &view), 0);
		returned(&world, !strcmp(view.prefill_node, "p1"), 1, epoch, CONDUCTOR_CHOICE_ALL,
			 CAUSE_REFUSED);
		world.now_ns += 50 * NS_PER_MS;
		world_step(&world, (struct conductor_event){ .kind = EVENT_TICK });
	}
	cancel(&world, 1);
	assert_int_equal(conductor_trace_find(world.core, "cmpl-1", &view), 0);
	assert_true(view.lines_dropped > 0);
	assert_true(strlen(view.lines) < CONDUCTOR_TRACE_BYTES);
	assert_non_null(strstr(view.lines, "0\tarrived: 100 prompt tokens"));
	assert_non_null(strstr(view.lines, "epoch 1 dispatched"));
	assert_non_null(strstr(view.lines, "epoch 40 dispatched"));
	assert_non_null(strstr(view.lines, "\tcancelled: 0 tokens\n"));
	world_close(&world);
}

/* The oldest asks first, whatever the order of the refusals. */
static void who_waits_keeps_its_place(void **state)
{
	struct world world;

	(void)state;
	world_open(&world, "least-loaded");
	join(&world, 0, "p0", ROLE_PREFILL, 1);
	join(&world, 1, "d0", ROLE_DECODE, 2);
	report(&world, 0, ROLE_PREFILL, 2, 0, 0, 0);
	report(&world, 1, ROLE_DECODE, 2, 0, 0, 0);
	for (uint64_t id = 1; id <= 3; id++) {
		world.now_ns += NS_PER_MS;
		submit(&world, id, 10, 1, 8);
	}
	for (uint64_t id = 3; id >= 1; id--)
		returned(&world, 0, id, 1, CONDUCTOR_CHOICE_ALL, CAUSE_REFUSED);
	quiet(&world);
	world.now_ns += 50 * NS_PER_MS;
	world_step(&world, (struct conductor_event){ .kind = EVENT_TICK });
	expect(&world, "prefill r1.2 p0>d0 from 0 choices 1\nprefill r2.2 p0>d0 from 0 choices 1\n"
		       "prefill r3.2 p0>d0 from 0 choices 1\n");
	/* An end makes room: the oldest who waits need not wait for the next round. */
	returned(&world, 0, 2, 2, CONDUCTOR_CHOICE_ALL, CAUSE_REFUSED);
	returned(&world, 0, 3, 2, CONDUCTOR_CHOICE_ALL, CAUSE_REFUSED);
	quiet(&world);
	tokens(&world, 0, 1, 2, 0, 0, 1, CONDUCTOR_STOP);
	expect(&world, "keep r1/0 0+1\ndeliver r1/0 0+1 stop\nrelease r1.2 p0 all\n"
		       "release r1.2 d0 all\nend r1\nprefill r2.3 p0>d0 from 0 choices 1\n");
	world_close(&world);
}

/* Choices that are placed apart do not drive each other round and round. */
static void refused_choices_wait_together(void **state)
{
	struct conductor_counters counters;
	struct world world;

	(void)state;
	world_2p2d(&world, "least-loaded");
	submit(&world, 1, 100, 2, 8);
	for (uint32_t choice = 0; choice < 2; choice++)
		tokens(&world, 0, 1, 1, choice, 0, 1, CONDUCTOR_GOES_ON);
	for (uint32_t choice = 0; choice < 2; choice++)
		returned(&world, 2, 1, 1, choice, CAUSE_PREEMPTED);
	/* Epochs 2 and 3 are out; whatever is out is refused, for half a second. */
	for (uint32_t round = 0; round < 10; round++) {
		for (uint32_t epoch = 2; epoch < 200; epoch++)
			for (uint32_t p = 0; p < 2 && conductor_dispatch_state(world.core, 1, epoch); p++)
				if (returned(&world, p, 1, epoch, CONDUCTOR_CHOICE_ALL,
					     CAUSE_REFUSED) == 0)
					break;
		world.now_ns += 50 * NS_PER_MS;
		world_step(&world, (struct conductor_event){ .kind = EVENT_TICK });
	}
	conductor_counters(world.core, &counters);
	assert_true(counters.dispatches > 10);
	assert_true(counters.dispatches <= 1 + 2 * 2 * 12);
	cancel(&world, 1);
	world_close(&world);
}

static void no_node_ends_with_503(void **state)
{
	struct world world;

	(void)state;
	world_open(&world, "least-loaded");
	join(&world, 0, "p0", ROLE_PREFILL, 1);
	report(&world, 0, ROLE_PREFILL, 2, 0, 0, 0);
	quiet(&world);
	submit(&world, 1, 100, 1, 8);
	pass(&world, 9900, 1);
	expect(&world, "");
	pass(&world, 200, 1);
	expect(&world, "fail r1 503 no node could serve the request for 10.0 s\nend r1\n");
	world_close(&world);
}

static void node_comes_in_time(void **state)
{
	struct world world;

	(void)state;
	world_open(&world, "least-loaded");
	submit(&world, 1, 100, 1, 8);
	pass(&world, 5000, 0);
	join(&world, 0, "b0", ROLE_BOTH, 1);
	expect(&world, "admit b0\n");
	report(&world, 0, ROLE_BOTH, 2, 0, 0, 0);
	expect(&world, "prefill r1.1 b0>b0 from 0 choices 1\n");
	tokens(&world, 0, 1, 1, 0, 0, 3, CONDUCTOR_GOES_ON);
	expect(&world, "keep r1/0 0+3\ndeliver r1/0 0+3\n");
	tokens(&world, 0, 1, 1, 0, 3, 2, CONDUCTOR_STOP);
	expect(&world, "keep r1/0 3+2\ndeliver r1/0 3+2 stop\nrelease r1.1 b0 all\nend r1\n");
	world_close(&world);
}

static void faults_in_a_row_end(void **state)
{
	struct world world;

	(void)state;
	world_2p2d(&world, "round-robin");
	submit(&world, 1, 100, 1, 8);
	for (uint32_t epoch = 1; epoch <= 4; epoch++) {
		struct conductor_trace_view view;
		assert_int_equal(conductor_trace_find(world.core, "cmpl-1", &view), 0);
		quiet(&world);
		returned(&world, !strcmp(view.prefill_node, "p1"), 1, epoch,
			 CONDUCTOR_CHOICE_ALL, CAUSE_TRANSFER);
	}
	assert_non_null(strstr(world.lines, "fail r1 503 4 placements failed in a row"));
	world_close(&world);
}

static void lease_fences(void **state)
{
	struct conductor_node_view view;
	struct conductor_counters counters;
	struct world world;

	(void)state;
	world_2p2d(&world, "least-loaded");
	submit(&world, 1, 100, 1, 8);
	tokens(&world, 0, 1, 1, 0, 0, 1, CONDUCTOR_GOES_ON);
	quiet(&world);
	pass(&world, 3200, 1 + 2 + 8); /* d0 is silent */
	expect(&world, "release r1.1 p0 all\nfence d0\nprefill r1.2 p1>d1 from 1 choices 1\n");
	/* It wakes: whatever it says is refused and counted. */
	assert_int_equal(tokens(&world, 2, 1, 1, 0, 1, 1, CONDUCTOR_GOES_ON), -ESTALE);
	assert_int_equal(report(&world, 2, ROLE_DECODE, 2, 0, 0, 0), -ESTALE);
	expect(&world, "");
	conductor_node_view(world.core, world.nodes[2].index, &view);
	assert_int_equal(view.frames_refused, 2);
	conductor_counters(world.core, &counters);
	assert_int_equal(counters.frames_refused, 2);
	/* The same life may not come back, a newer one may; the count stays with the name. */
	join(&world, 7, "d0", ROLE_DECODE, 102);
	expect(&world, "refuse: this incarnation was fenced; come back with a newer one\n");
	join(&world, 2, "d0", ROLE_DECODE, 202);
	expect(&world, "close d0\nadmit d0\n");
	report(&world, 2, ROLE_DECODE, 2, 0, 0, 0);
	conductor_node_view(world.core, world.nodes[2].index, &view);
	assert_int_equal(view.frames_refused, 2);
	assert_int_equal(view.state, NODE_READY);
	world_close(&world);
}

static void older_life_is_refused(void **state)
{
	struct world world;

	(void)state;
	world_2p2d(&world, "least-loaded");
	join(&world, 7, "p0", ROLE_PREFILL, 99);
	expect(&world, "refuse: a newer incarnation of this node is known\n");
	submit(&world, 1, 100, 1, 8);
	quiet(&world);
	join(&world, 4, "p0", ROLE_PREFILL, 300);
	expect(&world, "close p0\nrelease r1.1 d0 all\nadmit p0\nprefill r1.2 p1>d1 from 0 choices 1\n");
	/* Frames of the former life of the slot. */
	assert_int_equal(tokens(&world, 0, 1, 1, 0, 0, 1, CONDUCTOR_GOES_ON), -ESTALE);
	expect(&world, "");
	world_close(&world);
}

static void own_stop_fences_nobody(void **state)
{
	struct world world;

	(void)state;
	world_2p2d(&world, "least-loaded");
	submit(&world, 1, 100, 1, 8);
	quiet(&world);
	world.now_ns += 60 * NS_PER_S; /* SIGSTOP, SIGCONT */
	world_step(&world, (struct conductor_event){ .kind = EVENT_TICK });
	expect(&world, "");
	pass(&world, 1000, 15);
	expect(&world, "");
	pass(&world, 3200, 14); /* p0 really is gone */
	expect(&world, "release r1.1 d0 all\nfence p0\nprefill r1.2 p1>d1 from 0 choices 1\n");
	world_close(&world);
}

static void drain_gives_no_new_work(void **state)
{
	struct conductor_node_view view;
	struct world world;

	(void)state;
	world_2p2d(&world, "least-loaded");
	submit(&world, 1, 100, 1, 8);
	quiet(&world);
	world_step(&world, (struct conductor_event){ .kind = EVENT_COMMAND,
						     .node = world.nodes[2],
						     .command = COMMAND_DRAIN });
	expect(&world, "command d0 1\n");
	/* A report from before the command does not bring it back. */
	report(&world, 2, ROLE_DECODE, 2, 0, 0, 0);
	conductor_node_view(world.core, world.nodes[2].index, &view);
	assert_int_equal(view.state, NODE_DRAINING);
	submit(&world, 2, 100, 1, 8);
	expect(&world, "prefill r2.1 p1>d1 from 0 choices 1\n");
	returned(&world, 2, 1, 1, CONDUCTOR_CHOICE_ALL, CAUSE_DRAINED);
	expect(&world, "release r1.1 p0 all\nrelease r1.1 d0 all\n"
		       "prefill r1.2 p0>d1 from 0 choices 1\n");
	report(&world, 2, ROLE_DECODE, 4, 0, 0, 0);
	conductor_node_view(world.core, world.nodes[2].index, &view);
	assert_int_equal(view.state, NODE_DRAINED);
	world_step(&world, (struct conductor_event){ .kind = EVENT_COMMAND,
						     .node = world.nodes[2],
						     .command = COMMAND_UNDRAIN });
	report(&world, 2, ROLE_DECODE, 2, 0, 0, 0);
	conductor_node_view(world.core, world.nodes[2].index, &view);
	assert_int_equal(view.state, NODE_READY);
	world_close(&world);
}

static void cancel_tells_both(void **state)
{
	struct world world;

	(void)state;
	world_2p2d(&world, "least-loaded");
	submit(&world, 1, 100, 2, 8);
	quiet(&world);
	cancel(&world, 1);
	expect(&world, "release r1.1 p0 all\nrelease r1.1 d0 all\nend r1\n");
	cancel(&world, 1);
	assert_int_equal(world.result, -ESTALE);
	world_close(&world);
}

static void stop_string_ends_one_choice(void **state)
{
	struct conductor_event stop = { .kind = EVENT_CHOICE_STOPPED, .request = 1 };
	struct world world;

	(void)state;
	world_2p2d(&world, "least-loaded");
	submit(&world, 1, 100, 2, 8);
	for (uint32_t choice = 0; choice < 2; choice++)
		tokens(&world, 0, 1, 1, choice, 0, 1, CONDUCTOR_GOES_ON);
	quiet(&world);
	stop.choice = 1;
	world_step(&world, stop);
	expect(&world, "release r1.1 p0 1\nrelease r1.1 d0 1\n");
	/* A token that was under way is nobody's. */
	assert_int_equal(tokens(&world, 2, 1, 1, 1, 1, 1, CONDUCTOR_GOES_ON), -ESTALE);
	expect(&world, "release r1.1 d0 1\n");
	stop.choice = 0;
	world_step(&world, stop);
	expect(&world, "release r1.1 p0 all\nrelease r1.1 d0 all\nend r1\n");
	world_close(&world);
}

/* Repeats, gaps, tokens past the end, tokens from the wrong node: never delivered. */
static void out_of_order_is_refused(void **state)
{
	static const struct {
		uint32_t slot, position, count;
	} wrong[] = { { 0, 0, 1 }, { 0, 1, 1 }, { 2, 1, 1 }, { 2, 0, 1 }, { 2, 3, 1 }, { 2, 2, 7 } };

	(void)state;
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		struct world world;
		world_2p2d(&world, "least-loaded");
		submit(&world, 1, 100, 1, 8);
		tokens(&world, 0, 1, 1, 0, 0, 1, CONDUCTOR_GOES_ON);
		tokens(&world, 2, 1, 1, 0, 1, 1, CONDUCTOR_GOES_ON);
		quiet(&world);
		assert_int_equal(tokens(&world, wrong[i].slot, 1, 1, 0, wrong[i].position,
					wrong[i].count, CONDUCTOR_GOES_ON),
				 -EPROTO);
		assert_null(strstr(world.lines, "deliver"));
		assert_non_null(strstr(world.lines, "prefill r1.2 p1>d1 from 2 choices 1\n"));
		world_close(&world);
	}
}

static void loads_decide(void **state)
{
	struct conductor_node_view view;
	struct world world;

	(void)state;
	world_2p2d(&world, "least-loaded");
	report(&world, 0, ROLE_PREFILL, 2, 0, 150, 0);
	submit(&world, 1, 100, 1, 8); /* p1: 0 < 150 */
	submit(&world, 2, 100, 1, 8); /* p1: 100 < 150 */
	submit(&world, 3, 100, 1, 8); /* p0: 150 < 200 */
	expect(&world, "prefill r1.1 p1>d0 from 0 choices 1\nprefill r2.1 p1>d1 from 0 choices 1\n"
		       "prefill r3.1 p0>d0 from 0 choices 1\n");
	conductor_node_view(world.core, world.nodes[1].index, &view);
	assert_int_equal(view.queued_tokens, 200);
	/* p1's report includes its first dispatch: that one now counts as the report says. */
	report(&world, 1, ROLE_PREFILL, 2, 1, 30, 0);
	conductor_node_view(world.core, world.nodes[1].index, &view);
	assert_int_equal(view.queued_tokens, 130);
	submit(&world, 4, 100, 1, 8);
	expect(&world, "prefill r4.1 p1>d1 from 0 choices 1\n");
	world_close(&world);
}

/* A burst that has come and gone since the last reports weighs nothing. */
static void stale_reports_are_put_right(void **state)
{
	struct conductor_node_view view;
	struct world world;

	(void)state;
	world_2p2d(&world, "least-loaded");
	submit(&world, 1, 100, 1, 200);
	tokens(&world, 0, 1, 1, 0, 0, 1, CONDUCTOR_GOES_ON);
	tokens(&world, 2, 1, 1, 0, 1, 98, CONDUCTOR_GOES_ON);
	conductor_node_view(world.core, world.nodes[2].index, &view);
	assert_int_equal(view.running_tokens, 199); /* more than was predicted */
	report(&world, 2, ROLE_DECODE, 2, 0, 0, 199);
	report(&world, 0, ROLE_PREFILL, 2, 1, 0, 0);
	tokens(&world, 2, 1, 1, 0, 99, 1, CONDUCTOR_STOP);
	conductor_node_view(world.core, world.nodes[2].index, &view);
	assert_int_equal(view.running_tokens, 0);
	/* The same on p: its report names a prompt that has been computed since. */
	submit(&world, 2, 100, 1, 8);
	report(&world, 1, ROLE_PREFILL, 2, 1, 100, 0);
	conductor_node_view(world.core, world.nodes[1].index, &view);
	assert_int_equal(view.queued_tokens, 100);
	tokens(&world, 1, 2, 1, 0, 0, 1, CONDUCTOR_GOES_ON);
	conductor_node_view(world.core, world.nodes[1].index, &view);
	assert_int_equal(view.queued_tokens, 0);
	world_close(&world);
}

static void round_robin_turns(void **state)
{
	struct world world;

	(void)state;
	world_2p2d(&world, "round-robin");
	for (uint64_t id = 1; id <= 3; id++)
		submit(&world, id, 100, 1, 8);
	expect(&world, "prefill r1.1 p0>d0 from 0 choices 1\nprefill r2.1 p1>d1 from 0 choices 1\n"
		       "prefill r3.1 p0>d0 from 0 choices 1\n");
	world_close(&world);
}

static void too_long_for_a_node(void **state)
{
	struct world world;

	(void)state;
	world_2p2d(&world, "least-loaded");
	submit(&world, 1, 16001, 1, 8); /* 1000 blocks of 16 */
	pass(&world, 10100, 15);
	expect(&world, "fail r1 503 no node could serve the request for 10.0 s\nend r1\n");
	world_close(&world);
}

/* d with two seats, p and d with a context of 128 tokens, and nobody else. */
static void world_small(struct world *world)
{
	struct conductor_hello hello = { .name = "p", .incarnation = 1, .role = ROLE_PREFILL,
					 .block_tokens = 16, .blocks_total = 1000,
					 .max_num_seqs = 2, .max_model_len = 128 };

	world_open(world, "least-loaded");
	join_as(world, 0, &hello);
	report(world, 0, ROLE_PREFILL, 2, 0, 0, 0);
	hello.name = "d";
	hello.role = ROLE_DECODE;
	join_as(world, 1, &hello);
	report(world, 1, ROLE_DECODE, 2, 0, 0, 0);
	quiet(world);
}

/* A node that could never take it would refuse again and again, and the request wait for ever. */
static void longer_than_any_context(void **state)
{
	struct world world;

	(void)state;
	world_small(&world);
	submit(&world, 1, 127, 1, 8);
	expect(&world, "prefill r1.1 p>d from 0 choices 1\n");
	submit(&world, 2, 128, 1, 8);
	expect(&world, "");
	pass(&world, 9900, 3);
	expect(&world, "");
	pass(&world, 200, 3);
	expect(&world, "fail r2 503 no node could serve the request for 10.0 s\nend r2\n");
	world_close(&world);
}

/* More choices than any d has seats for go in groups that fit one. */
static void more_choices_than_seats(void **state)
{
	struct world world;

	(void)state;
	world_small(&world);
	submit(&world, 1, 100, 5, 8);
	expect(&world, "prefill r1.1 p>d from 0 choices 3\n"
		       "prefill r1.2 p>d from 0 choices c\n"
		       "prefill r1.3 p>d from 0 choices 10\n");
	/* One token each is p's alone to make: no seat is needed. */
	submit(&world, 2, 100, 5, 1);
	expect(&world, "prefill r2.1 p>- from 0 choices 1f\n");
	world_close(&world);
}

static void explained(void **state)
{
	struct conductor_trace_view view;
	struct world world;

	(void)state;
	world_2p2d(&world, "least-loaded");
	report(&world, 1, ROLE_PREFILL, 2, 0, 300, 0);
	submit(&world, 1, 100, 1, 2);
	world.now_ns += 12 * NS_PER_MS;
	tokens(&world, 0, 1, 1, 0, 0, 1, CONDUCTOR_GOES_ON);
	world.now_ns += 3 * NS_PER_MS;
	tokens(&world, 2, 1, 1, 0, 1, 1, CONDUCTOR_LENGTH);
	assert_int_equal(conductor_trace_find(world.core, "cmpl-1", &view), 0);
	assert_string_equal(view.lines,
			    "0\tarrived: 100 prompt tokens, up to 2 of output, 1 choice\n"
			    "0\tepoch 1 dispatched to p0 → d0: least queued tokens 0 (next best 300), "
			    "least context tokens 0 (next best 0)\n"
			    "12\tepoch 1: first token from p0\n"
			    "15\tepoch 1: d0 decodes\n"
			    "15\tfinished: 2 tokens\n");
	assert_string_equal(view.state, "finished");
	assert_int_equal(view.ttft_us, 12000);
	assert_int_equal(view.output_tokens, 2);
	assert_true(conductor_quantile_ms(conductor_ttft(world.core), 0.5) > 10);
	assert_true(conductor_quantile_ms(conductor_ttft(world.core), 0.5) < 14);
	for (uint64_t id = 2; id < 6; id++) {
		submit(&world, id, 100, 1, 2);
		cancel(&world, id);
	}
	assert_int_equal(conductor_trace_find(world.core, "cmpl-1", &view), -ENOENT);
	assert_int_equal(conductor_trace_find(world.core, "cmpl-5", &view), 0);
	assert_string_equal(view.state, "cancelled");
	world_close(&world);
}

static void limits_hold(void **state)
{
	struct world world;

	(void)state;
	world_2p2d(&world, "least-loaded");
	for (uint64_t id = 1; id <= 16; id++)
		assert_int_equal(submit(&world, id, 10, 1, 8), 0);
	assert_int_equal(submit(&world, 17, 10, 1, 8), -ENOSPC);
	cancel(&world, 3);
	assert_int_equal(submit(&world, 4, 10, 1, 8), -EEXIST);
	assert_int_equal(submit(&world, 17, 10, 1, 8), 0);
	assert_int_equal(submit(&world, 18, 10, 0, 8), -EINVAL);
	world_close(&world);
}

static void deadline_ends(void **state)
{
	struct world world;
	struct conductor_submit late = { .name = "cmpl-1",
					 .prompt_count = 10,
					 .choice_count = 1,
					 .max_tokens = 8 };

	(void)state;
	world_2p2d(&world, "least-loaded");
	late.arrival_ns = world.now_ns;
	late.deadline_ns = world.now_ns + NS_PER_S;
	world_step(&world, (struct conductor_event){ .kind = EVENT_SUBMITTED,
						     .request = 1,
						     .submit = &late });
	quiet(&world);
	pass(&world, 1000, 15);
	expect(&world, "release r1.1 p0 all\nrelease r1.1 d0 all\n"
		       "fail r1 504 the request's deadline passed after 1.0 s\nend r1\n");
	world_close(&world);
}

/* More choices than a decode node has seats would be refused for ever if they stayed together. */
static void refused_group_is_halved(void **state)
{
	struct world world;

	(void)state;
	world_2p2d(&world, "least-loaded");
	submit(&world, 1, 100, 3, 8);
	expect(&world, "prefill r1.1 p0>d0 from 0 choices 7\n");
	returned(&world, 0, 1, 1, CONDUCTOR_CHOICE_ALL, CAUSE_REFUSED);
	expect(&world, "release r1.1 p0 all\nrelease r1.1 d0 all\n"
		       "prefill r1.2 p1>d1 from 0 choices 7\n");
	returned(&world, 1, 1, 2, CONDUCTOR_CHOICE_ALL, CAUSE_REFUSED);
	expect(&world, "release r1.2 p1 all\nrelease r1.2 d1 all\n");
	pass(&world, 60, 1);
	expect(&world, "prefill r1.3 p0>d0 from 0 choices 1\n"
		       "prefill r1.4 p1>d1 from 0 choices 2\n"
		       "prefill r1.5 p0>d0 from 0 choices 4\n");
	world_close(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_request),
		cmocka_unit_test(first_token_late),
		cmocka_unit_test(one_token_needs_no_decode),
		cmocka_unit_test(decode_lost_resumes),
		cmocka_unit_test(prefill_lost_late),
		cmocka_unit_test(prefill_lost_early),
		cmocka_unit_test(choices_resume_apart),
		cmocka_unit_test(refusal_goes_to_another),
		cmocka_unit_test(long_traces_lose_the_middle),
		cmocka_unit_test(who_waits_keeps_its_place),
		cmocka_unit_test(refused_choices_wait_together),
		cmocka_unit_test(refused_group_is_halved),
		cmocka_unit_test(no_node_ends_with_503),
		cmocka_unit_test(node_comes_in_time),
		cmocka_unit_test(faults_in_a_row_end),
		cmocka_unit_test(lease_fences),
		cmocka_unit_test(older_life_is_refused),
		cmocka_unit_test(own_stop_fences_nobody),
		cmocka_unit_test(drain_gives_no_new_work),
		cmocka_unit_test(cancel_tells_both),
		cmocka_unit_test(stop_string_ends_one_choice),
		cmocka_unit_test(out_of_order_is_refused),
		cmocka_unit_test(loads_decide),
		cmocka_unit_test(stale_reports_are_put_right),
		cmocka_unit_test(round_robin_turns),
		cmocka_unit_test(too_long_for_a_node),
		cmocka_unit_test(longer_than_any_context),
		cmocka_unit_test(more_choices_than_seats),
		cmocka_unit_test(explained),
		cmocka_unit_test(limits_hold),
		cmocka_unit_test(deadline_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
