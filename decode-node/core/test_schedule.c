/* The three questions of the step loop, asked of decode_schedule() and answered as traces. */
#include "base/test_util.h"

#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "decode-node/core/decode_core.h"

#define SELF 5
#define PEER 7

struct fixture {
	struct kv_node node;
	struct decode *d;
	struct node_batch batch;
	struct node_actions actions;
	struct kv_sequence handed;
	uint64_t now_ns;
	struct buf trace;
};

static void setup(struct fixture *f, uint32_t blocks, uint32_t rows, uint32_t budget)
{
	struct decode_config config = {
		.incarnation = SELF,
		.model = "m",
		.layer_count = 2,
		.max_model_len = 64,
		.sequences_max = 8,
		.eos_ids = { 3 },
		.eos_count = 1,
		.landing_timeout_ns = NS_PER_S,
	};
	memset(f, 0, sizeof *f);
	assert_int_equal(kv_node_init(&f->node, blocks, 4), 0);
	assert_int_equal(decode_new(&config, &f->node, &f->d), 0);
	assert_int_equal(node_batch_init(&f->batch, rows, budget), 0);
	assert_int_equal(node_actions_init(&f->actions, 8, f->batch.sample_max), 0);
	assert_int_equal(kv_sequence_init(&f->handed, 16, 4), 0);
	buf_init(&f->trace, 0);
}

static void teardown(struct fixture *f)
{
	buf_fini(&f->trace);
	kv_sequence_fini(&f->handed);
	node_actions_fini(&f->actions);
	node_batch_fini(&f->batch);
	decode_free(f->d);
	kv_node_fini(&f->node);
}

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
		if (action->kind == NODE_DO_REFUSE)
			buf_printf(&f->trace, "request %llu refused: %s\n", request,
				   action->refuse.reason);
		else if (action->kind == NODE_DO_GRANT && !action->grant.local)
			buf_printf(&f->trace, "request %llu granted, %u of %u blocks here\n",
				   request, action->grant.cached_blocks, action->grant.block_count);
		else if (action->kind == NODE_DO_RETURNED)
			buf_printf(&f->trace, "request %llu choice %u returned: %s\n", request,
				   action->returned.choice,
				   node_returned_text(action->returned.reason));
		for (uint32_t t = 0; action->kind == NODE_DO_TOKENS && t < action->tokens.count;
		     t++) {
			const struct node_token *token = &action->tokens.v[t];
			if (token->finish != NODE_FINISH_NONE)
				buf_printf(&f->trace, "request %llu choice %u ends at %u: %s\n",
					   request, token->choice, token->position,
					   token->finish == NODE_FINISH_STOP ? "stop" : "length");
		}
	}
}

static void step(struct fixture *f, struct node_event *event)
{
	event->now_ns = ++f->now_ns;
	node_actions_clear(&f->actions);
	decode_step(f->d, event, &f->actions);
	decode_check(f->d);
	trace_actions(f);
}

static void text_of(uint64_t id, uint32_t tokens, uint32_t common, uint32_t ret_text[64])
{
	for (uint32_t i = 0; i < tokens; i++)
		ret_text[i] = i < common ? i : (uint32_t)(1000 * id + i);
}

struct wish {
	uint64_t id;
	uint32_t tokens, common, choices, predicted, max_tokens, min_tokens;
	int32_t priority;
};

static void reserve(struct fixture *f, struct wish wish, bool local)
{
	uint32_t text[64];
	struct node_event event = { .kind = NODE_RESERVE };
	struct node_request *request = &event.reserve.request;

	text_of(wish.id, wish.tokens, wish.common, text);
	request->ref = (struct node_ref){ 1, wish.id, 1 };
	request->model[0] = 'm';
	request->sampling.max_tokens = wish.max_tokens ? wish.max_tokens : 40;
	request->sampling.min_tokens = wish.min_tokens;
	request->tokens = text;
	request->token_count = request->prompt_count = wish.tokens;
	request->choice_count = wish.choices ? wish.choices : 1;
	for (uint32_t i = 0; i < request->choice_count; i++)
		request->choices[i] = i;
	request->priority = wish.priority;
	event.reserve.source = local ? SELF : PEER;
	event.reserve.target = SELF;
	event.reserve.predicted_tokens = wish.predicted;
	event.reserve.local = local;
	step(f, &event);
}

/* Brings a request to running without a transfer, as `both` does. */
static void run(struct fixture *f, struct wish wish)
{
	uint32_t text[64], choices = wish.choices ? wish.choices : 1;
	struct node_first_token firsts[8];
	struct node_event event = { .kind = NODE_ADOPT };

	reserve(f, wish, true);
	text_of(wish.id, wish.tokens, wish.common, text);
	kv_sequence_start(&f->handed, &(struct kv_key){ { 0 } }, text, wish.tokens);
	assert_true(kv_sequence_match(&f->handed, &f->node, 1) * 4 < wish.tokens);
	assert_true(kv_sequence_cover(&f->handed, &f->node, KV_USED) > 0);
	kv_sequence_commit(&f->handed, &f->node, wish.tokens);
	for (uint32_t i = 0; i < choices; i++)
		firsts[i] = (struct node_first_token){ i, 50 + i, false };
	event.adopt.ref = (struct node_ref){ 1, wish.id, 1 };
	event.adopt.sequence = &f->handed;
	event.adopt.tokens = firsts;
	event.adopt.token_count = choices;
	step(f, &event);
}

static void schedule(struct fixture *f)
{
	node_actions_clear(&f->actions);
	node_batch_clear(&f->batch);
	decode_schedule(f->d, ++f->now_ns, &f->batch, &f->actions);
	decode_check(f->d);
	trace_actions(f);
	for (uint32_t i = 0; i < f->batch.row_count; i++) {
		const struct node_rows *row = &f->batch.rows[i];
		const struct decode_seat *seat = &f->d->seats[node_handle_index(row->handle)];
		assert_int_equal(row->token_count, 1); /* it computes no prompt */
		buf_printf(&f->trace, "%llu.%u at %u%s\n",
			   (unsigned long long)seat->request->ref.request, seat->choice,
			   row->position,
			   f->batch.samples[row->sample_first].ban_count ? ", may not end" : "");
	}
	for (uint32_t i = 0; i < f->batch.copy_count; i++)
		buf_printf(&f->trace, "a block is copied\n");
}

static void batch_done(struct fixture *f, uint32_t token)
{
	uint32_t sampled[8 + NODE_CHOICES_MAX];
	struct node_event event = { .kind = NODE_BATCH_DONE };

	for (uint32_t i = 0; i < ARRAY_COUNT(sampled); i++)
		sampled[i] = token;
	event.batch.batch = &f->batch;
	event.batch.sampled = sampled;
	step(f, &event);
}

static void test_everyone_who_fits(void **state)
{
	struct fixture f;
	setup(&f, 64, 4, 3); /* a budget of 3 tokens */
	run(&f, (struct wish){ .id = 1, .tokens = 5, .priority = 1 });
	run(&f, (struct wish){ .id = 2, .tokens = 6, .priority = 0 });
	run(&f, (struct wish){ .id = 3, .tokens = 7, .priority = 1, .choices = 2 });
	schedule(&f); /* by priority, then age; one of 3's choices waits a turn */
	assert_trace(&f, "2.0 at 6\n1.0 at 5\n3.0 at 7\na block is copied\n");
	batch_done(&f, 9);
	schedule(&f);
	assert_trace(&f, "2.0 at 7\n1.0 at 6\n3.0 at 8\n");
	batch_done(&f, 3); /* end of generation for all three */
	assert_trace(&f, "request 2 choice 0 ends at 2: stop\nrequest 1 choice 0 ends at 2: stop\n"
			 "request 3 choice 0 ends at 2: stop\n");
	schedule(&f);
	assert_trace(&f, "3.1 at 7\n");
	teardown(&f);
}

static void test_shared_tail_is_copied(void **state)
{
	struct fixture f;
	setup(&f, 64, 4, 8);
	run(&f, (struct wish){ .id = 1, .tokens = 6, .choices = 3 });
	assert_int_equal(f.node.pool.counts[KV_USED], 2); /* three sequences, one prompt */
	schedule(&f);
	assert_trace(&f, "1.0 at 6\n1.1 at 6\n1.2 at 6\na block is copied\na block is copied\n");
	assert_int_equal(f.node.pool.counts[KV_USED], 4); /* the head shared, a tail each */
	batch_done(&f, 9);
	schedule(&f);
	assert_trace(&f, "1.0 at 7\n1.1 at 7\n1.2 at 7\n");
	/* The end of one of them frees its own only. */
	struct node_event event = { .kind = NODE_RELEASE };
	event.release.ref = (struct node_ref){ 1, 1, 1 };
	event.release.one_choice = true;
	event.release.choice = 1;
	step(&f, &event);
	assert_int_equal(f.node.pool.counts[KV_USED], 4); /* a batch is out */
	batch_done(&f, 9);
	assert_int_equal(f.node.pool.counts[KV_USED], 3);
	teardown(&f);
}

static void release(struct fixture *f, uint64_t id, uint32_t choice)
{
	struct node_event event = { .kind = NODE_RELEASE };
	event.release.ref = (struct node_ref){ 1, id, 1 };
	event.release.one_choice = true;
	event.release.choice = choice;
	step(f, &event);
}

/* What a batch copies from stays until it is done, also when its last owner is not in the batch. */
static void test_copied_from_stays(void **state)
{
	struct fixture f;
	setup(&f, 64, 2, 8); /* two rows */
	run(&f, (struct wish){ .id = 1, .tokens = 6, .choices = 3 });
	schedule(&f);
	assert_trace(&f, "1.0 at 6\n1.1 at 6\na block is copied\na block is copied\n");
	kv_block_id source = f.batch.copies[0].source;
	assert_int_equal(f.batch.copies[1].source.v, source.v);
	assert_int_equal(kv_pool_block(&f.node.pool, source)->refs, 1);
	release(&f, 1, 2);
	assert_int_equal(kv_pool_block(&f.node.pool, source)->state, KV_USED);
	batch_done(&f, 9);
	assert_int_equal(kv_pool_block(&f.node.pool, source)->state, KV_FREE);
	teardown(&f);
}

static void test_cache_goes_before_people(void **state)
{
	struct fixture f;
	setup(&f, 4, 4, 8);
	run(&f, (struct wish){ .id = 1, .tokens = 9, .max_tokens = 3 });
	schedule(&f);
	batch_done(&f, 9);
	schedule(&f);
	batch_done(&f, 9);
	assert_trace(&f, "1.0 at 9\n1.0 at 10\nrequest 1 choice 0 ends at 2: length\n");
	assert_int_equal(f.node.pool.counts[KV_CACHED], 2); /* its full blocks */
	run(&f, (struct wish){ .id = 2, .tokens = 8 });
	schedule(&f); /* takes a free block, then evicts one a growth */
	assert_trace(&f, "2.0 at 8\n");
	for (int i = 0; i < 7; i++) {
		batch_done(&f, 9);
		schedule(&f);
	}
	assert_trace(
		&f, "2.0 at 9\n2.0 at 10\n2.0 at 11\n2.0 at 12\n2.0 at 13\n2.0 at 14\n2.0 at 15\n");
	assert_int_equal(f.node.pool.counts[KV_USED], 4);
	assert_int_equal(f.node.evictions, 2);
	teardown(&f);
}

static void test_youngest_of_lowest_priority_goes(void **state)
{
	struct fixture f;
	setup(&f, 7, 4, 8);
	run(&f, (struct wish){ .id = 1, .tokens = 8, .priority = 1 });
	run(&f, (struct wish){ .id = 2, .tokens = 8, .priority = 1 });
	run(&f, (struct wish){ .id = 3, .tokens = 8, .priority = 0 });
	assert_int_equal(f.node.pool.counts[KV_FREE], 1);
	schedule(&f); /* three need a block, one is there: 2 goes, though 3 came last */
	assert_trace(
		&f, "request 2 choice 0 returned: preempted, blocks ran out\n3.0 at 8\n1.0 at 8\n");
	assert_int_equal(f.d->counters.preemptions, 1);
	assert_int_equal(f.node.pool.counts[KV_CACHED],
			 1); /* one of 2's was evicted for 1's growth */
	batch_done(&f, 9);
	assert_true(decode_knows(f.d, &(struct node_ref){ 1, 1, 1 }));
	assert_false(decode_knows(f.d, &(struct node_ref){ 1, 2, 1 }));
	teardown(&f);
}

static void test_min_tokens_bans_the_end(void **state)
{
	struct fixture f;
	setup(&f, 64, 4, 8);
	run(&f, (struct wish){ .id = 1, .tokens = 8, .min_tokens = 3, .max_tokens = 5 });
	schedule(&f); /* position 1 */
	batch_done(&f, 9);
	schedule(&f); /* position 2 */
	batch_done(&f, 9);
	schedule(&f); /* position 3 */
	assert_trace(&f, "1.0 at 8, may not end\n1.0 at 9, may not end\n1.0 at 10\n");
	batch_done(&f, 9);
	schedule(&f);
	batch_done(&f, 9);
	assert_trace(&f, "1.0 at 11\nrequest 1 choice 0 ends at 4: length\n");
	assert_true(kv_node_idle(&f.node));
	teardown(&f);
}

static void test_reserve_checks_the_load(void **state)
{
	struct fixture f;
	setup(&f, 8, 4, 8);
	reserve(&f, (struct wish){ .id = 1, .tokens = 12, .predicted = 8 }, false); /* 3 and 2 */
	reserve(&f, (struct wish){ .id = 2, .tokens = 9, .predicted = 4 },
		false); /* 3 and 1: 9 of 8 */
	reserve(&f, (struct wish){ .id = 3, .tokens = 4, .predicted = 4, .choices = 2 },
		false); /* 1 and 2 */
	reserve(&f, (struct wish){ .id = 4, .tokens = 2, .choices = 6 },
		false); /* seats: 5 are left */
	reserve(&f, (struct wish){ .id = 5, .tokens = 64 }, false);
	reserve(&f, (struct wish){ .id = 1, .tokens = 4 }, false);
	assert_trace(&f, "request 1 granted, 0 of 3 blocks here\n"
			 "request 2 refused: no room for prompt and predicted output\n"
			 "request 3 granted, 0 of 1 blocks here\n"
			 "request 4 refused: every sequence is taken\n"
			 "request 5 refused: longer than this node can hold\n"
			 "request 1 refused: known already\n");
	assert_int_equal(f.node.pool.counts[KV_RESERVED], 4);
	teardown(&f);
}

/* Who is let in is not preempted by the next growth of those who run. */
static void test_newcomer_leaves_room_to_grow(void **state)
{
	struct fixture f;
	setup(&f, 8, 4, 8);
	run(&f, (struct wish){ .id = 1, .tokens = 8 });
	run(&f, (struct wish){ .id = 2, .tokens = 8 });
	reserve(&f, (struct wish){ .id = 3, .tokens = 12 }, false); /* 3 of 4, and 2 may grow */
	reserve(&f, (struct wish){ .id = 4, .tokens = 8 }, false);
	assert_trace(&f, "request 3 refused: no room for prompt and predicted output\n"
			 "request 4 granted, 0 of 2 blocks here\n");
	schedule(&f);
	assert_trace(&f, "1.0 at 8\n2.0 at 8\n");
	assert_int_equal(f.node.pool.counts[KV_FREE], 0);
	teardown(&f);
}

static void test_prefix_here_need_not_travel(void **state)
{
	struct fixture f;
	setup(&f, 16, 4, 8);
	run(&f, (struct wish){ .id = 1, .tokens = 12, .common = 12, .max_tokens = 2 });
	schedule(&f);
	batch_done(&f, 9);
	assert_trace(&f, "1.0 at 12\nrequest 1 choice 0 ends at 1: length\n");
	reserve(&f, (struct wish){ .id = 2, .tokens = 14, .common = 12 }, false);
	reserve(&f, (struct wish){ .id = 3, .tokens = 12, .common = 12 }, false); /* all of it */
	reserve(&f, (struct wish){ .id = 4, .tokens = 12, .common = 7 }, false);
	assert_trace(
		&f, "request 2 granted, 3 of 4 blocks here\nrequest 3 granted, 3 of 3 blocks here\n"
		    "request 4 granted, 1 of 3 blocks here\n");
	/* 3 has nothing to wait for but its first token. */
	struct node_event event = { .kind = NODE_FIRST_TOKENS };
	event.first.ref = (struct node_ref){ 1, 3, 1 };
	event.first.tokens = &(struct node_first_token){ 0, 50, false };
	event.first.token_count = 1;
	step(&f, &event);
	schedule(&f);
	assert_trace(&f, "3.0 at 12\n");
	teardown(&f);
}

/* Landed blocks and those that decode fills are known under their keys: the next prompt that
 * begins with this one's text and answer finds them. */
static void test_what_lands_and_grows_is_cached(void **state)
{
	struct fixture f;
	uint32_t text[64];
	struct node_event landed = { .kind = NODE_LANDED_ALL };
	struct node_event first = { .kind = NODE_FIRST_TOKENS };

	setup(&f, 16, 4, 8);
	reserve(&f, (struct wish){ .id = 1, .tokens = 10, .max_tokens = 8 }, false);
	landed.landed.handle = f.actions.v[0].handle;
	step(&f, &landed);
	/* The others of its beginning need not wait for its end. */
	text_of(1, 10, 0, text);
	kv_sequence_start(&f.handed, &(struct kv_key){ { 0 } }, text, 10);
	assert_int_equal(kv_sequence_match(&f.handed, &f.node, 1), 2);
	kv_sequence_drop(&f.handed, &f.node);

	first.first.ref = (struct node_ref){ 1, 1, 1 };
	first.first.tokens = &(struct node_first_token){ 0, 50, false };
	first.first.token_count = 1;
	step(&f, &first);
	for (uint32_t i = 0; i < 7; i++) {
		schedule(&f);
		batch_done(&f, 60 + i);
	}
	assert_true(kv_node_idle(&f.node));
	/* 10 of the prompt, the first token and six that were run: 17, so four blocks. */
	text[10] = 50;
	for (uint32_t i = 0; i < 7; i++)
		text[11 + i] = 60 + i;
	kv_sequence_start(&f.handed, &(struct kv_key){ { 0 } }, text, 18);
	assert_int_equal(kv_sequence_match(&f.handed, &f.node, 1), 4);
	kv_sequence_drop(&f.handed, &f.node);
	teardown(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_everyone_who_fits),
		cmocka_unit_test(test_shared_tail_is_copied),
		cmocka_unit_test(test_copied_from_stays),
		cmocka_unit_test(test_cache_goes_before_people),
		cmocka_unit_test(test_youngest_of_lowest_priority_goes),
		cmocka_unit_test(test_min_tokens_bans_the_end),
		cmocka_unit_test(test_reserve_checks_the_load),
		cmocka_unit_test(test_newcomer_leaves_room_to_grow),
		cmocka_unit_test(test_prefix_here_need_not_travel),
		cmocka_unit_test(test_what_lands_and_grows_is_cached),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
