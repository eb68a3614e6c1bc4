#include "conductor/core/policy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A ranking: the node with the smallest (first, second, turn) wins; ties go to the lower slot. */
struct rank {
	uint64_t first, second, turn;
};

typedef struct rank (*rank_fn)(const struct policy_node *node);

struct ranked {
	uint32_t best, count;
	uint64_t best_first, next_first;
};

static bool rank_less(const struct rank *a, const struct rank *b)
{
	if (a->first != b->first)
		return a->first < b->first;
	if (a->second != b->second)
		return a->second < b->second;
	return a->turn < b->turn;
}

static void rank_nodes(const struct policy_view *view, bool decode, rank_fn rank,
		       struct ranked *ret_ranked)
{
	struct ranked ranked = { .best = POLICY_NODE_NONE, .next_first = UINT64_MAX };
	struct rank best = { 0, 0, 0 };

	for (uint32_t i = 0; i < view->node_count; i++) {
		const struct policy_node *node = &view->nodes[i];
		if (!(decode ? node->can_decode : node->can_prefill))
			continue;
		struct rank mine = rank(node);
		ranked.count++;
		if (ranked.best == POLICY_NODE_NONE || rank_less(&mine, &best)) {
			if (ranked.best != POLICY_NODE_NONE)
				ranked.next_first = best.first;
			best = mine;
			ranked.best = i;
		} else if (mine.first < ranked.next_first) {
			ranked.next_first = mine.first;
		}
	}
	ranked.best_first = best.first;
	*ret_ranked = ranked;
}

static int choice_missing(struct policy_choice *ret_choice, const char *what)
{
	snprintf(ret_choice->reason, sizeof ret_choice->reason, "no %s node can take it now", what);
	return -ENOENT;
}

static void reason_append(struct policy_choice *choice, const char *noun, const char *unit,
			  const struct ranked *ranked)
{
	size_t used = strlen(choice->reason);
	char next[48] = "the only one";

	if (ranked->count > 1)
		snprintf(next, sizeof next, "next best %" PRIu64, ranked->next_first);
	snprintf(choice->reason + used, sizeof choice->reason - used, "%s%s %s %" PRIu64 " (%s)",
		 used ? ", " : "", noun, unit, ranked->best_first, next);
}

static struct rank rank_prefill_load(const struct policy_node *node)
{
	return (struct rank){ node->queued_tokens, node->running_tokens, node->prefill_turn };
}

static struct rank rank_decode_load(const struct policy_node *node)
{
	return (struct rank){ node->running_tokens, node->queued_tokens, node->decode_turn };
}

static int least_loaded_choose(const struct policy_view *view, const struct policy_request *request,
			       struct policy_choice *ret_choice)
{
	struct ranked ranked;

	ret_choice->decode = POLICY_NODE_NONE;
	ret_choice->reason[0] = '\0';
	rank_nodes(view, false, rank_prefill_load, &ranked);
	ret_choice->prefill = ranked.best;
	if (ranked.best == POLICY_NODE_NONE)
		return choice_missing(ret_choice, "prefill");
	reason_append(ret_choice, "least queued", "tokens", &ranked);
	if (!request->needs_decode)
		return 0;
	if (view->nodes[ranked.best].can_decode) {
		ret_choice->decode = ranked.best;
		return 0;
	}
	rank_nodes(view, true, rank_decode_load, &ranked);
	ret_choice->decode = ranked.best;
	if (ranked.best == POLICY_NODE_NONE)
		return choice_missing(ret_choice, "decode");
	reason_append(ret_choice, "least context", "tokens", &ranked);
	return 0;
}

static struct rank rank_prefill_turn(const struct policy_node *node)
{
	return (struct rank){ 0, 0, node->prefill_turn };
}

static struct rank rank_decode_turn(const struct policy_node *node)
{
	return (struct rank){ 0, 0, node->decode_turn };
}

static int round_robin_choose(const struct policy_view *view, const struct policy_request *request,
			      struct policy_choice *ret_choice)
{
	struct ranked ranked;

	ret_choice->decode = POLICY_NODE_NONE;
	rank_nodes(view, false, rank_prefill_turn, &ranked);
	ret_choice->prefill = ranked.best;
	if (ranked.best == POLICY_NODE_NONE)
		return choice_missing(ret_choice, "prefill");
	snprintf(ret_choice->reason, sizeof ret_choice->reason, "its turn among %u", ranked.count);
	if (!request->needs_decode)
		return 0;
	if (view->nodes[ranked.best].can_decode) {
		ret_choice->decode = ranked.best;
		return 0;
	}
	rank_nodes(view, true, rank_decode_turn, &ranked);
	ret_choice->decode = ranked.best;
	if (ranked.best == POLICY_NODE_NONE)
		return choice_missing(ret_choice, "decode");
	return 0;
}

static const struct conductor_policy policies[] = {
	{ "least-loaded", least_loaded_choose },
	{ "round-robin", round_robin_choose },
};

const struct conductor_policy *conductor_policy_find(const char *name)
{
	for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++)
		if (!strcmp(policies[i].name, name))
			return &policies[i];
	return NULL;
}

const char *conductor_policy_names(void)
{
	return "round-robin, least-loaded";
}
