/* How requests and seats of the decode core begin and end. */
#include "base/check.h"
#include "decode-node/core/decode_core.h"

const struct sm_state decode__states[] = {
	[DECODE_FREE] = { "free", SM_TO(DECODE_RESERVED) },
	[DECODE_RESERVED] = { "reserved", SM_TO(DECODE_LANDING) | SM_TO(DECODE_RUNNING) |
						  SM_TO(DECODE_ENDING) },
	[DECODE_LANDING] = { "landing", SM_TO(DECODE_RUNNING) | SM_TO(DECODE_ENDING) },
	[DECODE_RUNNING] = { "running", SM_TO(DECODE_ENDING) },
	[DECODE_ENDING] = { "ending", SM_TO(DECODE_FREE) },
};

const struct sm_state decode__seat_states[] = {
	[SEAT_FREE] = { "free", SM_TO(SEAT_WAITING) },
	[SEAT_WAITING] = { "waiting", SM_TO(SEAT_RUNNING) | SM_TO(SEAT_FREE) },
	[SEAT_RUNNING] = { "running", SM_TO(SEAT_ENDING) | SM_TO(SEAT_FREE) },
	[SEAT_ENDING] = { "ending", SM_TO(SEAT_FREE) },
};

struct decode_request *decode__find(const struct decode *d, const struct node_ref *ref)
{
	list_for_each(node, &d->requests_used) {
		struct decode_request *request = list_entry(node, struct decode_request, link);
		if (node_ref_equal(&request->ref, ref))
			return request;
	}
	return NULL;
}

struct decode_request *decode__by_handle(const struct decode *d, node_handle handle)
{
	uint32_t index = node_handle_index(handle);
	if (index >= d->config.sequences_max ||
	    decode__handle(d, &d->requests[index]).v != handle.v)
		return NULL;
	return d->requests[index].state == DECODE_FREE ? NULL : &d->requests[index];
}

static void open_seat(struct decode *d, struct decode_request *request, uint32_t choice)
{
	struct decode_seat *seat = list_entry(d->seats_free.next, struct decode_seat, link);
	list_remove(&seat->link);
	d->seats_free_count--;
	sm_move(decode__seat_states, &seat->state, SEAT_WAITING);
	list_push_back(&request->seats, &seat->link);
	seat->request = request;
	seat->choice = choice;
	seat->first_known = seat->in_batch = false;
}

struct decode_request *decode__open(struct decode *d, const struct node_event *event)
{
	const struct node_request *from = &event->reserve.request;
	struct decode_request *request = list_entry(d->requests_free.next, struct decode_request,
						    link);

	CHECK(d->seats_free_count >= from->choice_count);
	list_remove(&request->link);
	list_push_back(&d->requests_used, &request->link);
	sm_move(decode__states, &request->state, DECODE_RESERVED);
	request->ref = from->ref;
	request->sampling = from->sampling;
	node_stops_make(&request->stops, &from->sampling, d->config.eos_ids, d->config.eos_count);
	request->priority = from->priority;
	request->order = d->arrivals++;
	request->source = event->reserve.source;
	request->local = event->reserve.local;
	request->prompt_tokens = from->token_count;
	request->output_base = from->token_count - from->prompt_count;
	request->promised_blocks = 0;
	request->reserved_tokens = from->token_count +
				   (uint64_t)event->reserve.predicted_tokens * from->choice_count;
	request->expecting = request->landed = request->first_known = request->reported = false;
	request->progress_ns = event->now_ns;
	request->first_ns = request->landed_bytes = request->exposed_ns = 0;
	for (uint32_t i = 0; i < from->choice_count; i++)
		open_seat(d, request, from->choices[i]);
	return request;
}

static void free_seat(struct decode *d, struct decode_seat *seat)
{
	CHECK(!seat->in_batch);
	kv_sequence_drop(&seat->sequence, d->node);
	sm_move(decode__seat_states, &seat->state, SEAT_FREE);
	seat->generation++;
	list_remove(&seat->link);
	list_push_back(&d->seats_free, &seat->link);
	d->seats_free_count++;
}

/* While a batch is out its sequences stay, and so do all others: one of them may be what a block
 * of the batch is copied from. */
static void seat_stop(struct decode *d, struct decode_seat *seat)
{
	if (seat->state == SEAT_RUNNING) {
		list_remove(&seat->running);
		d->running_count--;
		if (d->batch_out) {
			sm_move(decode__seat_states, &seat->state, SEAT_ENDING);
			return;
		}
	}
	if (seat->state != SEAT_ENDING)
		free_seat(d, seat);
}

void decode__settle(struct decode *d, struct decode_request *request, struct node_actions *actions)
{
	list_for_each_safe(node, after, &request->seats) {
		struct decode_seat *seat = list_entry(node, struct decode_seat, link);
		if (seat->state == SEAT_ENDING && !d->batch_out)
			free_seat(d, seat);
	}
	if (request->state != DECODE_ENDING || request->expecting || !list_empty(&request->seats))
		return;
	node_actions_add(actions, NODE_DO_FORGET, &request->ref, decode__handle(d, request));
	sm_move(decode__states, &request->state, DECODE_FREE);
	request->generation++;
	list_remove(&request->link);
	list_push_back(&d->requests_free, &request->link);
}

void decode__end(struct decode *d, struct decode_request *request, struct node_actions *actions)
{
	d->promised_blocks -= request->promised_blocks;
	request->promised_blocks = 0;
	sm_move(decode__states, &request->state, DECODE_ENDING);
	if (request->expecting) {
		/* Late writes may still come: the memory is nobody's until the transfer says no. */
		kv_sequence_quarantine(&request->landing, d->node);
		node_actions_add(actions, NODE_DO_REVOKE, &request->ref,
				 decode__handle(d, request));
	} else {
		kv_sequence_drop(&request->landing, d->node);
	}
	list_for_each_safe(node, after, &request->seats)
		seat_stop(d, list_entry(node, struct decode_seat, link));
	decode__settle(d, request, actions);
}

static bool has_living_seat(const struct decode_request *request)
{
	list_for_each(node, &request->seats) {
		if (list_entry(node, struct decode_seat, link)->state != SEAT_ENDING)
			return true;
	}
	return false;
}

void decode__seat_end(struct decode *d, struct decode_seat *seat, struct node_actions *actions)
{
	struct decode_request *request = seat->request;
	seat_stop(d, seat);
	if (!has_living_seat(request))
		decode__end(d, request, actions);
}

void decode__return(struct decode *d, struct decode_request *request, enum returned_reason reason,
		    struct node_actions *actions)
{
	struct node_action *action = node_actions_add(actions, NODE_DO_RETURNED, &request->ref,
						      decode__handle(d, request));
	action->returned.reason = reason;
	action->returned.detail = node_returned_text(reason);
	decode__end(d, request, actions);
}

void decode__seat_return(struct decode *d, struct decode_seat *seat, enum returned_reason reason,
			 struct node_actions *actions)
{
	struct decode_request *request = seat->request;
	struct node_action *action = node_actions_add(actions, NODE_DO_RETURNED, &request->ref,
						      decode__handle(d, request));
	action->returned.one_choice = true;
	action->returned.choice = seat->choice;
	action->returned.reason = reason;
	action->returned.detail = node_returned_text(reason);
	decode__seat_end(d, seat, actions);
}
