/* Inside of the prefill core, shared by its files. */
#ifndef BATON_PREFILL_PREFILL_CORE_H
#define BATON_PREFILL_PREFILL_CORE_H

#include "base/list.h"
#include "base/sm.h"
#include "prefill-node/core/prefill.h"

enum prefill_state {
	PREFILL_FREE,
	PREFILL_QUEUED,
	PREFILL_RESERVING,
	PREFILL_RUNNING,
	PREFILL_SENDING,
	PREFILL_ENDING,
};

struct prefill_slot {
	uint8_t state; /* enum prefill_state */
	uint32_t generation;
	struct list link; /* free list, queue, or active (RESERVING to ENDING), by state */
	struct node_request request;
	uint32_t *tokens; /* [max_model_len], what request.tokens points to */
	struct node_stops stops;
	struct node_peer decode;
	bool has_decode;
	bool local;       /* d is this process */
	bool reserved;    /* Reserve is out or was accepted, so d has to be told of an early end */
	bool in_batch;
	struct kv_sequence sequence;
	uint32_t cached_tokens; /* found here */
	uint32_t computed;      /* tokens whose KV is there, cached ones included */
	/* The transfer: slices of blocks[base..]. Open ones are with the shell. */
	uint32_t base, slices_total, slices_open, slices_done, slices_hidden;
	uint8_t *resent;        /* bit per slice: it failed once already */
	uint64_t order;         /* of arrival */
	uint64_t arrived_ns, started_ns, progress_ns;
};

struct prefill {
	struct prefill_config config;
	struct kv_node *node;
	struct prefill_slot *slots;
	uint32_t blocks_max; /* per sequence */
	struct list free, queue, active;
	bool batch_out;
	bool draining;
	uint64_t drain_until_ns;
	uint64_t arrivals;
	struct node_load counters; /* the running totals of it */
};

extern const struct sm_state prefill__states[];

static inline node_handle prefill__handle(const struct prefill *p, const struct prefill_slot *slot)
{
	return node_handle_make(NODE_ROLE_PREFILL, (uint32_t)(slot - p->slots), slot->generation);
}

static inline bool prefill__sends(const struct prefill_slot *slot)
{
	return slot->has_decode && !slot->local;
}

static inline uint32_t prefill__slices(const struct prefill *p, uint32_t blocks)
{
	return blocks * p->config.layer_count;
}

/* Adds @slot to the queue in the order of service (schedule.c). */
void prefill__enqueue(struct prefill *p, struct prefill_slot *slot);

#endif
