/*
 * The decode core: what a decode node decides. Grants room to prompts that other nodes compute,
 * waits until every slice has landed and the first tokens are known, then runs all sequences
 * one token per batch until each has ended. It computes no prompt.
 *
 *     RESERVED -> LANDING -> RUNNING -> over
 *                   (any) -> ENDING -> over
 *
 *     RESERVED  room is taken, nothing has come yet
 *     LANDING   slices or first tokens have come, but not all of both
 *     RUNNING   at least one choice goes on
 *     ENDING    over for everyone else; a batch still uses its blocks, or a transfer that was
 *               taken back might still write into them (QUARANTINED)
 *
 * A request has one sequence per choice. Growth is optimistic: blocks are taken when a token
 * needs one; when none is left, cached blocks go first, then the youngest sequence of the lowest
 * priority is preempted: given back to the conductor, its full blocks left in the cache.
 *
 * Slots and page tables are taken at init. One thread.
 * The table of states and events stands in docs/states-decode.md.
 */
#ifndef BATON_DECODE_DECODE_H
#define BATON_DECODE_DECODE_H

#include "node/role.h"

struct decode;

struct decode_config {
	uint64_t incarnation;  /* this process's; a Reserve meant for another one is refused */
	const char *model;     /* as served; kept */
	uint32_t layer_count;
	uint32_t max_model_len;
	uint32_t sequences_max;     /* --max-num-seqs: choices, running or promised */
	uint32_t eos_ids[NODE_EOS_MAX], eos_count;
	uint64_t landing_timeout_ns; /* RESERVED, LANDING: since the last progress */
};

/* @node outlives the core. Return: 0, -EINVAL or -ENOMEM. */
int decode_new(const struct decode_config *config, struct kv_node *node,
	       struct decode **ret_decode);
void decode_free(struct decode *decode);
/* The process begins a new life under @incarnation; all of the old one is over already. */
void decode_renew(struct decode *decode, uint64_t incarnation);

/* What lib/node runs it by; `core` is the struct decode. */
extern const struct node_role_ops decode_role;

/* The same, typed. */
void decode_step(struct decode *decode, const struct node_event *event,
		 struct node_actions *actions);
void decode_schedule(struct decode *decode, uint64_t now_ns, struct node_batch *batch,
		     struct node_actions *actions);
void decode_load(const struct decode *decode, struct node_load *load);
bool decode_idle(const struct decode *decode);
bool decode_knows(const struct decode *decode, const struct node_ref *ref);
void decode_check(const struct decode *decode);
void decode_count_refs(const struct decode *decode, uint32_t refs[]);

#endif
