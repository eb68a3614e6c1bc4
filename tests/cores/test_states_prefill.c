/* Every state of a prefill against every event; the result stands in docs/states-prefill.md. */
#include <errno.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "prefill-node/core/prefill_core.h"
#include "tests/cores/table.h"

/* A prompt of 10 tokens in blocks of 4, 2 layers, two choices, chunks of 8: two chunks, six
 * slices. */
#define PROMPT 10
#define PEER 7
#define SELF 5
#define CONDUCTOR 1

enum column { QUEUED, RESERVING, RUNNING, IN_BATCH, SENDING, ENDING, UNKNOWN, COLUMN_COUNT };
static const char *const columns[] = { "queued",  "reserving", "running", "running, in a batch",
				       "sending", "ending",    "unknown" };

enum row {
	DISPATCHED,
	ACCEPTED,
	OUT_OF_RANGE,
	REFUSED,
	SENT,
	SENT_LAST,
	FAILED,
	FAILED_AGAIN,
	REVOKED,
	CHUNK_DONE,
	PROMPT_DONE,
	PROMPT_DONE_ENDED,
	RELEASE,
	RELEASE_CHOICE,
	RELEASE_LAST_CHOICE,
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
	[DISPATCHED] = "Prefill (this ref)",
	[ACCEPTED] = "ReserveAnswer, accepted",
	[OUT_OF_RANGE] = "ReserveAnswer, more cached than there is",
	[REFUSED] = "ReserveAnswer, refused",
	[SENT] = "slice sent",
	[SENT_LAST] = "slice sent, the last open one",
	[FAILED] = "slice failed",
	[FAILED_AGAIN] = "slice failed again",
	[REVOKED] = "slice not expected any more",
	[CHUNK_DONE] = "batch done, prompt goes on",
	[PROMPT_DONE] = "batch done, first tokens",
	[PROMPT_DONE_ENDED] = "batch done, first tokens all end",
	[RELEASE] = "Release",
	[RELEASE_CHOICE] = "Release of one choice",
	[RELEASE_LAST_CHOICE] = "Release of the last choice",
	[PEER_LOST] = "d lost",
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
	struct prefill *p;
	struct node_batch batch;
	struct node_actions actions;
	uint64_t now_ns;
	node_handle handle;
	uint32_t sampled[2];
};

static const struct node_ref ref = { CONDUCTOR, 1, 1 };

static void step(struct fixture *f, struct node_event *event)
{
	event->now_ns = f->now_ns += NS_PER_MS;
	node_actions_clear(&f->actions);
	prefill_step(f->p, event, &f->actions);
	prefill_check(f->p);
}

static void dispatch(struct fixture *f)
{
	static const uint32_t tokens[PROMPT] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 };
	struct node_event event = { .kind = NODE_PREFILL };
	struct node_request *request = &event.prefill.request;

	request->ref = ref;
	request->model[0] = 'm';
	request->sampling.max_tokens = 8;
	request->tokens = tokens;
	request->token_count = request->prompt_count = PROMPT;
	request->choices[1] = 1;
	request->choice_count = 2;
	event.prefill.has_decode = true;
	event.prefill.decode.incarnation = PEER;
	step(f, &event);
}

static void schedule(struct fixture *f)
{
	node_actions_clear(&f->actions);
	node_batch_clear(&f->batch);
	prefill_schedule(f->p, f->now_ns, &f->batch, &f->actions);
	prefill_check(f->p);
}

static void answer(struct fixture *f, bool accepted, uint32_t cached_blocks)
{
	struct node_event event = { .kind = NODE_RESERVE_ANSWER };
	event.answer.ref = ref;
	event.answer.accepted = accepted;
	event.answer.cached_blocks = cached_blocks;
	step(f, &event);
}

static void batch_done(struct fixture *f)
{
	struct node_event event = { .kind = NODE_BATCH_DONE };
	event.batch.batch = &f->batch;
	event.batch.sampled = f->sampled;
	step(f, &event);
}

static void slice(struct fixture *f, uint32_t index, int status)
{
	struct node_event event = { .kind = NODE_SLICE_SENT };
	event.slice.handle = f->handle;
	event.slice.index = index;
	event.slice.status = status;
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
	struct prefill_config config = {
		.incarnation = SELF,
		.model = "m",
		.layer_count = 2,
		.max_model_len = 32,
		.requests_max = 2,
		.chunk_tokens = 8,
		.ahead_tokens = 16,
		.predicted_tokens = 4,
		.eos_ids = { 3 },
		.eos_count = 1,
		.answer_timeout_ns = NS_PER_S,
		.send_timeout_ns = NS_PER_S,
	};
	CHECK(kv_node_init(&f->node, 16, 4) == 0);
	CHECK(prefill_new(&config, &f->node, &f->p) == 0);
	CHECK(node_batch_init(&f->batch, 4, 16) == 0);
	CHECK(node_actions_init(&f->actions, 2, f->batch.sample_max) == 0);
	f->sampled[0] = f->sampled[1] = 9;
	f->handle = node_handle_make(NODE_ROLE_PREFILL, 0, 1);
	if (column == UNKNOWN)
		return;
	dispatch(f);
	if (column == QUEUED)
		return;
	schedule(f);
	if (column == RESERVING)
		return;
	answer(f, true, 0);
	schedule(f);
	batch_done(f); /* the first chunk: slices 0..3 are open */
	if (column == RUNNING)
		return;
	schedule(f); /* the last one: 4 and 5 too */
	if (column == SENDING)
		batch_done(f);
	if (column == ENDING)
		release(f, false, 0);
}

static void happen(struct fixture *f, enum row row)
{
	struct node_event event = { 0 };

	switch (row) {
	case DISPATCHED:
		return dispatch(f);
	case ACCEPTED:
		return answer(f, true, 1);
	case OUT_OF_RANGE:
		return answer(f, true, 4);
	case REFUSED:
		return answer(f, false, 0);
	case SENT:
		return slice(f, 0, 0);
	case SENT_LAST:
		while (f->p->slots[0].slices_open > 1)
			slice(f, f->p->slots[0].slices_open - 1, 0);
		return slice(f, 0, 0);
	case FAILED:
		return slice(f, 0, BATON_ECHECKSUM);
	case FAILED_AGAIN:
		slice(f, 0, BATON_ECHECKSUM);
		return slice(f, 0, -ECONNRESET);
	case REVOKED:
		return slice(f, 0, BATON_EREVOKED);
	case CHUNK_DONE: /* a batch without the rest of the prompt */
		if (f->batch.row_count > 0 && f->batch.rows[0].position == 8)
			f->batch.rows[0].token_count = f->batch.rows[0].sample_count = 1;
		return batch_done(f);
	case PROMPT_DONE_ENDED:
		f->sampled[0] = f->sampled[1] = 3;
		__attribute__((fallthrough));
	case PROMPT_DONE:
		return batch_done(f);
	case RELEASE:
		return release(f, false, 0);
	case RELEASE_CHOICE:
		return release(f, true, 1);
	case RELEASE_LAST_CHOICE:
		release(f, true, 1);
		return release(f, true, 0);
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
	uint64_t stale = f.p->counters.events_stale;
	happen(&f, (enum row)row);
	uint8_t state = f.p->slots[0].state;
	buf_append_text(out, state == PREFILL_FREE ? "over" : prefill__states[state].name);
	if (column == UNKNOWN && state == PREFILL_FREE) {
		buf_clear(out);
		buf_append_text(out, f.p->counters.events_stale > stale ? "stale" : "nothing");
	}
	table_actions(&f.actions, out);
	kv_node_check(&f.node);
	prefill_count_refs(f.p, refs);
	for (uint32_t b = 0; b < 16; b++)
		CHECK(refs[b] == f.node.pool.blocks[b].refs);
	CHECK(state != PREFILL_FREE || kv_node_idle(&f.node));
}

int main(int argc, char **argv)
{
	static_assert(ARRAY_COUNT(columns) == COLUMN_COUNT, "a name for each state");
	static_assert(ARRAY_COUNT(rows) == ROW_COUNT, "a name for each event");
	const struct table table = { columns, COLUMN_COUNT, rows, ROW_COUNT, cell };
	return table_main(&table, TEST_DOCUMENT, argc > 1 ? argv[1] : NULL);
}
