/*
 * What lib/node and the role cores (prefill-node/core, decode-node/core) say to each other: plain
 * data. lib/node knows the roles only through this header; the cores use base/ and kv/ beside it.
 *
 * A core is step(state, event) -> actions, and schedule(state) -> the next batch. It reads no
 * clock, sends nothing and allocates nothing after init. The shell owns the loop:
 *
 *     event arrives (frame, transfer, timer)  ->  step each role it concerns  ->  do the actions
 *     engine idle                             ->  schedule: decode first, then prefill, into
 *                                                 one batch; do the actions; run the batch
 *     batch done                              ->  NODE_BATCH_DONE to each role
 *
 * Rules for the shell
 *   R1  Actions are done in order, before the next event comes in: their pointers lead into the
 *       core's state and are valid until then. What R5 passes from core to core while doing them
 *       does not count as an event that comes in.
 *   R2  At most one batch is out. From schedule to NODE_BATCH_DONE the page tables, tokens and
 *       sampling facts that the batch points to do not change. An empty batch is not run and
 *       has no NODE_BATCH_DONE.
 *   R3  Every slice the shell was told to send (send range of a row, NODE_DO_SEND,
 *       NODE_DO_RESEND) comes back as exactly one NODE_SLICE_SENT, whatever happens; after
 *       NODE_DO_CANCEL_SEND those not yet on their way come back with -ECANCELED.
 *   R4  Every NODE_DO_GRANT with blocks ends with exactly one NODE_LANDED_ALL, NODE_REVOKED or
 *       NODE_EXPECT_FAILED. After any of these no byte of its blocks is written any more.
 *   R5  Under `both`, RELEASE, PEER_LOST, CONDUCTOR_LOST, DRAIN, UNDRAIN, TICK and BATCH_DONE go to
 *       both cores; NODE_DO_RESERVE with local set becomes the decode core's NODE_RESERVE, the
 *       answer (NODE_DO_GRANT or NODE_DO_REFUSE with local set) the prefill core's
 *       NODE_RESERVE_ANSWER, and NODE_DO_HAND_OVER the decode core's NODE_ADOPT, as it is.
 */
#ifndef BATON_NODE_ROLE_H
#define BATON_NODE_ROLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kv/key.h"
#include "kv/node.h"
#include "kv/sequence.h"

#define NODE_CHOICES_MAX 128
#define NODE_STOP_IDS_MAX 64
#define NODE_EOS_MAX 8
#define NODE_STOPS_MAX (NODE_STOP_IDS_MAX + NODE_EOS_MAX)
#define NODE_NAME_BYTES 64
#define NODE_MODEL_BYTES 256
#define NODE_HOST_BYTES 64
#define NODE_TRANSFER_BYTES 256 /* XFER_ADDRESS_BYTES_MAX */

enum node_role { NODE_ROLE_PREFILL = 1, NODE_ROLE_DECODE = 2, NODE_ROLE_BOTH = 3 };

/* Why a dispatch, or one choice of it, goes back to the conductor (message Returned). Every one
 * of them is a reason to resume elsewhere or later; the values are on the wire. */
enum returned_reason {
	RETURNED_REFUSED = 1,   /* d has no room for it now */
	RETURNED_PREEMPTED = 2, /* blocks ran out: the youngest of the lowest priority goes */
	RETURNED_TRANSFER = 3,  /* a slice failed twice, or d expects it no more */
	RETURNED_PEER_LOST = 4, /* the other node of the placement is gone */
	RETURNED_DRAIN = 5,     /* this node is to leave */
	RETURNED_NO_ROOM = 6,   /* queue full, or longer than this node's arena */
	RETURNED_TIMEOUT = 7,   /* the other node made no progress for too long */
	RETURNED_MODEL = 8,     /* another model is served here */
};
const char *node_returned_text(enum returned_reason reason);

enum node_finish { NODE_FINISH_NONE = 0, NODE_FINISH_STOP = 1, NODE_FINISH_LENGTH = 2 };

/* One placement of (some choices of) a request; all three together are its name. */
struct node_ref {
	uint64_t conductor;
	uint64_t request;
	uint32_t epoch;
};

static inline bool node_ref_equal(const struct node_ref *a, const struct node_ref *b)
{
	return a->conductor == b->conductor && a->request == b->request && a->epoch == b->epoch;
}

/* A slot of a role's core and which of its lives: a late completion for a reused slot is
 * recognised, and the two cores of a process never give the same. Fits the `user` of a transfer.
 * Never 0. */
typedef struct {
	uint64_t v;
} node_handle;

static inline node_handle node_handle_make(enum node_role role, uint32_t index, uint32_t generation)
{
	return (node_handle){ (uint64_t)generation << 32 | (uint32_t)role << 30 | index };
}

static inline uint32_t node_handle_index(node_handle handle)
{
	return (uint32_t)handle.v & ((1u << 30) - 1);
}

struct node_sampling {
	float temperature, top_p, min_p;
	uint32_t top_k;
	uint64_t seed;
	uint32_t top_logprobs;
	bool want_logprobs;
	bool ignore_eos;
	uint32_t max_tokens, min_tokens; /* output of each choice, resumed tokens included */
	uint32_t stop_ids[NODE_STOP_IDS_MAX];
	uint32_t stop_id_count;
};

/* The ids that end a choice: the client's, and the model's unless they are to be ignored. */
struct node_stops {
	uint32_t ids[NODE_STOPS_MAX];
	uint32_t count;
};

void node_stops_make(struct node_stops *stops, const struct node_sampling *sampling,
		     const uint32_t eos_ids[], uint32_t eos_count);
/* What @token at @position of the output means for its choice; @context_left: tokens the
 * sequence may still hold after it. The same rule on p and d. */
enum node_finish node_token_finish(const struct node_stops *stops,
				   const struct node_sampling *sampling, uint32_t token,
				   uint32_t position, uint32_t context_left);

struct node_peer {
	uint64_t incarnation;
	char name[NODE_NAME_BYTES];
	char host[NODE_HOST_BYTES];
	uint32_t port;
	uint8_t transfer[NODE_TRANSFER_BYTES]; /* xfer_address() */
	uint32_t transfer_bytes;
};

/* What p and d both have to know of a dispatch. Borrowed by the core, which copies it. */
struct node_request {
	struct node_ref ref;
	char model[NODE_MODEL_BYTES];
	struct node_sampling sampling;
	const uint32_t *tokens; /* prompt, then output so far */
	uint32_t token_count;
	uint32_t prompt_count;  /* of these; the rest is output */
	uint32_t choices[NODE_CHOICES_MAX];
	uint32_t choice_count;  /* 1 when there is output */
	struct kv_key root_key;
	int32_t priority;       /* lower is served first */
};

/* ---- events ---- */

enum node_event_kind {
	NODE_PREFILL,        /* conductor -> p: prefill */
	NODE_RESERVE_ANSWER, /* d -> p: answer */
	NODE_SLICE_SENT,     /* transfer, at p: slice */
	NODE_RESERVE,        /* p -> d: reserve */
	NODE_EXPECT_FAILED,  /* shell, at d: handle; no transfer could be granted */
	NODE_SLICE_LANDED,   /* transfer, at d: handle, bytes */
	NODE_LANDED_ALL,     /* transfer, at d: handle */
	NODE_REVOKED,        /* transfer, at d: handle */
	NODE_FIRST_TOKENS,   /* p -> d: first */
	NODE_ADOPT,          /* p's core -> d's core in one process: adopt */
	NODE_BATCH_DONE,     /* engine: batch */
	NODE_RELEASE,        /* conductor -> p, d; p -> d: release */
	NODE_PEER_LOST,      /* incarnation: that node's life is over */
	NODE_CONDUCTOR_LOST, /* incarnation: that conductor's is; its requests are released */
	NODE_DRAIN,          /* drain: take nothing new, give back what is left after the grace */
	NODE_UNDRAIN,
	NODE_TICK,           /* nothing but time, every 100 ms or so: deadlines */
	NODE_EVENT_KIND_COUNT,
};

struct node_first_token {
	uint32_t choice, token;
	bool ended;
};

struct node_batch;

struct node_event {
	enum node_event_kind kind;
	uint64_t now_ns;
	union {
		struct {
			struct node_request request;
			uint64_t dispatch;
			uint32_t ttft_ms; /* 0: none set */
			bool has_decode;  /* false: it ends with its first token */
			struct node_peer decode;
			const char *trace; /* NUL-terminated, may be "" */
		} prefill;
		struct {
			struct node_request request;
			uint64_t source; /* p's incarnation */
			const char *source_node;
			uint64_t target; /* d's incarnation as p knows it */
			uint32_t predicted_tokens; /* output, per choice */
			uint32_t remaining_ms;
			bool local; /* p is this process: the blocks come by NODE_ADOPT */
		} reserve;
		struct {
			struct node_ref ref;
			bool accepted;
			uint32_t cached_blocks;
			const char *reason;
			const uint8_t *ticket; /* for the shell; the core does not look at it */
			uint32_t ticket_bytes;
		} answer;
		struct {
			node_handle handle;
			uint32_t index; /* of the ticket's ranges */
			int status;     /* as XFER_SENT */
		} slice;
		struct {
			node_handle handle;
			uint32_t bytes;
		} landed; /* SLICE_LANDED, LANDED_ALL, REVOKED, EXPECT_FAILED */
		struct {
			struct node_ref ref;
			const struct node_first_token *tokens;
			uint32_t token_count;
		} first;
		struct {
			struct node_ref ref;
			struct kv_sequence *sequence; /* emptied: its references move to d's core */
			const struct node_first_token *tokens;
			uint32_t token_count;
		} adopt;
		struct {
			const struct node_batch *batch;
			const uint32_t *sampled; /* [batch->sample_count] tokens */
		} batch;
		struct {
			struct node_ref ref;
			bool one_choice;
			uint32_t choice;
			bool by_peer; /* from p: it has no say in what d runs already */
		} release;
		struct {
			uint64_t incarnation;
		} lost;
		struct {
			uint64_t grace_ns;
		} drain;
	};
};

/* Which role an event is for; 0: every one that runs here. */
enum node_role node_event_role(enum node_event_kind kind);

/* Events born while actions are being done (R1, R5) wait here, oldest first. Zero-initialise. */
struct node_event_queue {
	struct node_event *v;
	uint32_t count, capacity;
};
void node_event_queue_push(struct node_event_queue *queue, const struct node_event *event);
void node_event_queue_fini(struct node_event_queue *queue);

/* ---- actions ---- */

enum node_action_kind {
	/* p */
	NODE_DO_RESERVE,      /* Reserve to reserve.peer (or, local, to the decode core) */
	NODE_DO_SEND,         /* send: every layer of blocks first..end of a page table, complete */
	NODE_DO_RESEND,       /* resend: one slice, verified first */
	NODE_DO_CANCEL_SEND,  /* handle */
	NODE_DO_FIRST_TOKENS, /* FirstTokens to first.peer */
	NODE_DO_HAND_OVER,    /* adopt, to the decode core of this process */
	NODE_DO_RELEASE_PEER, /* Release to d, release.peer (or, local, to the decode core) */
	/* d */
	NODE_DO_GRANT,        /* grant: expect a transfer and send ReserveAnswer with its ticket */
	NODE_DO_REFUSE,       /* refuse: ReserveAnswer, not accepted */
	NODE_DO_REVOKE,       /* handle: take the transfer back */
	/* both */
	NODE_DO_TOKENS,       /* Tokens to the conductor */
	NODE_DO_RETURNED,     /* Returned to the conductor */
	NODE_DO_FORGET,       /* handle: its life is over, drop what the shell keeps for it */
	NODE_ACTION_KIND_COUNT,
};

/* A token of one choice. `sample` is its place among the batch's samples, for the logprobs. */
struct node_token {
	uint32_t choice, position, token;
	uint32_t sample;
	enum node_finish finish; /* STOP: by this very token */
};

struct node_action {
	enum node_action_kind kind;
	struct node_ref ref;
	node_handle handle;
	union {
		struct {
			const struct node_request *request;
			const struct node_peer *peer;
			uint32_t predicted_tokens;
			bool local;
		} reserve;
		struct {
			const kv_block_id *blocks; /* page table from block 0 */
			uint32_t first, end; /* send blocks[first..end) */
			/* d's cached_blocks: the slice of (block, layer) is range
			 * (block - base) * layers + layer of the ticket. */
			uint32_t base;
		} send;
		struct {
			const kv_block_id *blocks;
			uint32_t base;
			uint32_t index; /* range */
		} resend;
		struct {
			const struct node_peer *peer;
			const struct node_first_token *tokens;
			uint32_t token_count;
		} first;
		struct {
			struct kv_sequence *sequence;
			const struct node_first_token *tokens;
			uint32_t token_count;
		} adopt;
		struct {
			const struct node_peer *peer;
			bool local;
		} release;
		struct {
			uint64_t source; /* p's incarnation */
			const kv_block_id *blocks; /* page table from block 0 */
			/* The transfer fills blocks[cached_blocks..block_count); when that is
			 * nothing, nothing is expected and there is no ticket. */
			uint32_t cached_blocks;
			uint32_t block_count;
			bool local;
		} grant;
		struct {
			uint64_t source;
			const char *reason;
			bool local;
		} refuse;
		struct {
			const struct node_token *v;
			uint32_t count; /* 0: facts only */
			bool want_logprobs;
			bool has_prefill; /* p, with its first tokens */
			uint32_t cached_tokens;
			uint64_t prefill_ns, queue_ns;
			bool has_transfer; /* d, with its first tokens */
			uint64_t transfer_ns, transfer_bytes;
			bool has_hidden; /* p, once all is sent */
			uint32_t hidden_permille;
		} tokens;
		struct {
			bool one_choice;
			uint32_t choice;
			enum returned_reason reason;
			const char *detail; /* for people: what the reason means here */
		} returned;
	};
};

/* Filled by step and schedule; the shell empties it (node_actions_clear). */
struct node_actions {
	struct node_action *v;
	uint32_t count, capacity;
	struct node_token *tokens; /* what NODE_DO_TOKENS points into */
	uint32_t token_count, token_capacity;
	struct node_first_token *firsts;
	uint32_t first_count, first_capacity;
};

int node_actions_init(struct node_actions *actions, uint32_t slots_max, uint32_t samples_max);
void node_actions_fini(struct node_actions *actions);
void node_actions_clear(struct node_actions *actions);
struct node_action *node_actions_add(struct node_actions *actions, enum node_action_kind kind,
				     const struct node_ref *ref, node_handle handle);

/* ---- the batch ---- */

struct node_sample {
	uint32_t choice;
	uint32_t position;    /* of the sampled token among this choice's output */
	const uint32_t *bans; /* ids that may not come: the stops, before min_tokens */
	uint32_t ban_count;
};

/* Consecutive tokens of one sequence. */
struct node_rows {
	enum node_role role; /* whose: PREFILL or DECODE */
	node_handle handle;  /* p: the request; d: the sequence */
	const kv_block_id *blocks; /* page table from token 0 */
	uint32_t position;         /* of tokens[0] in the sequence */
	const uint32_t *tokens;
	uint32_t token_count;
	const struct node_sampling *sampling;
	uint32_t sample_first, sample_count; /* of batch->samples; from the last token */
	/* p: blocks[send_first..send_end) are final once this row has run: send their slices as
	 * the layers report. Their ranges: (block - send_base) * layers + layer. */
	uint32_t send_first, send_end, send_base;
};

/* Room left is asked and given here: roles add rows in turn, decode first. */
struct node_batch {
	struct node_rows *rows;
	uint32_t row_count, row_max;       /* --max-num-seqs */
	struct node_sample *samples;
	uint32_t sample_count, sample_max;
	struct kv_copy *copies;            /* to be done before the rows run */
	uint32_t copy_count;               /* at most one per row */
	uint32_t token_count, token_max;   /* --max-num-batched-tokens */
};

int node_batch_init(struct node_batch *batch, uint32_t row_max, uint32_t token_max);
void node_batch_fini(struct node_batch *batch);
void node_batch_clear(struct node_batch *batch);

/* ---- a role, as lib/node sees it ---- */

/* Part of Report; the block counts are kv_node's. */
struct node_load {
	uint32_t running;         /* sequences in decode */
	uint32_t waiting;         /* queued prefills */
	uint64_t queued_tokens;   /* uncached prompt tokens queued or running */
	uint64_t running_tokens;  /* context of running sequences */
	uint64_t reserved_tokens; /* prompt and predicted output of those not running yet */
	uint64_t preemptions;
	uint64_t prefix_queries, prefix_hits; /* tokens; p alone counts, or each would count twice */
	uint64_t prefill_tokens, decode_tokens;
	uint64_t slices_resent;
	uint64_t events_stale;    /* for dispatches or slots that are over */
};

struct node_role_ops {
	const char *name;
	enum node_role role;
	/* Events that are another role's are a CHECK; late ones are counted and dropped. */
	void (*step)(void *core, const struct node_event *event, struct node_actions *actions);
	void (*schedule)(void *core, uint64_t now_ns, struct node_batch *batch,
			 struct node_actions *actions);
	void (*load)(const void *core, struct node_load *load); /* adds to @load */
	bool (*idle)(const void *core); /* nothing left of any dispatch: drained, when draining */
	/* Is there a dispatch of this name? For the shell's Release routing and for tests. */
	bool (*knows)(const void *core, const struct node_ref *ref);
	void (*check)(const void *core); /* walks the invariants */
	/* Adds the references its sequences hold to @refs[block], for the check of invariant 2. */
	void (*count_refs)(const void *core, uint32_t refs[]);
};

#endif
