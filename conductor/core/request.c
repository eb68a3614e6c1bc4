/* The life of a request and of its choices. */
#include "conductor/core/private.h"

#include <stdarg.h>
#include <stdio.h>

static void facts_init(struct request_facts *facts, uint64_t id,
		       const struct conductor_submit *submit)
{
	*facts = (struct request_facts){
		.id = id,
		.model = submit->model,
		.prompt_count = submit->prompt_count,
		.choice_count = submit->choice_count,
		.max_tokens = submit->max_tokens,
		.priority = submit->priority,
		.arrival_ns = submit->arrival_ns,
		.deadline_ns = submit->deadline_ns,
		.state = "waiting",
	};
	snprintf(facts->name, sizeof facts->name, "%s", submit->name);
}

int conductor__submitted(struct conductor *core, const struct conductor_event *event)
{
	const struct conductor_submit *submit = event->submit;
	uint32_t slot = core->request_free;

	if (!submit->choice_count || submit->choice_count > CONDUCTOR_CHOICES_MAX ||
	    !submit->max_tokens || !submit->prompt_count ||
	    submit->model >= core->config.model_count)
		return -EINVAL;
	if (slot == SLOT_NONE)
		return -ENOSPC;
	if (map_put(&core->request_by_id, event->request, slot) < 0)
		return -EEXIST;
	struct request *request = &core->requests[slot];
	core->request_free = request->next_free;
	request->state = REQUEST_OPEN;
	facts_init(&request->facts, event->request, submit);
	request->waiting_count = request->group_max = submit->choice_count;
	request->placed_count = 0;
	request->retry_ns = request->no_node_since_ns = 0;
	request->wait_noted = false;
	memset(request->refused_prefill, 0, sizeof request->refused_prefill);
	memset(request->refused_decode, 0, sizeof request->refused_decode);
	memset(request_choices(core, request), 0, submit->choice_count * sizeof(struct choice));
	core->traces[slot].bytes = core->traces[slot].dropped = 0;
	list_push_back(&core->open, &request->open);
	list_push_back(&core->urgent, &request->queue);
	core->counters.submitted++;
	core->counters.requests_open++;
	conductor__trace(core, request, "arrived: %u prompt tokens, up to %u of output, %u choice%s",
			 submit->prompt_count, submit->max_tokens, submit->choice_count,
			 submit->choice_count == 1 ? "" : "s");
	return 0;
}

static void choices_all_done(struct conductor *core, struct request *request)
{
	struct choice *all = request_choices(core, request);

	for (uint32_t i = 0; i < request->facts.choice_count; i++)
		if (all[i].state != CHOICE_DONE)
			conductor__choice_leave(core, request, i, CHOICE_DONE);
}

static void request_end(struct conductor *core, struct request *request, const char *state)
{
	CHECK(!request->waiting_count && !request->placed_count);
	CHECK(list_empty(&request->dispatches));
	request->facts.state = state;
	request->facts.end_ns = core->now_ns;
	conductor__trace(core, request, "%s: %u tokens", state, request->facts.tokens);
	conductor__trace_ended(core, request);
	conductor__act(core, ACTION_END)->request = request->facts.id;
	(void)map_remove(&core->request_by_id, request->facts.id);
	list_remove(&request->open);
	list_remove(&request->queue);
	request->state = REQUEST_FREE;
	request->next_free = core->request_free;
	core->request_free = request_slot(core, request);
	core->counters.requests_open--;
}

void conductor__fail(struct conductor *core, struct request *request, int status,
		     const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(request->error_text, sizeof request->error_text, format, args);
	va_end(args);
	choices_all_done(core, request);
	conductor__trace(core, request, "error %d: %s", status, request->error_text);
	struct conductor_action *action = conductor__act(core, ACTION_FAIL);
	action->request = request->facts.id;
	action->status = status;
	action->text = request->error_text;
	core->counters.failed++;
	request_end(core, request, "failed");
}

int conductor__cancelled(struct conductor *core, const struct conductor_event *event)
{
	struct request *request = conductor__request(core, event->request);

	if (!request)
		return -ESTALE;
	choices_all_done(core, request);
	core->counters.cancelled++;
	request_end(core, request, "cancelled");
	return 0;
}

static void choice_done(struct conductor *core, struct request *request, uint32_t index)
{
	conductor__choice_leave(core, request, index, CHOICE_DONE);
	if (request->waiting_count || request->placed_count)
		return;
	core->counters.finished++;
	request_end(core, request, "finished");
}

int conductor__stopped(struct conductor *core, const struct conductor_event *event)
{
	struct request *request = conductor__request(core, event->request);

	if (!request || event->choice >= request->facts.choice_count)
		return -ESTALE;
	struct choice *choice = &request_choices(core, request)[event->choice];
	if (choice->state == CHOICE_DONE)
		return -ESTALE;
	conductor__trace(core, request, "choice %u: the client side matched a stop string",
			 event->choice);
	if (choice->state == CHOICE_PLACED) {
		struct dispatch *dispatch = &core->dispatches[choice->dispatch];
		if (dispatch->choice_count > 1)
			conductor__release_both(core, dispatch, event->choice);
	}
	choice_done(core, request, event->choice);
	return 0;
}

/* The dispatch that the event's sender has a part in; NULL when the frame is to be refused. */
static struct dispatch *dispatch_of(struct conductor *core, const struct conductor_event *event,
				    struct request **ret_request)
{
	if (!conductor__member(core, event->node) ||
	    event->ref.conductor != core->config.incarnation)
		return NULL;
	struct request *request = conductor__request(core, event->ref.request);
	if (!request)
		return NULL;
	struct dispatch *dispatch = conductor__dispatch_find(core, request, event->ref.epoch);
	if (!dispatch || (!node_id_equal(dispatch->prefill, event->node) &&
			  !node_id_equal(dispatch->decode, event->node)))
		return NULL;
	*ret_request = request;
	return dispatch;
}

/* C2: what may come next of this choice, from whom. */
static bool tokens_in_order(const struct dispatch *dispatch, const struct choice *choice,
			    const struct conductor_event *event, uint32_t max_tokens)
{
	bool from_prefill = node_id_equal(dispatch->prefill, event->node);
	bool from_decode = node_id_equal(dispatch->decode, event->node);

	if (event->count > max_tokens || event->position > max_tokens - event->count)
		return false;
	if (!event->count && (!event->finish || event->position != choice->next || !from_decode))
		return false;
	if (from_prefill && !choice->has_first && event->position == choice->base)
		return from_decode ||
		       (event->count == 1 && !(event->finish && choice->next > choice->base + 1));
	return from_decode && event->position == choice->next && !choice->finish;
}

static void dispatch_advance(struct conductor *core, struct request *request,
			     struct dispatch *dispatch, bool first)
{
	uint8_t state = first ? DISPATCH_PREFILLED : DISPATCH_DECODING;

	if (dispatch->state >= state)
		return;
	if (dispatch->state == DISPATCH_SENT)
		conductor__dispatch_prefilled(core, dispatch);
	sm_move(conductor__dispatch_states, &dispatch->state, state);
	if (first)
		conductor__trace(core, request, "epoch %u: first token from %s", dispatch->epoch,
				 conductor__node_name(core, dispatch->prefill));
	else
		conductor__trace(core, request, "epoch %u: %s decodes", dispatch->epoch,
				 conductor__node_name(core, dispatch->decode));
}

static void latencies(struct conductor *core, struct request *request, struct choice *choice,
		      uint32_t count)
{
	struct request_facts *facts = &request->facts;

	if (!facts->first_token_ns) {
		facts->first_token_ns = core->now_ns;
		conductor__quantile_add(&core->ttft, core->now_ns - facts->arrival_ns, 1);
	} else if (choice->delivered && count) {
		conductor__quantile_add(&core->tbt, (core->now_ns - choice->last_ns) / count, count);
	}
	choice->last_ns = core->now_ns;
}

/* Passes on what has no gap before it. */
static void deliver(struct conductor *core, struct request *request, uint32_t index)
{
	struct choice *choice = &request_choices(core, request)[index];
	uint32_t count = choice->next - choice->delivered;

	if (!choice->has_first)
		return;
	latencies(core, request, choice, count);
	struct conductor_action *action = conductor__act(core, ACTION_DELIVER);
	action->request = request->facts.id;
	action->choice = index;
	action->position = choice->delivered;
	action->count = count;
	action->finish = choice->finish;
	action->has_stop_id = choice->has_stop_id;
	action->stop_id = choice->stop_id;
	action->cached_tokens = request->facts.cached_tokens;
	choice->delivered = choice->next;
	choice->faults = 0;
	conductor__choice_grow(core, request, choice);
	request->facts.tokens += count;
	request->facts.state = "running";
	core->counters.tokens_delivered += count;
	if (choice->finish)
		choice_done(core, request, index);
}

static int tokens_violation(struct conductor *core, const struct conductor_event *event,
			    struct dispatch *dispatch)
{
	conductor__refused_count(core, event->node);
	conductor__abandon(core, dispatch, event->choice, CAUSE_PROTOCOL,
			   "a node sent tokens out of their order");
	return -EPROTO;
}

int conductor__tokens(struct conductor *core, const struct conductor_event *event)
{
	struct request *request;
	struct dispatch *dispatch = dispatch_of(core, event, &request);

	if (!dispatch)
		return conductor__refuse(core, event, CONDUCTOR_CHOICE_ALL);
	if (event->choice >= request->facts.choice_count)
		return conductor__refuse(core, event, event->choice);
	struct choice *choice = &request_choices(core, request)[event->choice];
	if (choice->state != CHOICE_PLACED || &core->dispatches[choice->dispatch] != dispatch)
		return conductor__refuse(core, event, event->choice);
	if (!tokens_in_order(dispatch, choice, event, request->facts.max_tokens))
		return tokens_violation(core, event, dispatch);

	bool first = !choice->has_first && event->position == choice->base &&
		     node_id_equal(dispatch->prefill, event->node);
	uint32_t end = event->position + event->count;
	if (first) {
		choice->has_first = true;
		memset(request->refused_prefill, 0, sizeof request->refused_prefill);
		memset(request->refused_decode, 0, sizeof request->refused_decode);
	}
	dispatch_advance(core, request, dispatch, first);
	choice->next = MAX(choice->next, end);
	if (event->finish) {
		choice->finish = event->finish;
		choice->has_stop_id = event->has_stop_id;
		choice->stop_id = event->stop_id;
	}
	if (!choice->finish && choice->next == request->facts.max_tokens)
		choice->finish = CONDUCTOR_LENGTH;
	struct conductor_action *action = conductor__act(core, ACTION_KEEP);
	action->request = request->facts.id;
	action->choice = event->choice;
	action->position = event->position;
	action->count = event->count;
	deliver(core, request, event->choice);
	return 0;
}

static void refusals_note(struct conductor *core, const struct dispatch *dispatch,
			  const struct conductor_event *event)
{
	struct request *request = &core->requests[dispatch->request];
	bool from_prefill = node_id_equal(dispatch->prefill, event->node);
	uint32_t p = dispatch->prefill.index, d = dispatch->decode.index;
	bool prefill = false, decode = false;

	switch (event->cause) {
	case CAUSE_REFUSED: /* p speaks for d */
	case CAUSE_PREEMPTED:
		decode = true;
		break;
	case CAUSE_NO_MEMORY:
	case CAUSE_DRAINED:
	case CAUSE_ERROR:
		prefill = from_prefill;
		decode = node_id_equal(dispatch->decode, event->node);
		break;
	case CAUSE_PEER_LOST:
		prefill = !from_prefill;
		decode = from_prefill;
		break;
	default:
		break;
	}
	/* A node that does both cannot be p for a d that it just was not: both or neither. */
	if (p == d)
		prefill = decode = prefill || decode;
	if (prefill && p != CONDUCTOR_NODE_NONE)
		request->refused_prefill[p / 64] |= UINT64_C(1) << (p % 64);
	if (decode && d != CONDUCTOR_NODE_NONE)
		request->refused_decode[d / 64] |= UINT64_C(1) << (d % 64);
}

int conductor__returned(struct conductor *core, const struct conductor_event *event)
{
	struct request *request;
	struct dispatch *dispatch = dispatch_of(core, event, &request);
	char why[160];

	if (!dispatch)
		return conductor__refuse(core, event, event->choice);
	if (event->choice != CONDUCTOR_CHOICE_ALL) {
		if (event->choice >= request->facts.choice_count)
			return conductor__refuse(core, event, event->choice);
		struct choice *choice = &request_choices(core, request)[event->choice];
		if (choice->state != CHOICE_PLACED ||
		    &core->dispatches[choice->dispatch] != dispatch)
			return conductor__refuse(core, event, event->choice);
	}
	snprintf(why, sizeof why, "%s gave it back%s%.100s",
		 core->nodes[event->node.index].name, event->detail ? ": " : "",
		 event->detail ? event->detail : "");
	refusals_note(core, dispatch, event);
	enum conductor_cause cause =
		(uint32_t)event->cause < CAUSE_COUNT ? event->cause : CAUSE_ERROR;
	/* d has begun, so it has all that p had to give; p may fall out with it now. */
	if (dispatch->state == DISPATCH_DECODING && event->choice == CONDUCTOR_CHOICE_ALL &&
	    !node_id_equal(dispatch->decode, event->node))
		conductor__prefill_out(core, dispatch, cause, why);
	else
		conductor__abandon(core, dispatch, event->choice, cause, why);
	return 0;
}

static void measured_merge(struct conductor_measured *all, const struct conductor_measured *part)
{
	if (part->prefill_us)
		all->prefill_us = part->prefill_us;
	if (part->queue_us)
		all->queue_us = part->queue_us;
	if (part->transfer_us)
		all->transfer_us = part->transfer_us;
	if (part->transfer_bytes)
		all->transfer_bytes = part->transfer_bytes;
	if (part->transport)
		all->transport = part->transport;
	if (part->hidden_permille)
		all->hidden_permille = part->hidden_permille;
}

int conductor__measured(struct conductor *core, const struct conductor_event *event)
{
	const struct conductor_measured *measured = event->measured;
	struct request *request;
	struct dispatch *dispatch = dispatch_of(core, event, &request);

	/* No refusal is counted here: the tokens of the same frame follow and are. */
	if (!dispatch)
		return -ESTALE;
	if (measured->has_cached && !request->facts.has_cached) {
		request->facts.has_cached = true;
		request->facts.cached_tokens =
			MIN(measured->cached_tokens, request->facts.prompt_count);
	}
	measured_merge(&request->facts.measured, measured);
	if (measured->transfer_bytes && measured->transport < ARRAY_COUNT(core->counters.transfer_bytes))
		core->counters.transfer_bytes[measured->transport] += measured->transfer_bytes;
	if (measured->hidden_permille) {
		core->counters.hidden_permille_sum += MIN(measured->hidden_permille, 1000);
		core->counters.hidden_count++;
	}
	return 0;
}

static double seconds(uint64_t ns)
{
	return (double)ns / NS_PER_S;
}

void conductor__deadlines(struct conductor *core)
{
	list_for_each_safe(link, after, &core->open) {
		struct request *request = list_entry(link, struct request, open);
		struct request_facts *facts = &request->facts;
		if (facts->deadline_ns && core->now_ns >= facts->deadline_ns)
			conductor__fail(core, request, 504, "the request's deadline passed after %.1f s",
					seconds(core->now_ns - facts->arrival_ns));
		else if (request->waiting_count && request->no_node_since_ns &&
			 core->now_ns - request->no_node_since_ns >= core->config.resume_wait_ns)
			conductor__fail(core, request, 503,
					"no node could serve the request for %.1f s",
					seconds(core->now_ns - request->no_node_since_ns));
	}
}
