#include "conductor/core/private.h"

#include <stdlib.h>

const struct sm_state conductor__choice_states[] = {
	[CHOICE_WAITING] = { "waiting", SM_TO(CHOICE_PLACED) | SM_TO(CHOICE_DONE) },
	[CHOICE_PLACED] = { "placed", SM_TO(CHOICE_WAITING) | SM_TO(CHOICE_DONE) },
	[CHOICE_DONE] = { "done", 0 },
};

const struct sm_state conductor__dispatch_states[] = {
	[DISPATCH_FREE] = { "free", SM_TO(DISPATCH_SENT) },
	[DISPATCH_SENT] = { "sent", SM_TO(DISPATCH_PREFILLED) | SM_TO(DISPATCH_DECODING) |
					    SM_TO(DISPATCH_FREE) },
	[DISPATCH_PREFILLED] = { "prefilled", SM_TO(DISPATCH_DECODING) | SM_TO(DISPATCH_FREE) },
	[DISPATCH_DECODING] = { "decoding", SM_TO(DISPATCH_FREE) },
};

#define NODE_LIVE                                                                                \
	(SM_TO(NODE_STARTING) | SM_TO(NODE_READY) | SM_TO(NODE_DRAINING) | SM_TO(NODE_DRAINED) | \
	 SM_TO(NODE_FENCED) | SM_TO(NODE_GONE))

const struct sm_state conductor__node_states[] = {
	[NODE_FREE] = { "free", SM_TO(NODE_STARTING) },
	[NODE_STARTING] = { "starting", NODE_LIVE },
	[NODE_READY] = { "ready", NODE_LIVE },
	[NODE_DRAINING] = { "draining", NODE_LIVE },
	[NODE_DRAINED] = { "drained", NODE_LIVE },
	[NODE_FENCED] = { "fenced", SM_TO(NODE_GONE) },
	[NODE_GONE] = { "gone", SM_TO(NODE_STARTING) },
};

static const char *const cause_names[] = {
#define CAUSE_NAME(name, text) [CAUSE_##name] = text,
	CONDUCTOR_CAUSE_LIST(CAUSE_NAME)
#undef CAUSE_NAME
};

const char *conductor_cause_name(enum conductor_cause cause)
{
	return (uint32_t)cause < CAUSE_COUNT ? cause_names[cause] : "unknown";
}

static void core_pools_init(struct conductor *core)
{
	for (uint32_t i = 0; i < core->config.requests_max; i++) {
		list_init(&core->requests[i].dispatches);
		list_init(&core->requests[i].open);
		list_init(&core->requests[i].queue);
		core->requests[i].next_free = i + 1 < core->config.requests_max ? i + 1 : SLOT_NONE;
	}
	for (uint32_t i = 0; i < core->config.dispatches_max; i++) {
		list_init(&core->dispatches[i].of_request);
		list_init(&core->dispatches[i].unseen);
		core->dispatches[i].next_free =
			i + 1 < core->config.dispatches_max ? i + 1 : SLOT_NONE;
	}
	for (uint32_t i = 0; i < CONDUCTOR_NODES_MAX; i++)
		list_init(&core->nodes[i].unseen);
}

int conductor_new(const struct conductor_config *config, struct conductor **ret_core)
{
	if (!config->requests_max || config->requests_max > 1u << 20 || !config->policy ||
	    !config->model_count || !config->lease_ns)
		return -EINVAL;
	struct conductor *core = calloc(1, sizeof *core);
	if (!core)
		return -ENOMEM;
	core->config = *config;
	if (!core->config.dispatches_max)
		core->config.dispatches_max = 2 * config->requests_max + 256;
	if (!core->config.traces_max)
		core->config.traces_max = 256;
	if (!core->config.retry_ns)
		core->config.retry_ns = 50 * NS_PER_MS;
	if (!core->config.faults_max)
		core->config.faults_max = 8;
	list_init(&core->open);
	list_init(&core->urgent);
	list_init(&core->waiting);
	core->requests = calloc(core->config.requests_max, sizeof *core->requests);
	core->choices = calloc((size_t)core->config.requests_max * CONDUCTOR_CHOICES_MAX,
			       sizeof *core->choices);
	core->traces = calloc(core->config.requests_max, sizeof *core->traces);
	core->dispatches = calloc(core->config.dispatches_max, sizeof *core->dispatches);
	core->ended = calloc(core->config.traces_max, sizeof *core->ended);
	if (!core->requests || !core->choices || !core->traces || !core->dispatches ||
	    !core->ended || map_init(&core->request_by_id, core->config.requests_max) < 0) {
		conductor_free(core);
		return -ENOMEM;
	}
	core_pools_init(core);
	*ret_core = core;
	return 0;
}

void conductor_free(struct conductor *core)
{
	if (!core)
		return;
	map_fini(&core->request_by_id);
	free(core->requests);
	free(core->choices);
	free(core->traces);
	free(core->dispatches);
	free(core->ended);
	free(core);
}

/* The most that one step can ask for. Losing a node (or waking from a stop, losing all) ends
 * each dispatch with two releases and may start as many, and may end each request (fail, end). A
 * token event adds its keep and deliver; a node event adds one action for each node. */
int conductor_actions_init(struct conductor_actions *actions, const struct conductor *core)
{
	uint32_t capacity = 4 * core->config.dispatches_max + 2 * core->config.requests_max +
			    2 * CONDUCTOR_NODES_MAX + 16;

	actions->items = calloc(capacity, sizeof *actions->items);
	if (!actions->items)
		return -ENOMEM;
	actions->capacity = capacity;
	actions->count = 0;
	return 0;
}

void conductor_actions_fini(struct conductor_actions *actions)
{
	free(actions->items);
	*actions = (struct conductor_actions){ 0 };
}

struct conductor_action *conductor__act(struct conductor *core, enum conductor_action_kind kind)
{
	struct conductor_actions *actions = core->actions;

	CHECK(actions->count < actions->capacity);
	struct conductor_action *action = &actions->items[actions->count++];
	*action = (struct conductor_action){
		.kind = kind,
		.node = { CONDUCTOR_NODE_NONE, 0 },
		.peer = { CONDUCTOR_NODE_NONE, 0 },
	};
	return action;
}

struct request *conductor__request(struct conductor *core, uint64_t id)
{
	uint64_t slot;

	return map_get(&core->request_by_id, id, &slot) ? &core->requests[slot] : NULL;
}

static int tick(struct conductor *core)
{
	core->tick_ns = core->now_ns;
	conductor__leases(core);
	conductor__deadlines(core);
	conductor__place_waiting(core, false);
	return 0;
}

static int step_event(struct conductor *core, const struct conductor_event *event)
{
	switch (event->kind) {
	case EVENT_TICK:
		return tick(core);
	case EVENT_NODE_JOINED:
		return conductor__joined(core, event);
	case EVENT_NODE_LOST:
		return conductor__lost(core, event);
	case EVENT_NODE_REPORT:
		return conductor__report(core, event);
	case EVENT_SUBMITTED:
		return conductor__submitted(core, event);
	case EVENT_CANCELLED:
		return conductor__cancelled(core, event);
	case EVENT_CHOICE_STOPPED:
		return conductor__stopped(core, event);
	case EVENT_MEASURED:
		return conductor__measured(core, event);
	case EVENT_TOKENS:
		return conductor__tokens(core, event);
	case EVENT_RETURNED:
		return conductor__returned(core, event);
	case EVENT_COMMAND:
		return conductor__command(core, event);
	}
	return -EINVAL;
}

int conductor_step(struct conductor *core, const struct conductor_event *event,
		   struct conductor_actions *ret_actions)
{
	ret_actions->count = 0;
	core->actions = ret_actions;
	if (event->now_ns > core->now_ns)
		core->now_ns = event->now_ns;
	/* Ticks come many times a lease. When they did not, it was this process that stood still:
	 * the nodes' reports lie unread in the sockets, so nobody is judged before they had time
	 * to be read. */
	if (core->tick_ns && core->now_ns - core->tick_ns > core->config.lease_ns / 2) {
		conductor__leases_extend(core);
		core->tick_ns = core->now_ns;
	}
	int result = step_event(core, event);
	conductor__place_urgent(core);
	if (core->room_made)
		conductor__place_oldest(core, core->room_made);
	core->room_made = 0;
	if (core->nodes_changed) {
		core->nodes_changed = false;
		conductor__place_waiting(core, true);
	}
	core->actions = NULL;
	return result;
}
