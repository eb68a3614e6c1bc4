/* Membership: who is in, who is out, under which incarnation, and with what load. */
#include "conductor/core/private.h"

#include <stdio.h>

struct node *conductor__member(struct conductor *core, struct conductor_node_id id)
{
	if (id.index >= core->node_count)
		return NULL;
	struct node *node = &core->nodes[id.index];
	return node->generation == id.generation && node_is_member(node) ? node : NULL;
}

static struct conductor_node_id node_id(const struct conductor *core, const struct node *node)
{
	return (struct conductor_node_id){ (uint32_t)(node - core->nodes), node->generation };
}

static uint64_t less(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

/*
 * A report is half a second old at times, and a burst comes and goes within that. So what is ours
 * and has changed since is put right: dispatches that it does not include are added, those that
 * have been computed, or have left, are taken off.
 */
uint64_t conductor__queued_tokens(const struct node *node)
{
	return less(node->report.queued_tokens, node->prefilled_tokens) + node->unseen_tokens;
}

/* Nothing tells which of our choices d's report includes: the larger of what it says and of what
 * we know is the better guess, their sum would count most of it twice. */
uint64_t conductor__running_tokens(const struct node *node)
{
	uint64_t said = node->report.running_tokens + node->report.reserved_tokens;

	return MAX(less(said, node->left_tokens), node->placed_tokens);
}

/* The member's work is placed elsewhere and its slot is out of use under @state. */
static void node_retire(struct conductor *core, struct node *node, uint8_t state, const char *why)
{
	struct conductor_node_id id = node_id(core, node);

	sm_move(conductor__node_states, &node->state, state);
	conductor__node_lost_dispatches(core, id, why);
	node->unseen_tokens = 0;
	CHECK(list_empty(&node->unseen));
	core->nodes_changed = true;
}

static struct node *slot_for(struct conductor *core, const char *name)
{
	struct node *oldest = NULL;
	uint32_t index = conductor_node_find(core, name);

	if (index != CONDUCTOR_NODE_NONE)
		return &core->nodes[index];
	if (core->node_count < CONDUCTOR_NODES_MAX)
		return &core->nodes[core->node_count++];
	for (uint32_t i = 0; i < core->node_count; i++) {
		struct node *node = &core->nodes[i];
		if (node->state == NODE_GONE && (!oldest || node->report_ns < oldest->report_ns))
			oldest = node;
	}
	return oldest;
}

static int join_refuse(struct conductor *core, const struct conductor_hello *hello, int error,
		       const char *text)
{
	struct conductor_action *action = conductor__act(core, ACTION_NODE_REFUSE);

	action->connection = hello->connection;
	action->error = error;
	action->text = text;
	core->counters.hellos_refused++;
	return 0;
}

/* Incarnations of a name are ordered: the newer takes the older's place, never the reverse. */
static const char *join_objection(const struct node *node, const struct conductor_hello *hello)
{
	if (node->state == NODE_FREE || strcmp(node->name, hello->name) != 0)
		return NULL;
	if (hello->incarnation < node->incarnation)
		return "a newer incarnation of this node is known";
	if (hello->incarnation == node->incarnation && node->fenced)
		return "this incarnation was fenced; come back with a newer one";
	return NULL;
}

static void node_occupy(struct node *node, const struct conductor_hello *hello, uint64_t now_ns,
			uint64_t lease_ns)
{
	struct node fresh = { .generation = node->generation + 1, .state = node->state };

	if (!strcmp(node->name, hello->name))
		fresh.frames_refused = node->frames_refused;
	snprintf(fresh.name, sizeof fresh.name, "%s", hello->name);
	fresh.incarnation = hello->incarnation;
	fresh.role = hello->role;
	fresh.model = hello->model;
	fresh.block_tokens = hello->block_tokens;
	fresh.blocks_total = hello->blocks_total;
	fresh.max_num_seqs = hello->max_num_seqs;
	fresh.max_model_len = hello->max_model_len;
	fresh.report_ns = now_ns;
	fresh.lease_ns = now_ns + lease_ns;
	*node = fresh;
	list_init(&node->unseen);
}

int conductor__joined(struct conductor *core, const struct conductor_event *event)
{
	const struct conductor_hello *hello = event->hello;

	if (!hello->name[0] || strlen(hello->name) >= CONDUCTOR_NAME_BYTES || !hello->role ||
	    hello->role > ROLE_BOTH || hello->model >= core->config.model_count)
		return join_refuse(core, hello, -EINVAL, "its Hello has a field out of range");
	struct node *node = slot_for(core, hello->name);
	if (!node)
		return join_refuse(core, hello, -ENOSPC, "the node table is full");
	const char *objection = join_objection(node, hello);
	if (objection)
		return join_refuse(core, hello, -ESTALE, objection);
	if (node_is_member(node) || node->state == NODE_FENCED) {
		conductor__act(core, ACTION_NODE_CLOSE)->node = node_id(core, node);
		if (node_is_member(node))
			node_retire(core, node, NODE_GONE, "came back as a new incarnation");
		else
			sm_move(conductor__node_states, &node->state, NODE_GONE);
	}
	node_occupy(node, hello, core->now_ns, core->config.lease_ns);
	sm_move(conductor__node_states, &node->state, NODE_STARTING);
	core->counters.nodes_joined++;
	struct conductor_action *action = conductor__act(core, ACTION_NODE_ADMIT);
	action->node = node_id(core, node);
	action->connection = hello->connection;
	return 0;
}

int conductor__lost(struct conductor *core, const struct conductor_event *event)
{
	struct node *node = conductor__member(core, event->node);

	if (node) {
		core->counters.nodes_lost++;
		node_retire(core, node, NODE_GONE, "its connection was lost");
		return 0;
	}
	if (event->node.index >= core->node_count)
		return -ESTALE;
	node = &core->nodes[event->node.index];
	if (node->generation != event->node.generation || node->state != NODE_FENCED)
		return -ESTALE;
	sm_move(conductor__node_states, &node->state, NODE_GONE);
	return 0;
}

static void node_state_apply(struct conductor *core, struct node *node)
{
	static const uint8_t states[] = { NODE_STARTING, NODE_STARTING, NODE_READY, NODE_DRAINING,
					  NODE_DRAINED };
	uint8_t state = node->report.state < ARRAY_COUNT(states) ? states[node->report.state] :
								   NODE_STARTING;

	/* A report that was under way when the drain was asked for does not undo it. */
	if (node->drain_wanted && state != NODE_DRAINED)
		state = NODE_DRAINING;
	if (state == node->state)
		return;
	sm_move(conductor__node_states, &node->state, state);
	core->nodes_changed = true;
}

int conductor__report(struct conductor *core, const struct conductor_event *event)
{
	struct node *node = conductor__member(core, event->node);

	if (!node)
		return conductor__refuse(core, event, CONDUCTOR_CHOICE_ALL);
	node->report = *event->report;
	node->prefilled_tokens = node->left_tokens = 0;
	node->report_ns = core->now_ns;
	node->lease_ns = core->now_ns + core->config.lease_ns;
	if (node->report.role && node->report.role <= ROLE_BOTH &&
	    node->report.role != node->role) {
		node->role = node->report.role;
		core->nodes_changed = true;
	}
	while (!list_empty(&node->unseen)) {
		struct dispatch *dispatch =
			list_entry(node->unseen.next, struct dispatch, unseen);
		if (dispatch->number > node->report.dispatches_seen)
			break;
		conductor__dispatch_seen(core, dispatch);
	}
	node_state_apply(core, node);
	return 0;
}

int conductor__command(struct conductor *core, const struct conductor_event *event)
{
	struct node *node = conductor__member(core, event->node);

	if (!node)
		return -ESTALE;
	if (event->command == COMMAND_ROLE && (!event->role || event->role > ROLE_BOTH))
		return -EINVAL;
	if (event->command == COMMAND_DRAIN)
		node->drain_wanted = true;
	if (event->command == COMMAND_UNDRAIN)
		node->drain_wanted = false;
	if (event->command == COMMAND_DRAIN)
		node_state_apply(core, node);
	struct conductor_action *action = conductor__act(core, ACTION_COMMAND);
	action->node = event->node;
	action->command = event->command;
	action->role = event->role;
	return 0;
}

void conductor__leases_extend(struct conductor *core)
{
	for (uint32_t i = 0; i < core->node_count; i++)
		if (node_is_member(&core->nodes[i]))
			core->nodes[i].lease_ns = core->now_ns + core->config.lease_ns;
}

/* A fenced node learns from the missing acknowledgements that it is out. One that goes on all the
 * same for a whole lease is cut off, so that it has to come back through the door. */
void conductor__leases(struct conductor *core)
{
	for (uint32_t i = 0; i < core->node_count; i++) {
		struct node *node = &core->nodes[i];
		struct conductor_node_id id = node_id(core, node);
		if (node_is_member(node) && core->now_ns > node->lease_ns) {
			core->counters.nodes_fenced++;
			node->fenced = true;
			node_retire(core, node, NODE_FENCED, "its lease ran out");
			conductor__act(core, ACTION_NODE_FENCE)->node = id;
		} else if (node->state == NODE_FENCED && node->refused_ns &&
			   core->now_ns - node->refused_ns > core->config.lease_ns) {
			sm_move(conductor__node_states, &node->state, NODE_GONE);
			conductor__act(core, ACTION_NODE_CLOSE)->node = id;
		}
	}
}

void conductor__refused_count(struct conductor *core, struct conductor_node_id id)
{
	core->counters.frames_refused++;
	if (id.index < core->node_count)
		core->nodes[id.index].frames_refused++;
}

int conductor__refuse(struct conductor *core, const struct conductor_event *event, uint32_t choice)
{
	conductor__refused_count(core, event->node);
	if (event->node.index >= core->node_count)
		return -ESTALE;
	struct node *node = &core->nodes[event->node.index];
	if (node->generation != event->node.generation)
		return -ESTALE;
	if (node->state == NODE_FENCED && !node->refused_ns)
		node->refused_ns = core->now_ns;
	if (node_is_member(node) && event->ref.conductor == core->config.incarnation) {
		struct conductor_action *action = conductor__act(core, ACTION_RELEASE);
		action->node = event->node;
		action->ref = event->ref;
		action->choice = choice;
	}
	return -ESTALE;
}
