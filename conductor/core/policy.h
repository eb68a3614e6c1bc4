/*
 * Which prefill and which decode node a request goes to. A policy is a pure function of a view of
 * the nodes and of the request, and says in words why; it keeps no state of its own. What a
 * policy may need to remember (whose turn it is) stands in the view.
 */
#ifndef BATON_CONDUCTOR_CORE_POLICY_H
#define BATON_CONDUCTOR_CORE_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define POLICY_REASON_BYTES 192
#define POLICY_NODE_NONE UINT32_MAX

/* One slot of the node table. Slots that may not be chosen have both flags down. */
struct policy_node {
	const char *name;
	bool can_prefill, can_decode; /* role, state, model, room and earlier refusals considered */
	uint64_t queued_tokens;  /* uncached prompt tokens queued or running, own dispatches included */
	uint64_t running_tokens; /* context tokens running or reserved, own dispatches included */
	uint32_t prefix_tokens;  /* of this prompt in this node's cache, as far as is known */
	uint64_t prefill_turn, decode_turn; /* when it was last chosen; 0: never */
};

struct policy_view {
	const struct policy_node *nodes; /* [node_count] */
	uint32_t node_count;
};

struct policy_request {
	uint32_t prompt_tokens;    /* output so far of a resumed choice included */
	uint32_t predicted_tokens; /* output, of all choices together */
	bool needs_decode;         /* false: one token is left to make, which p samples */
};

struct policy_choice {
	uint32_t prefill, decode; /* indexes into the view; decode NONE when not needed */
	char reason[POLICY_REASON_BYTES];
};

struct conductor_policy {
	const char *name;
	/* Return: 0, or -ENOENT with the reason when a place is missing. A node that does both is
	 * preferred as its own decode node: its KV then need not travel. */
	int (*choose)(const struct policy_view *view, const struct policy_request *request,
		      struct policy_choice *ret_choice);
};

/* NULL when there is none of that name. */
const struct conductor_policy *conductor_policy_find(const char *name);
/* Names, separated by ", ", for messages. */
const char *conductor_policy_names(void);

#endif
