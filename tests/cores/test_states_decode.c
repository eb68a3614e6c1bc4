/* Every state of a decode request against every event; the result stands in
 * docs/states-decode.md. */
#include "base/check.h"
#include "base/clock.h"
#include "decode-node/core/decode_core.h"
#include "tests/cores/table.h"

/* A prompt of 10 tokens in blocks of 4 and two choices: three blocks, six slices. */
#define PROMPT 10
#define PEER 7
#define SELF 5
#define CONDUCTOR 1

enum column {
	RESERVED,
	LANDING,
	LANDED,
	KNOWN,
	RUNNING,
	IN_BATCH,
	REVOKING,
	ENDING,
	LOCAL,
	UNKNOWN,
	COLUMN_COUNT
};
static const char *const columns[] = { "reserved",
				       "landing",
				       "landing, all landed",
				       "landing, first tokens known",
				       "running",
				       "running, in a batch",
				       "ending, quarantined",
				       "ending, in a batch",
				       "reserved, p is here",
				       "unknown" };

enum row {
	RESERVE,
	EXPECT_FAILED,
	SLICE_LANDED,
	LANDED_ALL,
	REVOKED,
	FIRST_TOKENS,
	FIRST_TOKENS_ONE,
	FIRST_TOKENS_ENDED,
	ADOPT,
	BATCH_DONE,
	BATCH_DONE_ONE_ENDS,
	BATCH_DONE_ALL_END,
	PREEMPT,
	RELEASE,
	RELEASE_CHOICE,
	RELEASE_LAST_CHOICE,
	RELEASE_BY_PEER,
	PEER_LOST,
	OTHER_PEER_LOST,
	CONDUCTOR_LOST,
	DRAIN_GRACE,
	DRAIN_NOW,
	UNDRAIN,
	TICK,
	TICK_LATE,
	ROW_COUNT
};
static const char *const rows[] = {
	[RESERVE] = "Reserve (this ref)",
	[EXPECT_FAILED] = "no transfer could be granted",
	[SLICE_LANDED] = "slice landed",
	[LANDED_ALL] = "all landed",
	[REVOKED] = "transfer revoked",
	[FIRST_TOKENS] = "FirstTokens",
	[FIRST_TOKENS_ONE] = "FirstTokens, one choice ended",
	[FIRST_TOKENS_ENDED] = "FirstTokens, all ended",
	[ADOPT] = "hand-over from p in this process",
	[BATCH_DONE] = "batch done",
	[BATCH_DONE_ONE_ENDS] = "batch done, one choice ends",
	[BATCH_DONE_ALL_END] = "batch done, all choices end",
	[PREEMPT] = "blocks run out",
	[RELEASE] = "Release",
	[RELEASE_CHOICE] = "Release of one choice",
	[RELEASE_LAST_CHOICE] = "Release of the last choice",
	[RELEASE_BY_PEER] = "Release by p",
	[PEER_LOST] = "p lost",
	[OTHER_PEER_LOST] = "another node lost",
	[CONDUCTOR_LOST] = "conductor lost",
	[DRAIN_GRACE] = "drain, with grace",
	[DRAIN_NOW] = "drain, at once",
	[UNDRAIN] = "undrain",
	[TICK] = "tick",
	[TICK_LATE] = "tick, past the deadline",
};

struct fixture {
	struct kv_node node;
	struct decode *d;
	struct node_batch batch;
	struct node_actions actions;
	struct kv_sequence handed;
	uint64_t now_ns;
	node_handle handle;
	uint32_t sampled[2];
};

static const struct node_ref ref = { CONDUCTOR, 1, 1 };
static const uint32_t prompt[PROMPT] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 };

static void step(struct fixture *f, struct node_event *event)
{
	event->now_ns = f->now_ns += NS_PER_MS;
	node_actions_clear(&f->actions);
	decode_step(f->d, event, &f->actions);
	decode_check(f->d);
}

static void reserve(struct fixture *f, bool local)
{
	struct node_event event = { .kind = NODE_RESERVE };
	struct node_request *request = &event.reserve.request;

	request->ref = ref;
	request->model[0] = 'm';
	request->sampling.max_tokens = 8;
	request->tokens = prompt;
	request->token_count = request->prompt_count = PROMPT;
	request->choices[1] = 1;
	request->choice_count = 2;
	event.reserve.source = local ? SELF : PEER;
	event.reserve.target = SELF;
	event.reserve.source_node = "";
	event.reserve.predicted_tokens = 4;
	event.reserve.local = local;
	step(f, &event);
}

static void transfer(struct fixture *f, enum node_event_kind kind)
{
	struct node_event event = { .kind = kind };
	event.landed.handle = f->handle;
	event.landed.bytes = 4096;
	step(f, &event);
}

static void first_tokens(struct fixture *f, uint32_t ended)
{
	const struct node_first_token tokens[] = { { 0, 20, ended > 0 }, { 1, 21, ended > 1 } };
	struct node_event event = { .kind = NODE_FIRST_TOKENS };
	event.first.ref = ref;
	event.first.tokens = tokens;
	event.first.token_count = 2;
	step(f, &event);
}

static void adopt(struct fixture *f)
{
	const struct node_first_token tokens[] = { { 0, 20, false }, { 1, 21, false } };
	struct node_event event = { .kind = NODE_ADOPT };

	kv_sequence_start(&f->handed, &(struct kv_key){ { 0 } }, prompt, PROMPT);
	CHECK(kv_sequence_cover(&f->handed, &f->node, KV_USED) == 3);
	event.adopt.ref = ref;
	event.adopt.sequence = &f->handed;
	event.adopt.tokens = tokens;
	event.adopt.token_count = 2;
	step(f, &event);
	CHECK(f->handed.block_count == 0); /* it always takes them over */
}

static void schedule(struct fixture *f)
{
	node_actions_clear(&f->actions);
	node_batch_clear(&f->batch);
	decode_schedule(f->d, f->now_ns, &f->batch, &f->actions);
	decode_check(f->d);
}

static void batch_done(struct fixture *f, uint32_t first, uint32_t second)
{
	struct node_event event = { .kind = NODE_BATCH_DONE };
	f->sampled[0] = first;
	f->sampled[1] = second;
	event.batch.batch = &f->batch;
	event.batch.sampled = f->sampled;
	step(f, &event);
}

static void release(struct fixture *f, bool one_choice, uint32_t choice)
{
	struct node_event event = { .kind = NODE_RELEASE };
	event.release.ref = ref;
	event.release.one_choice = one_choice;
	event.release.choice = choice;
	step(f, &event);
}

static void lost(struct fixture *f, enum node_event_kind kind, uint64_t incarnation)
{
	struct node_event event = { .kind = kind };
	event.lost.incarnation = incarnation;
	step(f, &event);
}

static void bring(struct fixture *f, enum column column)
{
	struct decode_config config = {
		.incarnation = SELF,
		.model = "m",
		.layer_count = 2,
		.max_model_len = 32,
		.sequences_max = 4,
		.eos_ids = { 3 },
		.eos_count = 1,
		.landing_timeout_ns = NS_PER_S,
	};
	CHECK(kv_node_init(&f->node, 16, 4) == 0);
	CHECK(decode_new(&config, &f->node, &f->d) == 0);
	CHECK(node_batch_init(&f->batch, 4, 16) == 0);
	CHECK(node_actions_init(&f->actions, 4, f->batch.sample_max) == 0);
	CHECK(kv_sequence_init(&f->handed, 8, 4) == 0);
	f->handle = node_handle_make(NODE_ROLE_DECODE, 0, 1);
	if (column == UNKNOWN)
		return;
	reserve(f, column == LOCAL);
	if (column == RESERVED || column == LOCAL)
		return;
	transfer(f, NODE_SLICE_LANDED);
	if (column == LANDING)
		return;
	if (column == KNOWN)
		return first_tokens(f, 0);
	if (column == REVOKING)
		return release(f, false, 0);
	transfer(f, NODE_LANDED_ALL);
	if (column == LANDED)
		return;
	first_tokens(f, 0);
	if (column == RUNNING)
		return;
	schedule(f);
	if (column == ENDING)
		release(f, false, 0);
}

/* Takes every block there is, then asks for the next batch. */
static void preempt(struct fixture *f)
{
	kv_block_id block;
	CHECK(!f->d->batch_out); /* nothing is scheduled while a batch is out */
	while (kv_node_take(&f->node, KV_RESERVED, &block) == 0)
		;
	schedule(f);
	for (block.v = 0; block.v < f->node.pool.block_count; block.v++) {
		if (f->node.pool.blocks[block.v].state == KV_RESERVED &&
		    !f->d->requests[0].expecting)
			kv_pool_free(&f->node.pool, block);
	}
}

static void happen(struct fixture *f, enum row row)
{
	struct node_event event = { 0 };

	switch (row) {
	case RESERVE:
		return reserve(f, false);
	case EXPECT_FAILED:
		return transfer(f, NODE_EXPECT_FAILED);
	case SLICE_LANDED:
		return transfer(f, NODE_SLICE_LANDED);
	case LANDED_ALL:
		return transfer(f, NODE_LANDED_ALL);
	case REVOKED:
		return transfer(f, NODE_REVOKED);
	case FIRST_TOKENS:
		return first_tokens(f, 0);
	case FIRST_TOKENS_ONE:
		return first_tokens(f, 1);
	case FIRST_TOKENS_ENDED:
		return first_tokens(f, 2);
	case ADOPT:
		return adopt(f);
	case BATCH_DONE:
		return batch_done(f, 9, 9);
	case BATCH_DONE_ONE_ENDS:
		return batch_done(f, 3, 9);
	case BATCH_DONE_ALL_END:
		return batch_done(f, 3, 3);
	case PREEMPT:
		return preempt(f);
	case RELEASE:
		return release(f, false, 0);
	case RELEASE_CHOICE:
		return release(f, true, 1);
	case RELEASE_LAST_CHOICE:
		release(f, true, 1);
		return release(f, true, 0);
	case RELEASE_BY_PEER:
		event.kind = NODE_RELEASE;
		event.release.ref = ref;
		event.release.by_peer = true;
		return step(f, &event);
	case PEER_LOST:
		return lost(f, NODE_PEER_LOST, PEER);
	case OTHER_PEER_LOST:
		return lost(f, NODE_PEER_LOST, PEER + 1);
	case CONDUCTOR_LOST:
		return lost(f, NODE_CONDUCTOR_LOST, CONDUCTOR);
	case DRAIN_GRACE:
		event.drain.grace_ns = NS_PER_S;
		__attribute__((fallthrough));
	case DRAIN_NOW:
		event.kind = NODE_DRAIN;
		return step(f, &event);
	case UNDRAIN:
		event.kind = NODE_UNDRAIN;
		return step(f, &event);
	case TICK_LATE:
		f->now_ns += NS_PER_S;
		__attribute__((fallthrough));
	case TICK:
		event.kind = NODE_TICK;
		return step(f, &event);
	case ROW_COUNT:
		break;
	}
	CHECK(!"a row");
}

static void cell(size_t column, size_t row, struct buf *out)
{
	static struct fixture f;
	uint32_t refs[16] = { 0 };

	bring(&f, (enum column)column);
	uint64_t stale = f.d->counters.events_stale;
	happen(&f, (enum row)row);
	uint8_t state = f.d->requests[0].state;
	buf_append_text(out, state == DECODE_FREE ? "over" : decode__states[state].name);
	if (column == UNKNOWN && state == DECODE_FREE) {
		buf_clear(out);
		buf_append_text(out, f.d->counters.events_stale > stale ? "stale" : "nothing");
	}
	table_actions(&f.actions, out);
	if (f.node.pool.counts[KV_QUARANTINED] > 0)
		buf_append_text(out, "; blocks quarantined");
	kv_node_check(&f.node);
	decode_count_refs(f.d, refs);
	for (uint32_t b = 0; b < 16; b++)
		CHECK(refs[b] == f.node.pool.blocks[b].refs);
	CHECK(state != DECODE_FREE || kv_node_idle(&f.node));
}

int main(int argc, char **argv)
{
	static_assert(ARRAY_COUNT(columns) == COLUMN_COUNT, "a name for each state");
	static_assert(ARRAY_COUNT(rows) == ROW_COUNT, "a name for each event");
	const struct table table = { columns, COLUMN_COUNT, rows, ROW_COUNT, cell };
	return table_main(&table, TEST_DOCUMENT, argc > 1 ? argv[1] : NULL);
}
