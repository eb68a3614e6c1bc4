/* The life of a dispatch: one placement of some choices of a request on (p, d). */
#include "conductor/core/private.h"

#include <stdio.h>

const char *conductor__node_name(const struct conductor *core, struct conductor_node_id id)
{
	return id.index == CONDUCTOR_NODE_NONE ? "" : core->nodes[id.index].name;
}

static bool bit_get(const uint64_t words[], uint32_t bit)
{
	return words[bit / 64] >> (bit % 64) & 1;
}

static void bit_set(uint64_t words[], uint32_t bit)
{
	words[bit / 64] |= UINT64_C(1) << (bit % 64);
}

static struct conductor_node_id id_at(const struct conductor *core, uint32_t index)
{
	if (index == POLICY_NODE_NONE)
		return (struct conductor_node_id){ CONDUCTOR_NODE_NONE, 0 };
	return (struct conductor_node_id){ index, core->nodes[index].generation };
}

static void choices_enter(struct conductor *core, struct request *request,
			  struct dispatch *dispatch, const uint64_t choices[])
{
	struct choice *all = request_choices(core, request);

	for (uint32_t i = 0; i < request->facts.choice_count; i++) {
		struct choice *choice = &all[i];
		if (!bit_get(choices, i))
			continue;
		sm_move(conductor__choice_states, &choice->state, CHOICE_PLACED);
		choice->dispatch = (uint32_t)(dispatch - core->dispatches);
		choice->base = choice->delivered;
		choice->next = choice->base + 1;
		choice->has_first = false;
		choice->finish = CONDUCTOR_GOES_ON;
		choice->has_stop_id = false;
		choice->load = 0;
		dispatch->choice_count++;
		request->waiting_count--;
		request->placed_count++;
	}
}

static void dispatch_load(struct conductor *core, struct dispatch *dispatch, uint32_t prompt)
{
	struct node *prefill = &core->nodes[dispatch->prefill.index];

	dispatch->number = ++prefill->dispatch_count;
	dispatch->prefill_tokens = prompt;
	list_push_back(&prefill->unseen, &dispatch->unseen);
	prefill->unseen_tokens += prompt;
	prefill->prefill_turn = ++core->turn;
	if (dispatch->decode.index != CONDUCTOR_NODE_NONE)
		core->nodes[dispatch->decode.index].decode_turn = core->turn;
}

static void choice_load_set(struct conductor *core, const struct dispatch *dispatch,
			    struct choice *choice, uint32_t load)
{
	if (dispatch->decode.index == CONDUCTOR_NODE_NONE)
		return;
	struct node *decode = &core->nodes[dispatch->decode.index];
	decode->placed_tokens += load;
	decode->placed_tokens -= choice->load;
	choice->load = load;
}

void conductor__choice_grow(struct conductor *core, struct request *request, struct choice *choice)
{
	uint32_t load = request->facts.prompt_count + choice->delivered;

	if (load > choice->load)
		choice_load_set(core, &core->dispatches[choice->dispatch], choice, load);
}

struct dispatch *conductor__dispatch_new(struct conductor *core, struct request *request,
					 const struct policy_choice *places,
					 const uint64_t choices[CONDUCTOR_CHOICES_MAX / 64])
{
	uint32_t slot = core->dispatch_free, base = 0;

	CHECK(slot != SLOT_NONE);
	struct dispatch *dispatch = &core->dispatches[slot];
	core->dispatch_free = dispatch->next_free;
	sm_move(conductor__dispatch_states, &dispatch->state, DISPATCH_SENT);
	dispatch->request = request_slot(core, request);
	dispatch->epoch = ++request->facts.epochs;
	dispatch->prefill = id_at(core, places->prefill);
	dispatch->decode = id_at(core, places->decode);
	dispatch->choice_count = 0;
	choices_enter(core, request, dispatch, choices);
	for (uint32_t i = 0; i < request->facts.choice_count; i++) {
		struct choice *choice = &request_choices(core, request)[i];
		if (!bit_get(choices, i))
			continue;
		base = choice->base;
		choice_load_set(core, dispatch, choice,
				request->facts.prompt_count + base +
					MIN(request->facts.max_tokens - base,
					    core->config.predicted_tokens));
	}
	dispatch_load(core, dispatch, request->facts.prompt_count + base);
	list_push_back(&request->dispatches, &dispatch->of_request);
	core->counters.dispatches++;
	core->counters.dispatches_live++;

	struct conductor_action *action = conductor__act(core, ACTION_PREFILL);
	action->node = dispatch->prefill;
	action->peer = dispatch->decode;
	action->request = request->facts.id;
	action->ref = (struct conductor_ref){ core->config.incarnation, request->facts.id,
					      dispatch->epoch };
	memcpy(action->choices, choices, sizeof action->choices);
	action->position = base;
	action->dispatch = dispatch->number;
	return dispatch;
}

struct dispatch *conductor__dispatch_find(struct conductor *core, struct request *request,
					  uint32_t epoch)
{
	(void)core;
	list_for_each(link, &request->dispatches) {
		struct dispatch *dispatch = list_entry(link, struct dispatch, of_request);
		if (dispatch->epoch == epoch)
			return dispatch;
	}
	return NULL;
}

/* From here on p's own reports count it. */
void conductor__dispatch_seen(struct conductor *core, struct dispatch *dispatch)
{
	if (list_empty(&dispatch->unseen))
		return;
	list_remove(&dispatch->unseen);
	core->nodes[dispatch->prefill.index].unseen_tokens -= dispatch->prefill_tokens;
}

void conductor__dispatch_prefilled(struct conductor *core, struct dispatch *dispatch)
{
	if (!list_empty(&dispatch->unseen))
		conductor__dispatch_seen(core, dispatch);
	else if (dispatch->prefill.index != CONDUCTOR_NODE_NONE)
		core->nodes[dispatch->prefill.index].prefilled_tokens += dispatch->prefill_tokens;
	dispatch->prefill_tokens = 0;
}

static void release(struct conductor *core, const struct dispatch *dispatch,
		    struct conductor_node_id id, uint32_t choice)
{
	if (!conductor__member(core, id))
		return;
	struct conductor_action *action = conductor__act(core, ACTION_RELEASE);
	action->node = id;
	action->ref = (struct conductor_ref){ core->config.incarnation,
					      core->requests[dispatch->request].facts.id,
					      dispatch->epoch };
	action->choice = choice;
}

void conductor__release_both(struct conductor *core, const struct dispatch *dispatch,
			     uint32_t choice)
{
	release(core, dispatch, dispatch->prefill, choice);
	if (!node_id_equal(dispatch->prefill, dispatch->decode))
		release(core, dispatch, dispatch->decode, choice);
}

/* With no choice left in it. */
void conductor__dispatch_end(struct conductor *core, struct dispatch *dispatch)
{
	CHECK(!dispatch->choice_count);
	conductor__release_both(core, dispatch, CONDUCTOR_CHOICE_ALL);
	conductor__dispatch_prefilled(core, dispatch);
	list_remove(&dispatch->of_request);
	sm_move(conductor__dispatch_states, &dispatch->state, DISPATCH_FREE);
	dispatch->next_free = core->dispatch_free;
	core->dispatch_free = (uint32_t)(dispatch - core->dispatches);
	core->counters.dispatches_live--;
}

void conductor__choice_leave(struct conductor *core, struct request *request, uint32_t index,
			     enum choice_state state)
{
	struct choice *choice = &request_choices(core, request)[index];

	if (choice->state == CHOICE_WAITING) {
		CHECK(state == CHOICE_DONE);
		sm_move(conductor__choice_states, &choice->state, state);
		request->waiting_count--;
		return;
	}
	struct dispatch *dispatch = &core->dispatches[choice->dispatch];
	sm_move(conductor__choice_states, &choice->state, state);
	request->placed_count--;
	if (state == CHOICE_WAITING)
		request->waiting_count++;
	if (dispatch->decode.index != CONDUCTOR_NODE_NONE)
		core->nodes[dispatch->decode.index].left_tokens += choice->load;
	if (state == CHOICE_DONE)
		core->room_made++;
	choice_load_set(core, dispatch, choice, 0);
	if (--dispatch->choice_count == 0)
		conductor__dispatch_end(core, dispatch);
}

static bool cause_is_fault(enum conductor_cause cause)
{
	return cause != CAUSE_REFUSED && cause != CAUSE_PREEMPTED && cause != CAUSE_DRAINED &&
	       cause != CAUSE_NO_MEMORY;
}

void conductor__abandon(struct conductor *core, struct dispatch *dispatch, uint32_t which,
			enum conductor_cause cause, const char *why)
{
	struct request *request = &core->requests[dispatch->request];
	struct choice *all = request_choices(core, request);
	uint32_t slot = (uint32_t)(dispatch - core->dispatches), faults = 0, delivered = 0;

	if (which != CONDUCTOR_CHOICE_ALL && dispatch->choice_count > 1)
		conductor__release_both(core, dispatch, which);
	for (uint32_t i = 0; i < request->facts.choice_count; i++) {
		if (all[i].state != CHOICE_PLACED || all[i].dispatch != slot ||
		    (which != CONDUCTOR_CHOICE_ALL && which != i))
			continue;
		if (cause_is_fault(cause))
			all[i].faults++;
		faults = MAX(faults, all[i].faults);
		delivered = MAX(delivered, all[i].delivered);
		conductor__choice_leave(core, request, i, CHOICE_WAITING);
	}
	core->counters.resumes[cause]++;
	conductor__trace(core, request, "%s after %u tokens: %s", conductor_cause_name(cause),
			 delivered, why);
	if (faults > core->config.faults_max) {
		conductor__fail(core, request, 503, "%u placements failed in a row, the last one: %s",
				faults, why);
		return;
	}
	conductor__queue(core, request, cause == CAUSE_REFUSED || cause == CAUSE_NO_MEMORY);
}

/* When p falls out after d has begun, d has all it needs from p; only choices whose first token
 * was lost with p have to be made again. */
void conductor__prefill_out(struct conductor *core, struct dispatch *dispatch,
			    enum conductor_cause cause, const char *why)
{
	struct request *request = &core->requests[dispatch->request];
	struct choice *all = request_choices(core, request);
	uint32_t slot = (uint32_t)(dispatch - core->dispatches);
	uint32_t epoch = dispatch->epoch;
	uint64_t missing[CONDUCTOR_CHOICES_MAX / 64] = { 0 };

	conductor__dispatch_prefilled(core, dispatch);
	dispatch->prefill.index = CONDUCTOR_NODE_NONE;
	conductor__trace(core, request, "%s; its part was over", why);
	for (uint32_t i = 0; i < request->facts.choice_count; i++)
		if (all[i].state == CHOICE_PLACED && all[i].dispatch == slot && !all[i].has_first)
			bit_set(missing, i);
	for (uint32_t i = 0; i < request->facts.choice_count; i++)
		if (bit_get(missing, i) && request->state == REQUEST_OPEN &&
		    conductor__dispatch_find(core, request, epoch) == dispatch)
			conductor__abandon(core, dispatch, i, cause, why);
}

static void dispatch_lost_node(struct conductor *core, struct dispatch *dispatch,
			       struct conductor_node_id id, const char *why)
{
	if (node_id_equal(dispatch->decode, id) || dispatch->state != DISPATCH_DECODING)
		conductor__abandon(core, dispatch, CONDUCTOR_CHOICE_ALL, CAUSE_NODE_LOST, why);
	else
		conductor__prefill_out(core, dispatch, CAUSE_NODE_LOST, why);
}

void conductor__node_lost_dispatches(struct conductor *core, struct conductor_node_id id,
				     const char *why)
{
	char text[CONDUCTOR_NAME_BYTES + 64];

	snprintf(text, sizeof text, "%s: %s", conductor__node_name(core, id), why);
	for (uint32_t i = 0; i < core->config.dispatches_max; i++) {
		struct dispatch *dispatch = &core->dispatches[i];
		if (dispatch->state == DISPATCH_FREE || (!node_id_equal(dispatch->prefill, id) &&
							 !node_id_equal(dispatch->decode, id)))
			continue;
		dispatch_lost_node(core, dispatch, id, text);
	}
}
