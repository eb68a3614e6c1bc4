/*
 * The prefill core: what a prefill node decides. Takes dispatches in order, asks d for room when
 * the first chunk of one is about to run, computes the prompt in chunks, has each block sent as
 * soon as it is final, and reports the first token of each choice. It never decodes past that.
 *
 *     QUEUED -> RESERVING -> RUNNING -> SENDING -> over
 *                     (any) -> ENDING -> over
 *
 *     QUEUED     waits its turn; holds no block
 *     RESERVING  holds its blocks (cached prefix pinned), waits for d's answer
 *     RUNNING    its chunks are in batches
 *     SENDING    first token is out; slices are still on their way
 *     ENDING     over for everyone else; a batch or slices still use its blocks
 *
 * Slots, queue and token memory are bounded and taken at init. One thread.
 * The table of states and events stands in docs/states-prefill.md.
 */
#ifndef BATON_PREFILL_PREFILL_H
#define BATON_PREFILL_PREFILL_H

#include "node/role.h"

struct prefill;

struct prefill_config {
	uint64_t incarnation;      /* this process's: a dispatch with d == this one stays here */
	const char *model;         /* as served; kept */
	uint32_t layer_count;      /* slices per block */
	uint32_t max_model_len;
	uint32_t requests_max;     /* queued and running */
	uint32_t chunk_tokens;     /* --prefill-chunk: tokens of one prompt per batch, at most */
	uint32_t ahead_tokens;     /* prompts are begun while fewer tokens than this wait for a
				      batch; --max-num-batched-tokens */
	uint32_t predicted_tokens; /* output to ask room for: min(max_tokens, this) */
	uint32_t eos_ids[NODE_EOS_MAX], eos_count;
	uint64_t answer_timeout_ns; /* RESERVING */
	uint64_t send_timeout_ns;   /* SENDING, since the last slice that arrived */
};

/* @node outlives the core. Return: 0, -EINVAL or -ENOMEM. */
int prefill_new(const struct prefill_config *config, struct kv_node *node,
		struct prefill **ret_prefill);
void prefill_free(struct prefill *prefill);
/* The process begins a new life under @incarnation; all of the old one is over already. */
void prefill_renew(struct prefill *prefill, uint64_t incarnation);

/* What lib/node runs it by; `core` is the struct prefill. */
extern const struct node_role_ops prefill_role;

/* The same, typed. */
void prefill_step(struct prefill *prefill, const struct node_event *event,
		  struct node_actions *actions);
void prefill_schedule(struct prefill *prefill, uint64_t now_ns, struct node_batch *batch,
		      struct node_actions *actions);
void prefill_load(const struct prefill *prefill, struct node_load *load);
bool prefill_idle(const struct prefill *prefill);
bool prefill_knows(const struct prefill *prefill, const struct node_ref *ref);
void prefill_check(const struct prefill *prefill);
void prefill_count_refs(const struct prefill *prefill, uint32_t refs[]);

#endif
