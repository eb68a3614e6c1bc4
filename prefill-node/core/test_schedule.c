/* The three questions of the step loop, asked of prefill_schedule() and answered as traces. */
#include "base/test_util.h"

#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "prefill-node/core/prefill_core.h"

#define SELF 5
#define PEER 7

struct fixture {
	struct kv_node node;
	struct prefill *p;
	struct node_batch batch;
	struct node_actions actions;
	uint64_t now_ns;
	struct buf trace;
};

static void setup(struct fixture *f, uint32_t blocks, uint32_t chunk, uint32_t budget)
{
	struct prefill_config config = {
		.incarnation = SELF,
		.model = "m",
		.layer_count = 2,
		.max_model_len = 64,
		.requests_max = 8,
		.chunk_tokens = chunk,
		.ahead_tokens = budget,
		.predicted_tokens = 4,
		.eos_ids = { 3 },
		.eos_count = 1,
		.answer_timeout_ns = NS_PER_S,
		.send_timeout_ns = NS_PER_S,
	};
	memset(f, 0, sizeof *f);
	assert_int_equal(kv_node_init(&f->node, blocks, 4), 0);
	assert_int_equal(prefill_new(&config, &f->node, &f->p), 0);
	assert_int_equal(node_batch_init(&f->batch, 4, budget), 0);
	assert_int_equal(node_actions_init(&f->actions, 8, f->batch.sample_max), 0);
	buf_init(&f->trace, 0);
}

static void teardown(struct fixture *f)
{
	buf_fini(&f->trace);
	node_actions_fini(&f->actions);
	node_batch_fini(&f->batch);
	prefill_free(f->p);
	kv_node_fini(&f->node);
}

/* What has been decided since the last look, as lines. */
static void assert_trace(struct fixture *f, const char *expected)
{
	assert_string_equal(f->trace.bytes ? f->trace.data : "", expected);
	buf_clear(&f->trace);
}

static void trace_actions(struct fixture *f)
{
	for (uint32_t i = 0; i < f->actions.count; i++) {
		const struct node_action *action = &f->actions.v[i];
		unsigned long long request = action->ref.request;
		if (action->kind == NODE_DO_RESERVE)
			buf_printf(&f->trace, "request %llu reserves\n", request);
		else if (action->kind == NODE_DO_SEND)
			buf_printf(&f->trace, "request %llu sends blocks %u to %u\n", request,
				   action->send.first, action->send.end);
		else if (action->kind == NODE_DO_TOKENS)
			buf_printf(&f->trace, "request %llu has %u first tokens, %u cached\n",
				   request, action->tokens.count, action->tokens.cached_tokens);
		else if (action->kind == NODE_DO_RETURNED)
			buf_printf(&f->trace, "request %llu returned: %s\n", request,
				   node_returned_text(action->returned.reason));
	}
}

static void step(struct fixture *f, struct node_event *event)
{
	event->now_ns = ++f->now_ns;
	node_actions_clear(&f->actions);
	prefill_step(f->p, event, &f->actions);
	if (!f->actions.count || f->actions.v[f->actions.count - 1].kind != NODE_DO_FORGET)
		prefill_check(f->p); /* after a hand-over it holds once the actions are done */
	trace_actions(f);
}

/* Text of @tokens tokens; the first @common are the same for all. */
static void dispatch_with(struct fixture *f, uint64_t id, uint32_t tokens, uint32_t common,
			  uint64_t decode, uint32_t choices)
{
	uint32_t text[64];
	struct node_event event = { .kind = NODE_PREFILL };
	struct node_request *request = &event.prefill.request;

	for (uint32_t i = 0; i < tokens; i++)
		text[i] = i < common ? i : (uint32_t)(1000 * id + i);
	request->ref = (struct node_ref){ 1, id, 1 };
	request->model[0] = 'm';
	request->sampling.max_tokens = 8;
	request->tokens = text;
	request->token_count = request->prompt_count = tokens;
	request->choice_count = choices;
	for (uint32_t i = 0; i < choices; i++)
		request->choices[i] = i;
	event.prefill.has_decode = decode != 0;
	event.prefill.decode.incarnation = decode;
	step(f, &event);
}

static void dispatch(struct fixture *f, uint64_t id, uint32_t tokens)
{
	dispatch_with(f, id, tokens, 0, 0, 1);
}

static void answer(struct fixture *f, uint64_t id, uint32_t cached)
{
	struct node_event event = { .kind = NODE_RESERVE_ANSWER };
	event.answer.ref = (struct node_ref){ 1, id, 1 };
	event.answer.accepted = true;
	event.answer.cached_blocks = cached;
	step(f, &event);
}

/* @taken: tokens and rows that the decode role has put in already. */
static void schedule_after(struct fixture *f, uint32_t taken)
{
	node_actions_clear(&f->actions);
	node_batch_clear(&f->batch);
	for (uint32_t i = 0; i < taken; i++) {
		f->batch.rows[f->batch.row_count++] = (struct node_rows){ .role = NODE_ROLE_DECODE,
									  .token_count = 1 };
		f->batch.token_count++;
	}
	prefill_schedule(f->p, ++f->now_ns, &f->batch, &f->actions);
	prefill_check(f->p);
	trace_actions(f);
	for (uint32_t i = taken; i < f->batch.row_count; i++) {
		const struct node_rows *row = &f->batch.rows[i];
		buf_printf(&f->trace, "request %llu runs %u+%u",
			   (unsigned long long)f->p->slots[node_handle_index(row->handle)]
				   .request.ref.request,
			   row->position, row->token_count);
		if (row->sample_count)
			buf_printf(&f->trace, ", samples %u", row->sample_count);
		if (row->send_end > row->send_first)
			buf_printf(&f->trace, ", sends %u to %u", row->send_first, row->send_end);
		buf_printf(&f->trace, "\n");
	}
}

static void schedule(struct fixture *f)
{
	schedule_after(f, 0);
}

static void batch_done(struct fixture *f)
{
	uint32_t sampled[4 + NODE_CHOICES_MAX];
	struct node_event event = { .kind = NODE_BATCH_DONE };

	for (uint32_t i = 0; i < ARRAY_COUNT(sampled); i++)
		sampled[i] = 9;
	event.batch.batch = &f->batch;
	event.batch.sampled = sampled;
	step(f, &event);
}

static void test_running_goes_first(void **state)
{
	struct fixture f;
	setup(&f, 64, 8, 12);
	dispatch(&f, 1, 20);
	schedule(&f);
	assert_trace(&f, "request 1 runs 0+8\n"); /* a chunk; the rest of the budget has no taker */
	dispatch(&f, 2, 20);
	batch_done(&f);
	schedule(&f);
	/* 12 left of 1: it goes on, and only what it leaves over would go to 2, which waits since
	 * 4 tokens of 1 are for the next batch already and then 2 fits beside them. */
	assert_trace(&f, "request 1 runs 8+8\nrequest 2 runs 0+4\n");
	batch_done(&f);
	schedule(&f);
	assert_trace(&f, "request 1 runs 16+4, samples 1\nrequest 2 runs 4+8\n");
	batch_done(&f);
	assert_trace(&f, "request 1 has 1 first tokens, 0 cached\n");
	schedule(&f);
	assert_trace(&f, "request 2 runs 12+8, samples 1\n");
	teardown(&f);
}

static void test_budget_is_left_by_decode(void **state)
{
	struct fixture f;
	setup(&f, 64, 16, 8);
	dispatch(&f, 1, 20);
	schedule_after(&f, 3); /* decode rows came first: 5 of 8 tokens are left */
	assert_trace(&f, "request 1 runs 0+5\n");
	batch_done(&f);
	schedule_after(&f, 4); /* no row is left */
	assert_trace(&f, "");
	node_batch_clear(&f.batch);
	schedule(&f);
	assert_trace(&f, "request 1 runs 5+8\n");
	teardown(&f);
}

static void test_chunks_of_any_size(void **state)
{
	for (uint32_t chunk = 1; chunk <= 40; chunk += 3) {
		struct fixture f;
		uint32_t computed = 0;
		setup(&f, 64, chunk, 64);
		dispatch_with(&f, 1, 30, 0, PEER, 3);
		schedule(&f);
		answer(&f, 1, 2);
		uint32_t sent = 2;
		while (computed < 30) {
			schedule(&f);
			assert_int_equal(f.batch.row_count, 1);
			const struct node_rows *row = &f.batch.rows[0];
			assert_int_equal(row->position, computed);
			assert_int_equal(row->token_count, MIN(chunk, 30 - computed));
			computed += row->token_count;
			assert_int_equal(row->sample_count, computed == 30 ? 3 : 0);
			/* Each block that d lacks leaves once, when it is complete or the tail. */
			if (row->send_end > row->send_first) {
				assert_int_equal(row->send_first, sent);
				sent = row->send_end;
			}
			assert_int_equal(sent, computed == 30 ? 8 : MAX(2u, computed / 4));
			batch_done(&f);
		}
		teardown(&f);
	}
}

static void test_blocks_suffice_or_it_waits(void **state)
{
	struct fixture f;
	setup(&f, 8, 32, 64);
	dispatch(&f, 1, 20); /* 5 of 8 blocks */
	dispatch(&f, 2, 16); /* 4: not together with 1 */
	dispatch(&f, 3, 4);  /* would fit, but comes after 2 */
	dispatch(&f, 4, 40); /* never fits */
	assert_trace(&f, "request 4 returned: the node has no room\n");
	schedule(&f);
	assert_trace(&f, "request 1 runs 0+20, samples 1\n");
	batch_done(&f);
	assert_trace(&f, "request 1 has 1 first tokens, 0 cached\n");
	assert_int_equal(f.node.pool.counts[KV_CACHED], 5);
	schedule(&f); /* evicts what 1 left in the cache */
	assert_trace(&f, "request 2 runs 0+16, samples 1\nrequest 3 runs 0+4, samples 1\n");
	assert_int_equal(f.node.pool.counts[KV_USED], 5);
	batch_done(&f);
	assert_true(kv_node_idle(&f.node));
	teardown(&f);
}

static void test_reserve_is_late(void **state)
{
	struct fixture f;
	setup(&f, 64, 8, 8);
	dispatch_with(&f, 1, 30, 0, PEER, 1);
	dispatch_with(&f, 2, 8, 0, PEER, 1);
	schedule(&f);
	assert_trace(&f, "request 1 reserves\n");
	schedule(
		&f); /* still no answer: nothing runs, and 2 would have no room in the next batch */
	assert_trace(&f, "");
	answer(&f, 1, 0);
	schedule(&f);
	assert_trace(&f, "request 1 runs 0+8, sends 0 to 2\n");
	batch_done(&f);
	schedule(&f);
	assert_trace(&f, "request 1 runs 8+8, sends 2 to 4\n");
	batch_done(&f);
	schedule(&f); /* 6 tokens remain for the next batch: now 2 is about to run */
	assert_trace(&f, "request 2 reserves\nrequest 1 runs 16+8, sends 4 to 6\n");
	answer(&f, 2, 0);
	batch_done(&f);
	schedule(&f);
	assert_trace(&f, "request 1 runs 24+6, samples 1, sends 6 to 8\nrequest 2 runs 0+2\n");
	teardown(&f);
}

static void test_cached_prefix(void **state)
{
	struct fixture f;
	setup(&f, 64, 32, 64);
	dispatch_with(&f, 1, 16, 16, 0, 1);
	schedule(&f);
	batch_done(&f);
	assert_trace(&f,
		     "request 1 runs 0+16, samples 1\nrequest 1 has 1 first tokens, 0 cached\n");
	/* The same text again: one block is left to run, or there would be no logits. */
	dispatch_with(&f, 2, 16, 16, 0, 1);
	schedule(&f);
	batch_done(&f);
	assert_trace(&f,
		     "request 2 runs 12+4, samples 1\nrequest 2 has 1 first tokens, 12 cached\n");
	/* A longer one for a d that has only the first block: the rest of the cache leaves at once.
	 */
	dispatch_with(&f, 3, 22, 16, PEER, 1);
	schedule(&f);
	answer(&f, 3, 1);
	schedule(&f);
	assert_trace(&f, "request 3 reserves\nrequest 3 sends blocks 1 to 4\n"
			 "request 3 runs 16+6, samples 1, sends 4 to 6\n");
	batch_done(&f);
	assert_trace(&f, "request 3 has 1 first tokens, 16 cached\n");
	/* d has more than p: blocks that both must compute or have are not sent. */
	dispatch_with(&f, 4, 30, 16, PEER, 2);
	schedule(&f);
	answer(&f, 4, 7);
	schedule(&f);
	assert_trace(&f, "request 4 reserves\nrequest 4 runs 16+14, samples 2, sends 7 to 8\n");
	teardown(&f);
}

/* d is this process: its core is asked, nothing is sent, the page table changes hands. */
static void test_stays_here(void **state)
{
	struct fixture f;
	setup(&f, 64, 32, 64);
	dispatch_with(&f, 1, 10, 0, SELF, 2);
	schedule(&f);
	assert_int_equal(f.actions.count, 1);
	assert_int_equal(f.actions.v[0].kind, NODE_DO_RESERVE);
	assert_true(f.actions.v[0].reserve.local);
	answer(&f, 1, 0);
	schedule(&f);
	assert_trace(&f, "request 1 reserves\nrequest 1 runs 0+10, samples 2\n");
	batch_done(&f);
	const struct node_action *action = &f.actions.v[1];
	assert_int_equal(action->kind, NODE_DO_HAND_OVER);
	assert_int_equal(action->adopt.token_count, 2);
	assert_int_equal(action->adopt.sequence->block_count, 3);
	assert_int_equal(action->adopt.sequence->committed, 2);
	assert_int_equal(f.actions.v[2].kind, NODE_DO_FORGET);
	assert_true(prefill_idle(f.p));
	assert_int_equal(f.node.pool.counts[KV_USED], 3);
	kv_sequence_drop(action->adopt.sequence, &f.node);
	teardown(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_running_goes_first),
		cmocka_unit_test(test_budget_is_left_by_decode),
		cmocka_unit_test(test_chunks_of_any_size),
		cmocka_unit_test(test_blocks_suffice_or_it_waits),
		cmocka_unit_test(test_reserve_is_late),
		cmocka_unit_test(test_cached_prefix),
		cmocka_unit_test(test_stays_here),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
