/* A little cluster around the core, for its tests: events by name, actions as lines. */
#ifndef BATON_CONDUCTOR_CORE_TEST_UTIL_H
#define BATON_CONDUCTOR_CORE_TEST_UTIL_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/clock.h"
#include "conductor/core/conductor.h"

#define INCARNATION 7

struct world {
	struct conductor *core;
	struct conductor_actions actions;
	struct conductor_node_id nodes[8];
	uint64_t now_ns;
	int result;
	char lines[65536]; /* actions since the last expect(), one a line */
	uint32_t waits;
};

static inline void world_line(struct world *world, const char *format, ...)
{
	size_t used = strlen(world->lines);
	va_list args;

	va_start(args, format);
	vsnprintf(world->lines + used, sizeof world->lines - used, format, args);
	va_end(args);
}

static inline const char *world_node(struct world *world, struct conductor_node_id id)
{
	struct conductor_node_view view;

	if (id.index == CONDUCTOR_NODE_NONE)
		return "-";
	conductor_node_view(world->core, id.index, &view);
	return view.name;
}

static inline void world_choice(char *text, uint32_t choice)
{
	if (choice == CONDUCTOR_CHOICE_ALL)
		strcpy(text, "all");
	else
		sprintf(text, "%u", choice);
}

static inline void world_action(struct world *world, const struct conductor_action *action)
{
	static const char *const finishes[] = { "", " stop", " length" };
	char choice[16];

	switch (action->kind) {
	case ACTION_PREFILL:
		world_line(world, "prefill r%u.%u %s>%s from %u choices %llx\n",
			   (unsigned)action->ref.request, action->ref.epoch,
			   world_node(world, action->node), world_node(world, action->peer),
			   action->position, (unsigned long long)action->choices[0]);
		break;
	case ACTION_RELEASE:
		world_choice(choice, action->choice);
		world_line(world, "release r%u.%u %s %s\n", (unsigned)action->ref.request,
			   action->ref.epoch, world_node(world, action->node), choice);
		break;
	case ACTION_KEEP:
		world_line(world, "keep r%u/%u %u+%u\n", (unsigned)action->request, action->choice,
			   action->position, action->count);
		break;
	case ACTION_DELIVER:
		world_line(world, "deliver r%u/%u %u+%u%s\n", (unsigned)action->request,
			   action->choice, action->position, action->count,
			   finishes[action->finish]);
		break;
	case ACTION_FAIL:
		world_line(world, "fail r%u %d %s\n", (unsigned)action->request, action->status,
			   action->text);
		break;
	case ACTION_END:
		world_line(world, "end r%u\n", (unsigned)action->request);
		break;
	case ACTION_COMMAND:
		world_line(world, "command %s %d\n", world_node(world, action->node),
			   (int)action->command);
		break;
	case ACTION_NODE_ADMIT:
		world_line(world, "admit %s\n", world_node(world, action->node));
		break;
	case ACTION_NODE_REFUSE:
		world_line(world, "refuse: %s\n", action->text);
		break;
	case ACTION_NODE_FENCE:
		world_line(world, "fence %s\n", world_node(world, action->node));
		break;
	case ACTION_NODE_CLOSE:
		world_line(world, "close %s\n", world_node(world, action->node));
		break;
	}
}

static inline int world_step(struct world *world, struct conductor_event event)
{
	event.now_ns = world->now_ns;
	world->result = conductor_step(world->core, &event, &world->actions);
	for (uint32_t i = 0; i < world->actions.count; i++)
		world_action(world, &world->actions.items[i]);
	conductor_check(world->core);
	return world->result;
}

static inline void world_open(struct world *world, const char *policy)
{
	struct conductor_config config = {
		.incarnation = INCARNATION,
		.requests_max = 16,
		.model_count = 1,
		.traces_max = 4,
		.policy = conductor_policy_find(policy),
		.lease_ns = 3 * NS_PER_S,
		.resume_wait_ns = 10 * NS_PER_S,
		.predicted_tokens = 64,
		.faults_max = 3,
	};

	memset(world, 0, sizeof *world);
	world->now_ns = NS_PER_S;
	assert_int_equal(conductor_new(&config, &world->core), 0);
	assert_int_equal(conductor_actions_init(&world->actions, world->core), 0);
	world_step(world, (struct conductor_event){ .kind = EVENT_TICK });
}

static inline void world_close(struct world *world)
{
	conductor_actions_fini(&world->actions);
	conductor_free(world->core);
}

static inline void expect(struct world *world, const char *lines)
{
	assert_string_equal(world->lines, lines);
	world->lines[0] = '\0';
}

static inline void quiet(struct world *world)
{
	world->lines[0] = '\0';
}

static inline void join_as(struct world *world, uint32_t slot, const struct conductor_hello *hello)
{
	world_step(world, (struct conductor_event){ .kind = EVENT_NODE_JOINED, .hello = hello });
	for (uint32_t i = 0; i < world->actions.count; i++)
		if (world->actions.items[i].kind == ACTION_NODE_ADMIT)
			world->nodes[slot] = world->actions.items[i].node;
}

static inline void join(struct world *world, uint32_t slot, const char *name, uint32_t role,
			uint64_t incarnation)
{
	join_as(world, slot, &(struct conductor_hello){ .name = name,
							.incarnation = incarnation,
							.role = role,
							.block_tokens = 16,
							.blocks_total = 1000 });
}

/* state: 1 starting, 2 ready, 3 draining, 4 drained */
static inline int report(struct world *world, uint32_t slot, uint32_t role, uint32_t state,
			 uint64_t seen, uint64_t queued, uint64_t running)
{
	struct conductor_report report = {
		.role = role,
		.state = state,
		.dispatches_seen = seen,
		.queued_tokens = queued,
		.running_tokens = running,
	};

	return world_step(world, (struct conductor_event){ .kind = EVENT_NODE_REPORT,
							   .node = world->nodes[slot],
							   .report = &report });
}

static inline int submit(struct world *world, uint64_t id, uint32_t prompt, uint32_t choices,
			 uint32_t max_tokens)
{
	char name[32];
	struct conductor_submit submit = {
		.name = name,
		.prompt_count = prompt,
		.choice_count = choices,
		.max_tokens = max_tokens,
		.arrival_ns = world->now_ns,
	};

	snprintf(name, sizeof name, "cmpl-%u", (unsigned)id);
	return world_step(world, (struct conductor_event){ .kind = EVENT_SUBMITTED,
							   .request = id,
							   .submit = &submit });
}

static inline int tokens(struct world *world, uint32_t slot, uint64_t request, uint32_t epoch,
			 uint32_t choice, uint32_t position, uint32_t count,
			 enum conductor_finish finish)
{
	return world_step(world, (struct conductor_event){
					 .kind = EVENT_TOKENS,
					 .node = world->nodes[slot],
					 .ref = { INCARNATION, request, epoch },
					 .choice = choice,
					 .position = position,
					 .count = count,
					 .finish = finish,
				 });
}

static inline int returned(struct world *world, uint32_t slot, uint64_t request, uint32_t epoch,
			   uint32_t choice, enum conductor_cause cause)
{
	return world_step(world, (struct conductor_event){
					 .kind = EVENT_RETURNED,
					 .node = world->nodes[slot],
					 .ref = { INCARNATION, request, epoch },
					 .choice = choice,
					 .cause = cause,
				 });
}

static inline void lost(struct world *world, uint32_t slot)
{
	world_step(world, (struct conductor_event){ .kind = EVENT_NODE_LOST,
						    .node = world->nodes[slot] });
}

static inline void cancel(struct world *world, uint64_t request)
{
	world_step(world, (struct conductor_event){ .kind = EVENT_CANCELLED, .request = request });
}

/* Time passes in ticks, the named nodes (bits) reporting all along what they reported last. */
static inline void pass(struct world *world, uint64_t ms, uint32_t alive)
{
	struct conductor_node_view view;

	for (uint64_t i = 0; i < ms; i += 50) {
		world->now_ns += 50 * NS_PER_MS;
		world_step(world, (struct conductor_event){ .kind = EVENT_TICK });
		for (uint32_t slot = 0; slot < 8 && i % 500 == 0; slot++) {
			if (!(alive >> slot & 1))
				continue;
			conductor_node_view(world->core, world->nodes[slot].index, &view);
			struct conductor_report again = *view.report;
			world_step(world, (struct conductor_event){ .kind = EVENT_NODE_REPORT,
								    .node = world->nodes[slot],
								    .report = &again });
		}
	}
}

/* Two prefill nodes (slots 0, 1), two decode nodes (2, 3), all ready. */
static inline void world_2p2d(struct world *world, const char *policy)
{
	world_open(world, policy);
	join(world, 0, "p0", ROLE_PREFILL, 100);
	join(world, 1, "p1", ROLE_PREFILL, 101);
	join(world, 2, "d0", ROLE_DECODE, 102);
	join(world, 3, "d1", ROLE_DECODE, 103);
	for (uint32_t i = 0; i < 4; i++)
		report(world, i, i < 2 ? ROLE_PREFILL : ROLE_DECODE, 2, 0, 0, 0);
	quiet(world);
}

#endif
