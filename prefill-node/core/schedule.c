/*
 * The next batch of a prefill node. Three questions, in this order:
 *
 *   1. What is already running? Prompts that have been begun go on first, in order.
 *   2. How much of the token budget is left? A prompt gets at most --prefill-chunk tokens of it.
 *   3. Do the KV blocks suffice? A prompt is begun only when all its blocks can be had, so that
 *      no chunk ever waits for memory that another prompt holds.
 *
 * Under `both`, the decode rows stand in the batch already.
 */
#include "prefill-node/core/prefill_core.h"

/* First come, first served. */
static bool served_before(const struct prefill_slot *a, const struct prefill_slot *b)
{
	return a->order < b->order;
}

void prefill__enqueue(struct prefill *p, struct prefill_slot *slot)
{
	struct list *at = p->queue.prev;
	while (at != &p->queue && served_before(slot, list_entry(at, struct prefill_slot, link)))
		at = at->prev;
	list_insert_after(&slot->link, at);
}

/* Which blocks become final with this chunk: the ones it completes, at the end of the prompt the
 * tail too, of those that d lacks. */
static void mark_sends(struct prefill *p, struct prefill_slot *slot, struct node_rows *row)
{
	uint32_t block_tokens = p->node->block_tokens, end = slot->computed + row->token_count;
	if (!prefill__sends(slot))
		return;
	row->send_base = slot->base;
	row->send_first = MAX(slot->base, slot->computed / block_tokens);
	row->send_end = end == slot->request.token_count ? slot->sequence.block_count
							 : end / block_tokens;
	if (row->send_end < row->send_first)
		row->send_end = row->send_first;
	slot->slices_open += prefill__slices(p, row->send_end - row->send_first);
}

static void add_samples(struct prefill_slot *slot, struct node_batch *batch, struct node_rows *row)
{
	const struct node_request *request = &slot->request;
	uint32_t position = request->token_count - request->prompt_count;

	row->sample_first = batch->sample_count;
	row->sample_count = request->choice_count;
	for (uint32_t i = 0; i < request->choice_count; i++) {
		bool early = position < request->sampling.min_tokens;
		batch->samples[batch->sample_count++] = (struct node_sample){
			.choice = request->choices[i],
			.position = position,
			.bans = slot->stops.ids,
			.ban_count = early ? slot->stops.count : 0,
		};
	}
}

/* Gives the next chunk of @slot a place. Return: its tokens, 0 when there is no room. */
static uint32_t add_chunk(struct prefill *p, struct prefill_slot *slot, uint64_t now_ns,
			  struct node_batch *batch)
{
	uint32_t left = slot->request.token_count - slot->computed;
	uint32_t tokens = MIN(MIN(left, p->config.chunk_tokens),
			      batch->token_max - batch->token_count);

	if (!tokens || batch->row_count == batch->row_max)
		return 0;
	/* A last chunk samples one token per choice. */
	if (tokens == left && batch->sample_count + slot->request.choice_count > batch->sample_max)
		return 0;
	struct node_rows *row = &batch->rows[batch->row_count++];
	*row = (struct node_rows){
		.role = NODE_ROLE_PREFILL,
		.handle = prefill__handle(p, slot),
		.blocks = slot->sequence.blocks,
		.position = slot->computed,
		.tokens = slot->tokens + slot->computed,
		.token_count = tokens,
		.sampling = &slot->request.sampling,
	};
	if (tokens == left)
		add_samples(slot, batch, row);
	mark_sends(p, slot, row);
	batch->token_count += tokens;
	slot->in_batch = p->batch_out = true;
	if (!slot->started_ns)
		slot->started_ns = now_ns;
	return tokens;
}

/* Takes the prompt's blocks, the cached prefix first. Return: false when they cannot be had now. */
static bool begin(struct prefill *p, struct prefill_slot *slot)
{
	uint32_t matched = kv_sequence_match(&slot->sequence, p->node, 1);

	if (kv_sequence_cover(&slot->sequence, p->node, KV_USED) < 0) {
		kv_sequence_drop(&slot->sequence, p->node);
		return false;
	}
	slot->computed = slot->cached_tokens = matched * p->node->block_tokens;
	p->counters.prefix_queries += slot->request.token_count;
	p->counters.prefix_hits += slot->cached_tokens;
	list_remove(&slot->link);
	list_push_back(&p->active, &slot->link);
	return true;
}

static void reserve(struct prefill *p, struct prefill_slot *slot, uint64_t now_ns,
		    struct node_actions *actions)
{
	struct node_action *action = node_actions_add(actions, NODE_DO_RESERVE, &slot->request.ref,
						      prefill__handle(p, slot));
	uint32_t output = slot->request.token_count - slot->request.prompt_count;

	action->reserve.request = &slot->request;
	action->reserve.peer = &slot->decode;
	action->reserve.predicted_tokens = MIN(slot->request.sampling.max_tokens - output,
					       p->config.predicted_tokens);
	action->reserve.local = slot->local;
	slot->reserved = true;
	slot->progress_ns = now_ns;
}

void prefill_schedule(struct prefill *p, uint64_t now_ns, struct node_batch *batch,
		      struct node_actions *actions)
{
	uint64_t ahead = 0; /* tokens of begun prompts that this batch leaves over */

	CHECK(!p->batch_out);
	list_for_each(node, &p->active) {
		struct prefill_slot *slot = list_entry(node, struct prefill_slot, link);
		if (slot->state != PREFILL_RUNNING && slot->state != PREFILL_RESERVING)
			continue;
		ahead += slot->request.token_count - slot->computed;
		if (slot->state == PREFILL_RUNNING)
			ahead -= add_chunk(p, slot, now_ns, batch);
	}
	/* The queue's head is begun when the next batch would have room for it: d is asked while
	 * this batch runs, not earlier, so that its room is held for as short as can be. */
	while (!list_empty(&p->queue) && ahead < p->config.ahead_tokens) {
		struct prefill_slot *slot = list_entry(p->queue.next, struct prefill_slot, link);
		if (!begin(p, slot))
			break;
		ahead += slot->request.token_count - slot->computed;
		if (slot->has_decode) {
			sm_move(prefill__states, &slot->state, PREFILL_RESERVING);
			reserve(p, slot, now_ns, actions);
		} else {
			sm_move(prefill__states, &slot->state, PREFILL_RUNNING);
			ahead -= add_chunk(p, slot, now_ns, batch);
		}
	}
}
