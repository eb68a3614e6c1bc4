#include "prefill-node/core/prefill.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "prefill-node/core/prefill_core.h"

const struct sm_state prefill__states[] = {
	[PREFILL_FREE] = { "free", SM_TO(PREFILL_QUEUED) },
	[PREFILL_QUEUED] = { "queued", SM_TO(PREFILL_RESERVING) | SM_TO(PREFILL_RUNNING) |
					       SM_TO(PREFILL_FREE) },
	[PREFILL_RESERVING] = { "reserving", SM_TO(PREFILL_RUNNING) | SM_TO(PREFILL_FREE) },
	[PREFILL_RUNNING] = { "running", SM_TO(PREFILL_SENDING) | SM_TO(PREFILL_ENDING) |
						 SM_TO(PREFILL_FREE) },
	[PREFILL_SENDING] = { "sending", SM_TO(PREFILL_ENDING) | SM_TO(PREFILL_FREE) },
	[PREFILL_ENDING] = { "ending", SM_TO(PREFILL_FREE) },
};

/* ---- life and end of a slot ---- */

/* After a hand-over the sequence still has its blocks here, until the actions are done. */
static void slot_leave(struct prefill *p, struct prefill_slot *slot, struct node_actions *actions)
{
	CHECK(!slot->in_batch);
	CHECK(slot->slices_open == 0);
	if (slot->state != PREFILL_QUEUED) /* the shell has heard of it */
		node_actions_add(actions, NODE_DO_FORGET, &slot->request.ref,
				 prefill__handle(p, slot));
	sm_move(prefill__states, &slot->state, PREFILL_FREE);
	slot->generation++;
	list_remove(&slot->link);
	list_push_back(&p->free, &slot->link);
}

static void slot_free(struct prefill *p, struct prefill_slot *slot, struct node_actions *actions)
{
	kv_sequence_drop(&slot->sequence, p->node);
	slot_leave(p, slot, actions);
}

/* Over for everyone else. The blocks stay until neither the batch nor a slice uses them. */
static void slot_end(struct prefill *p, struct prefill_slot *slot, struct node_actions *actions)
{
	if (slot->reserved) {
		struct node_action *action = node_actions_add(actions, NODE_DO_RELEASE_PEER,
							      &slot->request.ref,
							      prefill__handle(p, slot));
		action->release.peer = &slot->decode;
		action->release.local = slot->local;
	}
	if (slot->slices_open > 0)
		node_actions_add(actions, NODE_DO_CANCEL_SEND, &slot->request.ref,
				 prefill__handle(p, slot));
	if (slot->slices_open > 0 || slot->in_batch)
		sm_move(prefill__states, &slot->state, PREFILL_ENDING);
	else
		slot_free(p, slot, actions);
}

static void slot_return_saying(struct prefill *p, struct prefill_slot *slot,
			       enum returned_reason reason, const char *detail,
			       struct node_actions *actions)
{
	struct node_action *action = node_actions_add(actions, NODE_DO_RETURNED, &slot->request.ref,
						      prefill__handle(p, slot));
	action->returned.reason = reason;
	action->returned.detail = detail;
	slot_end(p, slot, actions);
}

static void slot_return(struct prefill *p, struct prefill_slot *slot, enum returned_reason reason,
			struct node_actions *actions)
{
	slot_return_saying(p, slot, reason, node_returned_text(reason), actions);
}

static bool slot_lives(const struct prefill_slot *slot)
{
	return slot->state != PREFILL_FREE && slot->state != PREFILL_ENDING;
}

static struct prefill_slot *slot_in(const struct list *slots, const struct node_ref *ref)
{
	list_for_each(node, slots) {
		struct prefill_slot *slot = list_entry(node, struct prefill_slot, link);
		if (node_ref_equal(&slot->request.ref, ref))
			return slot;
	}
	return NULL;
}

static struct prefill_slot *slot_by_ref(const struct prefill *p, const struct node_ref *ref)
{
	struct prefill_slot *slot = slot_in(&p->active, ref);
	return slot ? slot : slot_in(&p->queue, ref);
}

static struct prefill_slot *slot_by_handle(const struct prefill *p, node_handle handle)
{
	uint32_t index = node_handle_index(handle);
	if (index >= p->config.requests_max || prefill__handle(p, &p->slots[index]).v != handle.v)
		return NULL;
	return p->slots[index].state == PREFILL_FREE ? NULL : &p->slots[index];
}

/* ---- a dispatch arrives ---- */

static void refuse(const struct node_event *event, enum returned_reason reason, const char *detail,
		   struct node_actions *actions)
{
	struct node_action *action = node_actions_add(
		actions, NODE_DO_RETURNED, &event->prefill.request.ref, (node_handle){ 0 });
	action->returned.reason = reason;
	action->returned.detail = detail;
}

static void slot_fill(struct prefill *p, struct prefill_slot *slot, const struct node_event *event)
{
	const struct node_request *request = &event->prefill.request;

	slot->request = *request;
	memcpy(slot->tokens, request->tokens, request->token_count * sizeof *slot->tokens);
	slot->request.tokens = slot->tokens;
	node_stops_make(&slot->stops, &request->sampling, p->config.eos_ids, p->config.eos_count);
	slot->decode = event->prefill.decode;
	slot->has_decode = event->prefill.has_decode;
	slot->local = slot->has_decode && slot->decode.incarnation == p->config.incarnation;
	slot->reserved = slot->in_batch = false;
	slot->cached_tokens = slot->computed = 0;
	slot->base = slot->slices_total = slot->slices_open = slot->slices_done =
		slot->slices_hidden = 0;
	slot->order = p->arrivals++;
	slot->arrived_ns = event->now_ns;
	slot->started_ns = slot->progress_ns = 0;
	kv_sequence_start(&slot->sequence, &request->root_key, slot->tokens, request->token_count);
}

static void on_prefill(struct prefill *p, const struct node_event *event,
		       struct node_actions *actions)
{
	const struct node_request *request = &event->prefill.request;

	CHECK(request->token_count > 0 && request->token_count >= request->prompt_count);
	CHECK(request->choice_count > 0 && request->choice_count <= NODE_CHOICES_MAX);
	CHECK(request->sampling.max_tokens > request->token_count - request->prompt_count);
	if (slot_by_ref(p, &request->ref)) {
		p->counters.events_stale++; /* a repeated dispatch changes nothing */
		return;
	}
	if (p->draining)
		return refuse(event, RETURNED_DRAIN, "the node is draining", actions);
	if (strcmp(request->model, p->config.model) != 0)
		return refuse(event, RETURNED_MODEL, "another model is served here", actions);
	if (request->token_count >= p->config.max_model_len ||
	    kv_blocks_for(request->token_count, p->node->block_tokens) > p->node->pool.block_count)
		return refuse(event, RETURNED_NO_ROOM, "longer than this node can hold", actions);
	if (list_empty(&p->free))
		return refuse(event, RETURNED_NO_ROOM, "the queue is full", actions);

	struct prefill_slot *slot = list_entry(p->free.next, struct prefill_slot, link);
	list_remove(&slot->link);
	slot_fill(p, slot, event);
	sm_move(prefill__states, &slot->state, PREFILL_QUEUED);
	prefill__enqueue(p, slot);
}

/* ---- d answers ---- */

static void on_answer(struct prefill *p, const struct node_event *event,
		      struct node_actions *actions)
{
	struct prefill_slot *slot = slot_by_ref(p, &event->answer.ref);

	if (!slot || slot->state != PREFILL_RESERVING) {
		p->counters.events_stale++; /* Release is on its way to d */
		return;
	}
	if (!event->answer.accepted) {
		const char *why = event->answer.reason;
		slot->reserved = false;
		return slot_return_saying(p, slot, RETURNED_REFUSED,
					  why && why[0] ? why :
							  node_returned_text(RETURNED_REFUSED),
					  actions);
	}
	if (!slot->local) {
		if (event->answer.cached_blocks > slot->sequence.block_count)
			return slot_return(p, slot, RETURNED_TRANSFER, actions);
		slot->base = event->answer.cached_blocks;
		slot->slices_total = prefill__slices(p, slot->sequence.block_count - slot->base);
		memset(slot->resent, 0, (slot->slices_total + 7) / 8);
	}
	sm_move(prefill__states, &slot->state, PREFILL_RUNNING);
	slot->progress_ns = event->now_ns;
	/* What was cached here and is not there leaves now. */
	uint32_t cached = slot->cached_tokens / p->node->block_tokens;
	if (slot->local || cached <= slot->base)
		return;
	struct node_action *action = node_actions_add(actions, NODE_DO_SEND, &slot->request.ref,
						      prefill__handle(p, slot));
	action->send.blocks = slot->sequence.blocks;
	action->send.first = action->send.base = slot->base;
	action->send.end = cached;
	slot->slices_open += prefill__slices(p, cached - slot->base);
}

/* ---- slices ---- */

static void sent_all(struct prefill *p, struct prefill_slot *slot, struct node_actions *actions)
{
	if (slot->slices_total > 0) {
		struct node_action *action = node_actions_add(
			actions, NODE_DO_TOKENS, &slot->request.ref, prefill__handle(p, slot));
		action->tokens.has_hidden = true;
		action->tokens.hidden_permille =
			(uint32_t)((uint64_t)slot->slices_hidden * 1000 / slot->slices_total);
	}
	slot_free(p, slot, actions);
}

static void slice_failed(struct prefill *p, struct prefill_slot *slot,
			 const struct node_event *event, struct node_actions *actions)
{
	uint32_t index = event->slice.index;
	uint8_t bit = (uint8_t)(1u << (index % 8));

	/* Revoked: d does not want it any more. Anything else may be the wire's fault, once. */
	if (event->slice.status == BATON_EREVOKED || (slot->resent[index / 8] & bit))
		return slot_return(p, slot, RETURNED_TRANSFER, actions);
	slot->resent[index / 8] |= bit;
	slot->slices_open++;
	p->counters.slices_resent++;
	struct node_action *action = node_actions_add(actions, NODE_DO_RESEND, &slot->request.ref,
						      prefill__handle(p, slot));
	action->resend.blocks = slot->sequence.blocks;
	action->resend.base = slot->base;
	action->resend.index = index;
}

static void on_slice_sent(struct prefill *p, const struct node_event *event,
			  struct node_actions *actions)
{
	struct prefill_slot *slot = slot_by_handle(p, event->slice.handle);

	if (!slot) {
		p->counters.events_stale++;
		return;
	}
	CHECK(slot->slices_open > 0); /* R3 */
	slot->slices_open--;
	if (slot->state == PREFILL_ENDING) {
		if (!slot->slices_open && !slot->in_batch)
			slot_free(p, slot, actions);
		return;
	}
	CHECK(event->slice.index < slot->slices_total);
	if (event->slice.status < 0)
		return slice_failed(p, slot, event, actions);
	slot->slices_done++;
	slot->progress_ns = event->now_ns;
	if (slot->state == PREFILL_SENDING && slot->slices_done == slot->slices_total)
		sent_all(p, slot, actions);
}

/* ---- a batch is done ---- */

static bool choice_wanted(const struct prefill_slot *slot, uint32_t choice)
{
	for (uint32_t i = 0; i < slot->request.choice_count; i++) {
		if (slot->request.choices[i] == choice)
			return true;
	}
	return false;
}

/* Reads the row's samples into Tokens for the conductor and, returned, first tokens for d. */
static uint32_t report_tokens(struct prefill *p, struct prefill_slot *slot,
			      const struct node_event *event, const struct node_rows *row,
			      struct node_actions *actions, struct node_first_token **ret_firsts,
			      uint32_t *ret_first_count)
{
	const struct node_request *request = &slot->request;
	struct node_token *tokens = &actions->tokens[actions->token_count];
	struct node_first_token *firsts = &actions->firsts[actions->first_count];
	uint32_t count = 0, going_on = 0;

	CHECK(actions->token_count + row->sample_count <= actions->token_capacity);
	CHECK(actions->first_count + row->sample_count <= actions->first_capacity);
	for (uint32_t i = 0; i < row->sample_count; i++) {
		uint32_t at = row->sample_first + i, token = event->batch.sampled[at];
		const struct node_sample *sample = &event->batch.batch->samples[at];
		if (!choice_wanted(slot, sample->choice))
			continue; /* released meanwhile */
		enum node_finish finish =
			node_token_finish(&slot->stops, &request->sampling, token, sample->position,
					  p->config.max_model_len - request->token_count - 1);
		tokens[count] = (struct node_token){ sample->choice, sample->position, token, at,
						     finish };
		firsts[count] = (struct node_first_token){ sample->choice, token,
							   finish != NODE_FINISH_NONE };
		going_on += finish == NODE_FINISH_NONE;
		count++;
	}
	actions->token_count += count;
	actions->first_count += count;

	struct node_action *action = node_actions_add(actions, NODE_DO_TOKENS, &request->ref,
						      prefill__handle(p, slot));
	action->tokens.v = tokens;
	action->tokens.count = count;
	action->tokens.want_logprobs = request->sampling.want_logprobs;
	action->tokens.has_prefill = true;
	action->tokens.cached_tokens = slot->cached_tokens;
	action->tokens.prefill_ns = event->now_ns - slot->started_ns;
	action->tokens.queue_ns = slot->started_ns - slot->arrived_ns;
	*ret_firsts = firsts;
	*ret_first_count = count;
	return going_on;
}

/* The prompt is computed: the node never decodes past the first token of each choice. */
static void prompt_done(struct prefill *p, struct prefill_slot *slot,
			const struct node_event *event, const struct node_rows *row,
			struct node_actions *actions)
{
	struct node_first_token *firsts;
	uint32_t first_count;
	uint32_t going_on = report_tokens(p, slot, event, row, actions, &firsts, &first_count);

	if (!going_on || !slot->has_decode)
		return slot_end(p, slot, actions);
	if (slot->local) {
		struct node_action *action = node_actions_add(
			actions, NODE_DO_HAND_OVER, &slot->request.ref, prefill__handle(p, slot));
		action->adopt.sequence = &slot->sequence;
		action->adopt.tokens = firsts;
		action->adopt.token_count = first_count;
		return slot_leave(p, slot, actions);
	}
	struct node_action *action = node_actions_add(actions, NODE_DO_FIRST_TOKENS,
						      &slot->request.ref, prefill__handle(p, slot));
	action->first.peer = &slot->decode;
	action->first.tokens = firsts;
	action->first.token_count = first_count;
	sm_move(prefill__states, &slot->state, PREFILL_SENDING);
	slot->slices_hidden = slot->slices_done;
	slot->progress_ns = event->now_ns;
	if (slot->slices_done == slot->slices_total)
		sent_all(p, slot, actions);
}

static void on_batch_done(struct prefill *p, const struct node_event *event,
			  struct node_actions *actions)
{
	const struct node_batch *batch = event->batch.batch;

	p->batch_out = false;
	for (uint32_t i = 0; i < batch->row_count; i++) {
		const struct node_rows *row = &batch->rows[i];
		if (row->role != NODE_ROLE_PREFILL)
			continue;
		struct prefill_slot *slot = slot_by_handle(p, row->handle);
		CHECK(slot && slot->in_batch);
		slot->in_batch = false;
		slot->computed += row->token_count;
		p->counters.prefill_tokens += row->token_count;
		kv_sequence_commit(&slot->sequence, p->node, slot->computed);
		if (slot->state == PREFILL_ENDING) {
			if (!slot->slices_open)
				slot_free(p, slot, actions);
		} else if (slot->computed == slot->request.token_count) {
			prompt_done(p, slot, event, row, actions);
		}
	}
}

/* ---- ends from outside ---- */

static void on_release(struct prefill *p, const struct node_event *event,
		       struct node_actions *actions)
{
	struct prefill_slot *slot = slot_by_ref(p, &event->release.ref);

	if (!slot || !slot_lives(slot)) {
		p->counters.events_stale++;
		return;
	}
	if (event->release.one_choice) {
		struct node_request *request = &slot->request;
		uint32_t kept = 0;
		for (uint32_t i = 0; i < request->choice_count; i++) {
			if (request->choices[i] != event->release.choice)
				request->choices[kept++] = request->choices[i];
		}
		request->choice_count = kept;
		if (kept > 0)
			return;
	}
	slot_end(p, slot, actions);
}

/* Calls @end for every living slot; it may free the slot. */
static void for_each_living(struct prefill *p, const struct node_event *event,
			    struct node_actions *actions,
			    void (*end)(struct prefill *, struct prefill_slot *,
					const struct node_event *, struct node_actions *))
{
	for (uint32_t i = 0; i < p->config.requests_max; i++) {
		if (slot_lives(&p->slots[i]))
			end(p, &p->slots[i], event, actions);
	}
}

static void end_with_peer(struct prefill *p, struct prefill_slot *slot,
			  const struct node_event *event, struct node_actions *actions)
{
	if (!slot->has_decode || slot->local || slot->decode.incarnation != event->lost.incarnation)
		return;
	slot->reserved = false; /* nobody is left to be told */
	slot_return(p, slot, RETURNED_PEER_LOST, actions);
}

static void end_with_conductor(struct prefill *p, struct prefill_slot *slot,
			       const struct node_event *event, struct node_actions *actions)
{
	if (slot->request.ref.conductor == event->lost.incarnation)
		slot_end(p, slot, actions);
}

/* What has not been begun goes at once, the rest may use the grace; what is only sending has
 * done its part here and is left to finish. */
static void end_drained(struct prefill *p, struct prefill_slot *slot,
			const struct node_event *event, struct node_actions *actions)
{
	bool late = event->now_ns >= p->drain_until_ns;
	if (slot->state == PREFILL_QUEUED || (late && slot->state != PREFILL_SENDING))
		slot_return(p, slot, RETURNED_DRAIN, actions);
}

static void end_late(struct prefill *p, struct prefill_slot *slot, const struct node_event *event,
		     struct node_actions *actions)
{
	uint64_t waited = event->now_ns - slot->progress_ns;
	if ((slot->state == PREFILL_RESERVING && waited >= p->config.answer_timeout_ns) ||
	    (slot->state == PREFILL_SENDING && waited >= p->config.send_timeout_ns))
		slot_return(p, slot, RETURNED_TIMEOUT, actions);
}

/* ---- the interface ---- */

void prefill_step(struct prefill *p, const struct node_event *event, struct node_actions *actions)
{
	switch (event->kind) {
	case NODE_PREFILL:
		return on_prefill(p, event, actions);
	case NODE_RESERVE_ANSWER:
		return on_answer(p, event, actions);
	case NODE_SLICE_SENT:
		return on_slice_sent(p, event, actions);
	case NODE_BATCH_DONE:
		return on_batch_done(p, event, actions);
	case NODE_RELEASE:
		return on_release(p, event, actions);
	case NODE_PEER_LOST:
		return for_each_living(p, event, actions, end_with_peer);
	case NODE_CONDUCTOR_LOST:
		return for_each_living(p, event, actions, end_with_conductor);
	case NODE_DRAIN:
		p->draining = true;
		p->drain_until_ns = event->now_ns + event->drain.grace_ns;
		return for_each_living(p, event, actions, end_drained);
	case NODE_UNDRAIN:
		p->draining = false;
		return;
	case NODE_TICK:
		for_each_living(p, event, actions, end_late);
		if (p->draining)
			for_each_living(p, event, actions, end_drained);
		return;
	case NODE_RESERVE:
	case NODE_EXPECT_FAILED:
	case NODE_SLICE_LANDED:
	case NODE_LANDED_ALL:
	case NODE_REVOKED:
	case NODE_FIRST_TOKENS:
	case NODE_ADOPT:
	case NODE_EVENT_KIND_COUNT:
		break;
	}
	CHECK(!"an event of the prefill role");
}

static int slot_init(struct prefill *p, struct prefill_slot *slot)
{
	uint32_t slices = prefill__slices(p, p->blocks_max);

	slot->generation = 1;
	slot->tokens = calloc(p->config.max_model_len, sizeof *slot->tokens);
	slot->resent = calloc((slices + 7) / 8, 1);
	list_push_back(&p->free, &slot->link);
	int r = kv_sequence_init(&slot->sequence, p->blocks_max, p->node->block_tokens);
	return r < 0 || !slot->tokens || !slot->resent ? -ENOMEM : 0;
}

int prefill_new(const struct prefill_config *config, struct kv_node *node,
		struct prefill **ret_prefill)
{
	if (!config->model || !config->requests_max || !config->chunk_tokens ||
	    !config->ahead_tokens || !config->max_model_len || !config->layer_count ||
	    config->eos_count > NODE_EOS_MAX)
		return -EINVAL;
	struct prefill *p = calloc(1, sizeof *p);
	if (!p)
		return -ENOMEM;
	p->config = *config;
	p->node = node;
	p->blocks_max = kv_blocks_for(config->max_model_len, node->block_tokens);
	list_init(&p->free);
	list_init(&p->queue);
	list_init(&p->active);
	p->slots = calloc(config->requests_max, sizeof *p->slots);
	int r = p->slots ? 0 : -ENOMEM;
	for (uint32_t i = 0; r == 0 && i < config->requests_max; i++)
		r = slot_init(p, &p->slots[i]);
	if (r < 0) {
		prefill_free(p);
		return r;
	}
	*ret_prefill = p;
	return 0;
}

void prefill_free(struct prefill *p)
{
	if (!p)
		return;
	for (uint32_t i = 0; p->slots && i < p->config.requests_max; i++) {
		free(p->slots[i].tokens);
		free(p->slots[i].resent);
		kv_sequence_fini(&p->slots[i].sequence);
	}
	free(p->slots);
	free(p);
}

void prefill_renew(struct prefill *p, uint64_t incarnation)
{
	p->config.incarnation = incarnation;
}
