/* What others may look at, and the walk over the invariants. */
#include "conductor/core/private.h"

uint32_t conductor_node_count(const struct conductor *core)
{
	return core->node_count;
}

uint32_t conductor_node_find(const struct conductor *core, const char *name)
{
	for (uint32_t i = 0; i < core->node_count; i++)
		if (!strcmp(core->nodes[i].name, name))
			return i;
	return CONDUCTOR_NODE_NONE;
}

void conductor_node_view(const struct conductor *core, uint32_t index,
			 struct conductor_node_view *ret_view)
{
	CHECK(index < core->node_count);
	const struct node *node = &core->nodes[index];
	*ret_view = (struct conductor_node_view){
		.id = { index, node->generation },
		.state = (enum conductor_node_state)node->state,
		.name = node->name,
		.incarnation = node->incarnation,
		.role = node->role,
		.model = node->model,
		.blocks_total = node->blocks_total,
		.block_tokens = node->block_tokens,
		.report = &node->report,
		.report_ns = node->report_ns,
		.queued_tokens = conductor__queued_tokens(node),
		.running_tokens = conductor__running_tokens(node),
		.frames_refused = node->frames_refused,
		.dispatches = node->dispatch_count,
	};
	for (uint32_t i = 0; i < core->config.dispatches_max; i++) {
		const struct dispatch *dispatch = &core->dispatches[i];
		if (dispatch->state == DISPATCH_FREE)
			continue;
		ret_view->prefills += node_id_equal(dispatch->prefill, ret_view->id);
		ret_view->decodes += node_id_equal(dispatch->decode, ret_view->id);
	}
}

const char *conductor_node_state_name(enum conductor_node_state state)
{
	return (uint32_t)state <= NODE_GONE ? conductor__node_states[state].name : "unknown";
}

const char *conductor_role_name(uint32_t role)
{
	static const char *const names[] = { "none", "prefill", "decode", "both" };

	return role < ARRAY_COUNT(names) ? names[role] : "unknown";
}

bool conductor_ready(const struct conductor *core)
{
	for (uint32_t model = 0; model < core->config.model_count; model++) {
		uint32_t roles = 0;
		for (uint32_t i = 0; i < core->node_count; i++)
			if (core->nodes[i].state == NODE_READY && core->nodes[i].model == model)
				roles |= core->nodes[i].role;
		if (roles != ROLE_BOTH)
			return false;
	}
	return true;
}

void conductor_counters(const struct conductor *core, struct conductor_counters *ret_counters)
{
	*ret_counters = core->counters;
	ret_counters->requests_running = ret_counters->requests_waiting = 0;
	list_for_each(link, &core->open) {
		const struct request *request = list_entry(link, struct request, open);
		bool running = false;
		list_for_each(place, &request->dispatches)
			running |= list_entry(place, struct dispatch, of_request)->state !=
				   DISPATCH_SENT;
		if (running)
			ret_counters->requests_running++;
		else
			ret_counters->requests_waiting++;
	}
}

const struct conductor_quantiles *conductor_ttft(const struct conductor *core)
{
	return &core->ttft;
}

const struct conductor_quantiles *conductor_tbt(const struct conductor *core)
{
	return &core->tbt;
}

const char *conductor_dispatch_state(const struct conductor *core, uint64_t id, uint32_t epoch)
{
	uint64_t slot;

	if (!map_get(&core->request_by_id, id, &slot))
		return NULL;
	list_for_each(link, &core->requests[slot].dispatches) {
		const struct dispatch *dispatch = list_entry(link, struct dispatch, of_request);
		if (dispatch->epoch == epoch)
			return conductor__dispatch_states[dispatch->state].name;
	}
	return NULL;
}

/* C1, C2 for one request. */
static void check_request(const struct conductor *core, const struct request *request)
{
	const struct choice *all = request_choices(core, request);
	uint32_t waiting = 0, placed = 0, in_dispatches = 0;

	for (uint32_t i = 0; i < request->facts.choice_count; i++) {
		const struct choice *choice = &all[i];
		CHECK(choice->delivered <= request->facts.max_tokens);
		waiting += choice->state == CHOICE_WAITING;
		if (choice->state != CHOICE_PLACED)
			continue;
		placed++;
		const struct dispatch *dispatch = &core->dispatches[choice->dispatch];
		CHECK(dispatch->state != DISPATCH_FREE);
		CHECK(dispatch->request == request_slot(core, request));
		CHECK(choice->next > choice->base);
		CHECK(choice->next <= request->facts.max_tokens);
		CHECK(choice->has_first ? choice->delivered == choice->next :
					  choice->delivered == choice->base);
	}
	CHECK(waiting == request->waiting_count && placed == request->placed_count);
	CHECK(waiting + placed > 0);
	CHECK(!waiting || !list_empty(&request->queue));
	list_for_each(link, &request->dispatches)
		in_dispatches += list_entry(link, struct dispatch, of_request)->choice_count;
	CHECK(in_dispatches == placed);
}

static bool id_is_member(const struct conductor *core, struct conductor_node_id id)
{
	return id.index < core->node_count && core->nodes[id.index].generation == id.generation &&
	       node_is_member(&core->nodes[id.index]);
}

static uint64_t choices_load(const struct conductor *core, const struct dispatch *dispatch,
			     uint32_t slot)
{
	const struct request *request = &core->requests[dispatch->request];
	const struct choice *all = request_choices(core, request);
	uint64_t load = 0;

	for (uint32_t i = 0; i < request->facts.choice_count; i++)
		if (all[i].state == CHOICE_PLACED && all[i].dispatch == slot)
			load += all[i].load;
	return load;
}

/* C3, and that the loads add up. */
static void check_nodes(const struct conductor *core)
{
	uint64_t placed[CONDUCTOR_NODES_MAX] = { 0 }, unseen[CONDUCTOR_NODES_MAX] = { 0 };
	uint32_t live = 0;

	for (uint32_t i = 0; i < core->config.dispatches_max; i++) {
		const struct dispatch *dispatch = &core->dispatches[i];
		if (dispatch->state == DISPATCH_FREE)
			continue;
		live++;
		CHECK(dispatch->choice_count > 0);
		if (dispatch->prefill.index != CONDUCTOR_NODE_NONE)
			CHECK(id_is_member(core, dispatch->prefill));
		else
			CHECK(dispatch->state == DISPATCH_DECODING);
		if (!list_empty(&dispatch->unseen))
			unseen[dispatch->prefill.index] += dispatch->prefill_tokens;
		if (dispatch->decode.index == CONDUCTOR_NODE_NONE)
			continue;
		CHECK(id_is_member(core, dispatch->decode));
		placed[dispatch->decode.index] += choices_load(core, dispatch, i);
	}
	CHECK(live == core->counters.dispatches_live);
	for (uint32_t i = 0; i < core->node_count; i++) {
		CHECK(core->nodes[i].placed_tokens == placed[i]);
		CHECK(core->nodes[i].unseen_tokens == unseen[i]);
	}
}

void conductor_check(const struct conductor *core)
{
	uint32_t open = 0;

	list_for_each(link, &core->open) {
		const struct request *request = list_entry(link, struct request, open);
		uint64_t slot;
		open++;
		CHECK(request->state == REQUEST_OPEN);
		CHECK(map_get(&core->request_by_id, request->facts.id, &slot));
		CHECK(slot == request_slot(core, request));
		check_request(core, request);
	}
	CHECK(open == core->counters.requests_open);
	CHECK(open == core->request_by_id.count);
	check_nodes(core);
	CHECK(list_empty(&core->urgent));
}
