/*
 * The next batch of a decode node. Three questions, in this order:
 *
 *   1. What is already running? Every running sequence gets one token, the highest priority and
 *      among equals the oldest first.
 *   2. How much of the token budget is left? One token a sequence; who does not fit waits a turn.
 *   3. Do the KV blocks suffice? Where not, the last in order is preempted until they do: the
 *      youngest of the lowest priority. Cached blocks are no obstacle, taking one evicts.
 *
 * Under `both` this runs before the prefill role's, so growth comes before new prompts.
 */
#include "decode-node/core/decode_core.h"

static bool served_before(const struct decode_seat *a, const struct decode_seat *b)
{
	if (a->request->priority != b->request->priority)
		return a->request->priority < b->request->priority;
	if (a->request->order != b->request->order)
		return a->request->order < b->request->order;
	return a->choice < b->choice;
}

void decode__enter(struct decode *d, struct decode_seat *seat)
{
	struct list *at = d->running.prev;
	while (at != &d->running &&
	       served_before(seat, list_entry(at, struct decode_seat, running)))
		at = at->prev;
	list_insert_after(&seat->running, at);
	d->running_count++;
}

static uint32_t rows_possible(const struct decode *d, const struct node_batch *batch)
{
	uint32_t rows = MIN(batch->row_max - batch->row_count,
			    batch->token_max - batch->token_count);
	return MIN(MIN(rows, batch->sample_max - batch->sample_count), d->running_count);
}

/* Blocks that the first @rows sequences need for their next token. Sharers of a tail are all
 * counted though the last of them will find it its own: at most one block too many. */
static uint32_t blocks_needed(const struct decode *d, uint32_t rows)
{
	uint32_t needed = 0;
	list_for_each(node, &d->running) {
		if (rows-- == 0)
			break;
		needed += kv_sequence_grow_takes(
			&list_entry(node, struct decode_seat, running)->sequence, d->node);
	}
	return needed;
}

static void add_row(struct decode *d, struct decode_seat *seat, struct node_batch *batch)
{
	struct decode_request *request = seat->request;
	uint32_t position = seat->sequence.token_count;
	bool early = seat->position < request->sampling.min_tokens;

	int copies = kv_sequence_grow(&seat->sequence, d->node, &batch->copies[batch->copy_count]);
	CHECK(copies >= 0);
	batch->copy_count += (uint32_t)copies;
	kv_sequence_append(&seat->sequence, seat->token);
	batch->rows[batch->row_count++] = (struct node_rows){
		.role = NODE_ROLE_DECODE,
		.handle = decode__seat_handle(d, seat),
		.blocks = seat->sequence.blocks,
		.position = position,
		.tokens = &seat->token,
		.token_count = 1,
		.sampling = &request->sampling,
		.sample_first = batch->sample_count,
		.sample_count = 1,
	};
	batch->samples[batch->sample_count++] = (struct node_sample){
		.choice = seat->choice,
		.position = seat->position,
		.bans = request->stops.ids,
		.ban_count = early ? request->stops.count : 0,
	};
	batch->token_count++;
	seat->in_batch = d->batch_out = true;
}

void decode_schedule(struct decode *d, uint64_t now_ns, struct node_batch *batch,
		     struct node_actions *actions)
{
	CHECK(!d->batch_out);
	while (blocks_needed(d, rows_possible(d, batch)) > kv_node_available(d->node)) {
		struct decode_seat *last = list_entry(d->running.prev, struct decode_seat, running);
		d->counters.preemptions++;
		decode__seat_return(d, last, RETURNED_PREEMPTED, actions);
	}
	/* Nobody is preempted from here on, so a block that is copied from stays until it was. */
	uint32_t rows = rows_possible(d, batch);
	list_for_each(node, &d->running) {
		if (rows-- == 0)
			break;
		add_row(d, list_entry(node, struct decode_seat, running), batch);
	}
}
