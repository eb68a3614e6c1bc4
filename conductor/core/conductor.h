/*
 * The conductor's decisions: who serves a request, what is delivered to its client, who is a
 * member. A pure step function: the event carries the time, the actions are plain data which the
 * shell performs before the next step. No clock, no socket, no allocation after init.
 *
 * A request has choices (n). A *dispatch* places some of its choices on a prefill node p and a
 * decode node d under one epoch. Whenever a placement ends before its choices do (a node lost,
 * preemption, drain, a refusal) the choices left over are placed again under the next epochs with
 * prompt + output so far: that is *resume*, the one way to go on.
 *
 * Invariants (conductor_check() walks them)
 *   C1  A choice is WAITING (no place), PLACED (in exactly one live dispatch) or DONE. A request
 *       ends when all its choices are DONE, exactly once, and its slot is then free.
 *   C2  What is delivered of a choice is a gapless run from position 0: only tokens of the
 *       choice's present dispatch, from the node that has to make them, in their order. Tokens
 *       of d wait for the first one, which p makes; nothing else ever waits.
 *   C3  A dispatch's p and d are members (not fenced, not gone). When a member is lost, no
 *       dispatch names it any more at the end of the step.
 *   C4  At the end of a dispatch both p and d are told (Release), whatever the cause.
 *   C5  Every frame that belongs to no live dispatch of its sender is refused and counted; its
 *       sender is told to release what it still holds.
 */
#ifndef BATON_CONDUCTOR_CORE_CONDUCTOR_H
#define BATON_CONDUCTOR_CORE_CONDUCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "conductor/core/policy.h"

#define CONDUCTOR_NODES_MAX 256
#define CONDUCTOR_CHOICES_MAX 128
#define CONDUCTOR_NAME_BYTES 64
#define CONDUCTOR_TRACE_BYTES 2048
#define CONDUCTOR_CHOICE_ALL UINT32_MAX
#define CONDUCTOR_NODE_NONE UINT32_MAX

struct conductor;

/* A member in one life of its slot; a late frame for an earlier life is recognised. */
struct conductor_node_id {
	uint32_t index, generation;
};

enum conductor_role { ROLE_PREFILL = 1, ROLE_DECODE = 2, ROLE_BOTH = 3 };

enum conductor_node_state {
	NODE_FREE,     /* the slot was never used */
	NODE_STARTING, /* a member that may not be given work yet */
	NODE_READY,
	NODE_DRAINING, /* finishes or hands back what it has */
	NODE_DRAINED,
	NODE_FENCED, /* its lease ran out; its connection is open, its frames are refused */
	NODE_GONE,   /* no connection; the slot remembers name and incarnation */
};

/* Why a choice needs a new place; with its name in traces and metrics. */
#define CONDUCTOR_CAUSE_LIST(C)                                                                  \
	C(REFUSED, "refused")       /* d had no room, before any compute was spent */            \
	C(PREEMPTED, "preempted")   /* d made room for an older one */                           \
	C(DRAINED, "drained")       /* the node drains or changes its role */                    \
	C(PEER_LOST, "peer-lost")   /* p lost d or d lost p */                                   \
	C(TRANSFER, "transfer")     /* KV did not arrive whole */                                \
	C(NO_MEMORY, "no-memory")   /* p or d ran out of blocks */                               \
	C(DEADLINE, "deadline")     /* a state at the node lasted too long */                    \
	C(ERROR, "error")           /* the node says it failed */                                \
	C(NODE_LOST, "node-lost")   /* the conductor lost the node */                            \
	C(PROTOCOL, "protocol")     /* tokens out of order: the node's word is not taken */

enum conductor_cause {
#define CONDUCTOR_CAUSE_ENUM(name, text) CAUSE_##name,
	CONDUCTOR_CAUSE_LIST(CONDUCTOR_CAUSE_ENUM)
#undef CONDUCTOR_CAUSE_ENUM
	CAUSE_COUNT
};

const char *conductor_cause_name(enum conductor_cause cause);

enum conductor_finish { CONDUCTOR_GOES_ON, CONDUCTOR_STOP, CONDUCTOR_LENGTH };

struct conductor_config {
	uint64_t incarnation; /* of this conductor: what every Ref names */
	uint32_t requests_max;
	uint32_t dispatches_max; /* live ones; 0: 2 * requests_max + 256 */
	uint32_t traces_max;     /* finished requests remembered; 0: 256 */
	uint32_t model_count;
	const struct conductor_policy *policy;
	uint64_t lease_ns, resume_wait_ns;
	uint64_t retry_ns; /* between rounds of placements that every node refused; 0: 50 ms */
	uint32_t predicted_tokens;
	uint32_t faults_max; /* placements that failed in a row without a token; 0: 8 */
};

struct conductor_hello {
	const char *name;
	uint64_t incarnation;
	uint32_t role; /* enum conductor_role */
	uint32_t model;
	uint32_t block_tokens, blocks_total;
	uint32_t max_num_seqs, max_model_len; /* 0: not said */
	uint64_t connection; /* the shell's own name for it; comes back in the answer */
};

struct conductor_report {
	uint32_t role, state; /* state: 1 starting, 2 ready, 3 draining, 4 drained */
	uint64_t dispatches_seen, sequence;
	uint32_t running, waiting;
	uint64_t queued_tokens, running_tokens, reserved_tokens;
	uint32_t blocks_free, blocks_cached, blocks_used, blocks_reserved, blocks_quarantined;
	uint64_t transfer_bytes_shm, transfer_bytes_tcp, transfer_bytes_rdma, transfer_bytes_sent;
	uint64_t slices_corrupt, preemptions, prefix_queries, prefix_hits;
	uint64_t prefill_tokens, decode_tokens, frames_refused;
};

struct conductor_submit {
	const char *name; /* the client's id, copied */
	uint32_t model, prompt_count, choice_count, max_tokens;
	int32_t priority;
	uint64_t arrival_ns, deadline_ns; /* deadline 0: none */
};

struct conductor_ref {
	uint64_t conductor, request;
	uint32_t epoch;
};

/* What nodes measured of a dispatch; a zero field was not said. */
struct conductor_measured {
	bool has_cached;
	uint32_t cached_tokens, prefill_us, queue_us, transfer_us;
	uint64_t transfer_bytes;
	uint32_t transport, hidden_permille;
};

enum conductor_command { COMMAND_DRAIN = 1, COMMAND_UNDRAIN = 2, COMMAND_ROLE = 3 };

enum conductor_event_kind {
	EVENT_TICK,
	EVENT_NODE_JOINED,    /* hello */
	EVENT_NODE_LOST,      /* node: its connection went */
	EVENT_NODE_REPORT,    /* node, report */
	EVENT_SUBMITTED,      /* request, submit */
	EVENT_CANCELLED,      /* request */
	EVENT_CHOICE_STOPPED, /* request, choice: the front finished it (a stop string) */
	EVENT_MEASURED,       /* node, ref, measured */
	EVENT_TOKENS,         /* node, ref, choice, position, count, finish, stop_id */
	EVENT_RETURNED,       /* node, ref, choice or ALL, cause, detail */
	EVENT_COMMAND,        /* node, command, role */
};

struct conductor_event {
	enum conductor_event_kind kind;
	uint64_t now_ns;
	struct conductor_node_id node;
	uint64_t request;
	struct conductor_ref ref;
	uint32_t choice;
	uint32_t position, count;
	enum conductor_finish finish;
	bool has_stop_id;
	uint32_t stop_id;
	enum conductor_cause cause;
	const char *detail; /* NULL: none */
	enum conductor_command command;
	uint32_t role;
	const struct conductor_hello *hello;
	const struct conductor_report *report;
	const struct conductor_submit *submit;
	const struct conductor_measured *measured;
	int result; /* the shell's: what the step answered */
};

enum conductor_action_kind {
	/* The prompt and, with one choice, its first `position` output tokens go to p. The shell
	 * forgets tokens of these choices at and past `position`, delivered ones never are. */
	ACTION_PREFILL, /* node (p), peer (d, index NONE: none), ref, choices, position, dispatch */
	ACTION_RELEASE, /* node, ref, choice or ALL */
	/* The tokens of the event that is being stepped are right: keep them at their positions. */
	ACTION_KEEP,    /* request, choice, position, count */
	ACTION_DELIVER, /* request, choice, position, count, finish, stop_id, cached_tokens */
	ACTION_FAIL,    /* request, status, text: the client is told; ACTION_END follows */
	ACTION_END,     /* request: over, the shell frees what it holds of it */
	ACTION_COMMAND, /* node, command, role */
	ACTION_NODE_ADMIT,  /* node, connection */
	ACTION_NODE_REFUSE, /* connection, error, text */
	ACTION_NODE_FENCE,  /* node: told to the log; the connection stays */
	ACTION_NODE_CLOSE,  /* node: its connection is closed, no EVENT_NODE_LOST is needed */
};

struct conductor_action {
	enum conductor_action_kind kind;
	struct conductor_node_id node, peer;
	struct conductor_ref ref;
	uint64_t request, connection, dispatch;
	uint64_t choices[CONDUCTOR_CHOICES_MAX / 64]; /* bits */
	uint32_t choice, position, count;
	enum conductor_finish finish;
	bool has_stop_id;
	uint32_t stop_id, cached_tokens;
	enum conductor_command command;
	uint32_t role;
	int status, error;
	const char *text; /* valid until the next step */
};

struct conductor_actions {
	struct conductor_action *items; /* [capacity] */
	uint32_t count, capacity;
};

int conductor_actions_init(struct conductor_actions *actions, const struct conductor *core);
void conductor_actions_fini(struct conductor_actions *actions);

/* Return: 0, -ENOMEM, or -EINVAL when a limit is out of range. */
int conductor_new(const struct conductor_config *config, struct conductor **ret_core);
void conductor_free(struct conductor *core);

/*
 * conductor_step() - one event
 * Empties @ret_actions first. The actions must be performed, in their order, before the next
 * step: some borrow texts and some refer to the event.
 * Return: 0; -EEXIST or -ENOSPC for a submission that is not taken (no action tells of it);
 * -ESTALE for an event of a request, dispatch or node that is no more (counted where it is a
 * node's frame).
 */
int conductor_step(struct conductor *core, const struct conductor_event *event,
		   struct conductor_actions *ret_actions);

/* Walks the invariants; CHECKs. O(everything). */
void conductor_check(const struct conductor *core);

/* ---- what others may look at ---- */

struct conductor_node_view {
	struct conductor_node_id id;
	enum conductor_node_state state;
	const char *name;
	uint64_t incarnation;
	uint32_t role, model, blocks_total, block_tokens;
	const struct conductor_report *report;
	uint64_t report_ns;
	uint64_t queued_tokens, running_tokens; /* as policies see it */
	uint32_t prefills, decodes;             /* live dispatches that name it */
	uint64_t frames_refused;                /* over all its lives */
	uint64_t dispatches;
};

uint32_t conductor_node_count(const struct conductor *core); /* slots; FREE ones among them */
void conductor_node_view(const struct conductor *core, uint32_t index,
			 struct conductor_node_view *ret_view);
/* Index of the slot that remembers the name, or NONE. */
uint32_t conductor_node_find(const struct conductor *core, const char *name);
const char *conductor_node_state_name(enum conductor_node_state state);
const char *conductor_role_name(uint32_t role);

/* Every model has a ready node for prefill and one for decode. */
bool conductor_ready(const struct conductor *core);

/* Log-spaced counts, about 9 % wide each: enough for p50, p90, p99 of latencies. */
#define CONDUCTOR_QUANTILE_BUCKETS 256
struct conductor_quantiles {
	uint64_t counts[CONDUCTOR_QUANTILE_BUCKETS], total;
};
double conductor_quantile_ms(const struct conductor_quantiles *quantiles, double q); /* NaN: none */

struct conductor_counters {
	uint64_t submitted, finished, failed, cancelled;
	uint64_t dispatches, resumes[CAUSE_COUNT];
	uint64_t frames_refused; /* of members and of fenced nodes */
	uint64_t nodes_fenced, nodes_lost, nodes_joined, hellos_refused;
	uint64_t tokens_delivered;
	uint64_t transfer_bytes[5]; /* by transport, as measured per dispatch */
	uint64_t hidden_permille_sum, hidden_count; /* of the transfers that prefill hid in part */
	uint32_t requests_open, requests_waiting, requests_running, dispatches_live;
};

void conductor_counters(const struct conductor *core, struct conductor_counters *ret_counters);
const struct conductor_quantiles *conductor_ttft(const struct conductor *core);
const struct conductor_quantiles *conductor_tbt(const struct conductor *core);

/* A request's history, in words; of one that is open or one of the last that ended. */
struct conductor_trace_view {
	const char *name, *state;
	uint32_t model;
	const char *lines; /* "MS\tTEXT\n" each, times since arrival */
	uint32_t lines_dropped;
	uint32_t dispatches, prompt_tokens, output_tokens, cached_tokens;
	uint64_t ttft_us, total_us; /* 0: not yet */
	uint32_t queue_us, prefill_us, transfer_us, transport, hidden_permille;
	uint64_t transfer_bytes;
	const char *prefill_node, *decode_node; /* of its last dispatch; "" when none */
};

int conductor_trace_find(const struct conductor *core, const char *name,
			 struct conductor_trace_view *ret_view); /* -ENOENT */

/* The state of a dispatch, for tests and traces: "sent", "prefilled", "decoding"; NULL: no more. */
const char *conductor_dispatch_state(const struct conductor *core, uint64_t request, uint32_t epoch);

#endif
