/* Placing what waits: the policy picks, the core excludes what cannot or would not. */
#include "conductor/core/private.h"

#include <stdio.h>
#include <string.h>

static bool bit_get(const uint64_t words[], uint32_t bit)
{
	return words[bit / 64] >> (bit % 64) & 1;
}

/* What a node could never take is not asked of it: it would refuse for ever. */
static bool has_room(const struct node *node, uint64_t tokens)
{
	return !node->blocks_total || (uint64_t)node->blocks_total * node->block_tokens >= tokens;
}

static bool has_context(const struct node *node, uint64_t prompt_tokens)
{
	return !node->max_model_len || prompt_tokens < node->max_model_len;
}

static bool has_seats(const struct node *node, uint32_t choices)
{
	return !node->max_num_seqs || choices <= node->max_num_seqs;
}

static bool serves(const struct node *node, const struct request *request)
{
	return node->state == NODE_READY && node->model == request->facts.model;
}

/* @refusals: leave out the nodes that refused this request a moment ago. */
static void view_fill(struct conductor *core, const struct request *request, uint64_t tokens,
		      uint32_t choices, bool refusals)
{
	for (uint32_t i = 0; i < core->node_count; i++) {
		const struct node *node = &core->nodes[i];
		bool fits = serves(node, request) && has_context(node, tokens);
		core->view[i] = (struct policy_node){
			.name = node->name,
			.can_prefill = fits && (node->role & ROLE_PREFILL) && has_room(node, tokens) &&
				       !(refusals && bit_get(request->refused_prefill, i)),
			.can_decode = fits && (node->role & ROLE_DECODE) && has_room(node, tokens + 1) &&
				      has_seats(node, choices) &&
				      !(refusals && bit_get(request->refused_decode, i)),
			.queued_tokens = conductor__queued_tokens(node),
			.running_tokens = conductor__running_tokens(node),
			.prefill_turn = node->prefill_turn,
			.decode_turn = node->decode_turn,
		};
	}
}

static void placed_note(struct conductor *core, struct request *request,
			const struct policy_choice *places, uint32_t base)
{
	const char *prefill = core->nodes[places->prefill].name;
	const char *decode =
		places->decode == POLICY_NODE_NONE ? "" : core->nodes[places->decode].name;

	snprintf(request->facts.prefill_node, CONDUCTOR_NAME_BYTES, "%s", prefill);
	snprintf(request->facts.decode_node, CONDUCTOR_NAME_BYTES, "%s", decode);
	request->wait_noted = false;
	if (base)
		conductor__trace(core, request, "epoch %u resumes after %u tokens on %s%s%s: %s",
				 request->facts.epochs, base, prefill, *decode ? " → " : "", decode,
				 places->reason);
	else
		conductor__trace(core, request, "epoch %u dispatched to %s%s%s: %s",
				 request->facts.epochs, prefill, *decode ? " → " : "", decode,
				 places->reason);
}

enum placing { PLACED, BUSY, NO_NODE };

/* @choices: choices with the same output so far, `base` tokens. */
static enum placing place_group(struct conductor *core, struct request *request,
				const uint64_t choices[], uint32_t count, uint32_t base,
				struct policy_choice *ret_places)
{
	uint32_t left = request->facts.max_tokens - base;
	struct policy_request wish = {
		.prompt_tokens = request->facts.prompt_count + base,
		.predicted_tokens = count * MIN(left, core->config.predicted_tokens),
		.needs_decode = left > 1,
	};
	struct policy_view view = { core->view, core->node_count };

	if (core->dispatch_free == SLOT_NONE) {
		snprintf(ret_places->reason, sizeof ret_places->reason,
			 "as many dispatches as may be are under way");
		return BUSY;
	}
	view_fill(core, request, wish.prompt_tokens, count, true);
	if (core->config.policy->choose(&view, &wish, ret_places) == 0) {
		conductor__dispatch_new(core, request, ret_places, choices);
		placed_note(core, request, ret_places, base);
		return PLACED;
	}
	struct policy_choice anyone;
	view_fill(core, request, wish.prompt_tokens, count, false);
	return core->config.policy->choose(&view, &wish, &anyone) == 0 ? BUSY : NO_NODE;
}

/* By arrival: what has begun is older than what has not. */
static void wait_in_order(struct conductor *core, struct request *request)
{
	list_remove(&request->queue);
	struct list *at = core->waiting.prev;
	while (at != &core->waiting && list_entry(at, struct request, queue)->facts.arrival_ns >
					       request->facts.arrival_ns)
		at = at->prev;
	list_insert_after(&request->queue, at);
}

static void waits(struct conductor *core, struct request *request, enum placing placing,
		  const char *reason)
{
	request->retry_ns = core->now_ns + core->config.retry_ns;
	if (placing == BUSY)
		request->no_node_since_ns = 0;
	else if (!request->no_node_since_ns)
		request->no_node_since_ns = core->now_ns;
	if (!request->wait_noted)
		conductor__trace(core, request, "waits: %s%s", reason,
				 placing == BUSY ? " (each has refused; asked again soon)" : "");
	request->wait_noted = true;
	wait_in_order(core, request);
}

/* So many choices at most go to a decode node together: what the roomiest one has seats for. */
static uint32_t group_max(const struct conductor *core, const struct request *request)
{
	uint32_t most = 0;

	if (request->facts.max_tokens == 1)
		return CONDUCTOR_CHOICES_MAX; /* p makes them all */
	for (uint32_t i = 0; i < core->node_count; i++) {
		const struct node *node = &core->nodes[i];
		if (!serves(node, request) || !(node->role & ROLE_DECODE))
			continue;
		if (!node->max_num_seqs)
			return CONDUCTOR_CHOICES_MAX;
		most = MAX(most, node->max_num_seqs);
	}
	return most ? most : CONDUCTOR_CHOICES_MAX;
}

/* How the groups of one request fared: the worst of them, and why. */
struct placed {
	enum placing worst;
	char reason[POLICY_REASON_BYTES];
};

static void place_noted(struct conductor *core, struct request *request, const uint64_t choices[],
			uint32_t count, uint32_t base, struct placed *placed)
{
	struct policy_choice places = { 0 };
	enum placing placing = place_group(core, request, choices, count, base, &places);

	/* What every node has refused may be too much for any: by halves next time. */
	if (placing == BUSY && count > 1 && core->dispatch_free != SLOT_NONE)
		request->group_max = count / 2;
	if (placing <= placed->worst)
		return;
	placed->worst = placing;
	memcpy(placed->reason, places.reason, sizeof placed->reason);
}

/* Choices that have no output yet share one prefill; each other one has its own. */
static void place(struct conductor *core, struct request *request)
{
	struct choice *all = request_choices(core, request);
	uint64_t fresh[CONDUCTOR_CHOICES_MAX / 64] = { 0 };
	uint32_t fresh_count = 0, fresh_max = MIN(request->group_max, group_max(core, request));
	struct placed placed = { .worst = PLACED };

	list_remove(&request->queue);
	for (uint32_t i = 0; i < request->facts.choice_count; i++) {
		if (all[i].state != CHOICE_WAITING)
			continue;
		if (all[i].delivered) {
			uint64_t one[CONDUCTOR_CHOICES_MAX / 64] = { 0 };
			one[i / 64] = UINT64_C(1) << (i % 64);
			place_noted(core, request, one, 1, all[i].delivered, &placed);
			continue;
		}
		fresh[i / 64] |= UINT64_C(1) << (i % 64);
		if (++fresh_count < fresh_max)
			continue;
		place_noted(core, request, fresh, fresh_count, 0, &placed);
		memset(fresh, 0, sizeof fresh);
		fresh_count = 0;
	}
	if (fresh_count)
		place_noted(core, request, fresh, fresh_count, 0, &placed);
	if (placed.worst == PLACED)
		request->no_node_since_ns = 0;
	else
		waits(core, request, placed.worst, placed.reason);
}

void conductor__queue(struct conductor *core, struct request *request, bool full)
{
	if (full && request->retry_ns > core->now_ns) {
		wait_in_order(core, request);
		return;
	}
	list_remove(&request->queue);
	list_push_back(&core->urgent, &request->queue);
}

void conductor__place_urgent(struct conductor *core)
{
	while (!list_empty(&core->urgent))
		place(core, list_entry(core->urgent.next, struct request, queue));
}

/* A new round: whoever had no room is asked again. */
static void place_again(struct conductor *core, struct request *request)
{
	memset(request->refused_prefill, 0, sizeof request->refused_prefill);
	memset(request->refused_decode, 0, sizeof request->refused_decode);
	place(core, request);
}

/* When the nodes are full, most of those who wait would be refused again. The oldest ask for all:
 * so many placements go out in a round. */
#define ROUND_PLACEMENTS 16

/* @all: membership changed, so whoever waits is asked for at once. */
void conductor__place_waiting(struct conductor *core, bool all)
{
	uint64_t until = core->counters.dispatches + ROUND_PLACEMENTS;
	struct list round;

	/* Those that must go on waiting put themselves back; each is tried once. */
	list_init(&round);
	while (!list_empty(&core->waiting)) {
		struct list *link = core->waiting.next;
		list_remove(link);
		list_push_back(&round, link);
	}
	while (!list_empty(&round)) {
		struct request *request = list_entry(round.next, struct request, queue);
		if (!all && (request->retry_ns > core->now_ns || core->counters.dispatches >= until)) {
			wait_in_order(core, request);
			continue;
		}
		place_again(core, request);
	}
}

void conductor__place_oldest(struct conductor *core, uint32_t count)
{
	struct list *link = core->waiting.next;

	/* Who must go on waiting returns to its place, before `link`. */
	while (count-- && link != &core->waiting) {
		struct request *request = list_entry(link, struct request, queue);
		link = link->next;
		if (!request->no_node_since_ns)
			place_again(core, request);
	}
}
