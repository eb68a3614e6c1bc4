/* Inside of the decode core, shared by its files. */
#ifndef BATON_DECODE_DECODE_CORE_H
#define BATON_DECODE_DECODE_CORE_H

#include "base/list.h"
#include "base/sm.h"
#include "decode-node/core/decode.h"

/* Of a request: one Ref. */
enum decode_state { DECODE_FREE, DECODE_RESERVED, DECODE_LANDING, DECODE_RUNNING, DECODE_ENDING };

/* Of a seat: one choice of a request. */
enum seat_state { SEAT_FREE, SEAT_WAITING, SEAT_RUNNING, SEAT_ENDING };

struct decode_request {
	uint8_t state; /* enum decode_state */
	uint32_t generation;
	struct list link; /* free list or, in the order of arrival, used */
	struct list seats;
	struct node_ref ref;
	struct node_sampling sampling;
	struct node_stops stops;
	int32_t priority;
	uint64_t order;  /* of arrival */
	uint64_t source; /* p's incarnation */
	bool local;      /* p is this process */
	struct kv_sequence landing; /* the prompt's blocks, until the choices take them over */
	uint32_t prompt_tokens;     /* prompt and output so far: whose KV comes from p */
	uint32_t output_base;       /* output so far: position of the first token */
	uint32_t seats_promised, promised_blocks; /* counted in decode.promised_blocks */
	uint64_t reserved_tokens;
	bool expecting;   /* a transfer is granted and not over */
	bool landed, first_known;
	bool reported;    /* transfer facts are in a Tokens already */
	uint64_t progress_ns, first_ns, landed_bytes, exposed_ns;
};

struct decode_seat {
	uint8_t state; /* enum seat_state */
	uint32_t generation;
	struct list link;    /* free list or the request's seats */
	struct list running; /* decode.running, in the order of service */
	struct decode_request *request;
	uint32_t choice;
	struct kv_sequence sequence;
	uint32_t token;    /* the last one sampled, not run yet */
	uint32_t position; /* of the next token to sample, among the choice's output */
	bool first_known;
	bool in_batch;
};

struct decode {
	struct decode_config config;
	struct kv_node *node;
	struct decode_request *requests; /* [sequences_max] */
	struct decode_seat *seats;       /* [sequences_max] */
	uint32_t blocks_max;
	struct list requests_free, requests_used, seats_free;
	struct list running; /* seats in the order of service; the last one is preempted first */
	uint32_t seats_free_count, running_count;
	uint64_t promised_blocks; /* growth that was promised to requests not running yet */
	bool batch_out;
	bool draining;
	uint64_t drain_until_ns;
	uint64_t arrivals;
	struct node_load counters;
};

extern const struct sm_state decode__states[];
extern const struct sm_state decode__seat_states[];

static inline node_handle decode__handle(const struct decode *d,
					 const struct decode_request *request)
{
	return node_handle_make(NODE_ROLE_DECODE, (uint32_t)(request - d->requests),
				request->generation);
}

static inline node_handle decode__seat_handle(const struct decode *d,
					      const struct decode_seat *seat)
{
	return node_handle_make(NODE_ROLE_DECODE, (uint32_t)(seat - d->seats), seat->generation);
}

/* schedule.c: puts a seat among the running ones. */
void decode__enter(struct decode *d, struct decode_seat *seat);

/* life.c */
struct decode_request *decode__find(const struct decode *d, const struct node_ref *ref);
struct decode_request *decode__by_handle(const struct decode *d, node_handle handle);
struct decode_request *decode__open(struct decode *d, const struct node_event *event);
/* The request, or one seat of it, is over for everyone else; what a batch or a transfer still
 * uses stays until it does not. The last seat's end ends the request. */
void decode__end(struct decode *d, struct decode_request *request, struct node_actions *actions);
void decode__seat_end(struct decode *d, struct decode_seat *seat, struct node_actions *actions);
/* The same, and the conductor is told to resume. */
void decode__return(struct decode *d, struct decode_request *request, enum returned_reason reason,
		    struct node_actions *actions);
void decode__seat_return(struct decode *d, struct decode_seat *seat, enum returned_reason reason,
			 struct node_actions *actions);
/* Frees what nothing uses any more of a request or seat in ENDING. */
void decode__settle(struct decode *d, struct decode_request *request, struct node_actions *actions);

#endif
