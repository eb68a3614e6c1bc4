/* Shared inside conductor/core only. */
#ifndef BATON_CONDUCTOR_CORE_PRIVATE_H
#define BATON_CONDUCTOR_CORE_PRIVATE_H

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/map.h"
#include "base/sm.h"
#include "conductor/core/conductor.h"

#define SLOT_NONE UINT32_MAX
#define NODE_WORDS (CONDUCTOR_NODES_MAX / 64)
#define ERROR_TEXT_BYTES 256

enum choice_state { CHOICE_WAITING, CHOICE_PLACED, CHOICE_DONE };
enum dispatch_state { DISPATCH_FREE, DISPATCH_SENT, DISPATCH_PREFILLED, DISPATCH_DECODING };
enum request_state { REQUEST_FREE, REQUEST_OPEN };

extern const struct sm_state conductor__choice_states[], conductor__dispatch_states[],
	conductor__node_states[];

struct choice {
	uint8_t state;      /* enum choice_state */
	bool has_first;     /* the token at base came */
	enum conductor_finish finish; /* said by the node, maybe not delivered yet */
	bool has_stop_id;
	uint32_t stop_id;
	uint32_t dispatch;  /* slot; while PLACED */
	uint32_t base;      /* tokens delivered when it was placed */
	uint32_t next;      /* the position that d sends next; base + 1 at first */
	uint32_t delivered; /* tokens the front has */
	uint32_t faults;    /* placements that failed since the last token */
	uint32_t load;      /* tokens it counts for on d: prompt and output, predicted or made */
	uint64_t last_ns;   /* of its last delivery */
};

struct dispatch {
	uint8_t state;
	uint32_t request; /* slot */
	uint32_t epoch;
	struct conductor_node_id prefill, decode; /* index NONE: none, or lost with its part over */
	uint32_t choice_count;                    /* placed here and not done */
	uint64_t number;                          /* among this conductor's dispatches to p */
	uint64_t prefill_tokens;                  /* load on p until its prompt is computed */
	struct list of_request;
	struct list unseen; /* of p; alone when seen */
	uint32_t next_free;
};

struct trace_text {
	uint32_t bytes, dropped;
	char text[CONDUCTOR_TRACE_BYTES];
};

struct request_facts {
	char name[CONDUCTOR_NAME_BYTES];
	uint64_t id;
	uint32_t model, prompt_count, choice_count, max_tokens;
	int32_t priority;
	uint64_t arrival_ns, deadline_ns, first_token_ns, end_ns;
	uint32_t epochs, tokens, cached_tokens;
	bool has_cached;
	struct conductor_measured measured;
	char prefill_node[CONDUCTOR_NAME_BYTES], decode_node[CONDUCTOR_NAME_BYTES];
	const char *state; /* "waiting", "running", "finished", "cancelled", "failed" */
};

struct request {
	uint8_t state;
	struct request_facts facts;
	uint32_t waiting_count, placed_count; /* choices */
	uint32_t group_max; /* choices that are placed together at most; halved when all refuse */
	struct list dispatches;
	struct list open;  /* of the core: all open ones, oldest first */
	struct list queue; /* in core->urgent or core->waiting, or alone */
	uint64_t retry_ns;         /* when to try again */
	uint64_t no_node_since_ns; /* no member could take it, busy or not; 0: one could */
	bool wait_noted;
	uint64_t refused_prefill[NODE_WORDS], refused_decode[NODE_WORDS];
	char error_text[ERROR_TEXT_BYTES];
	uint32_t next_free;
};

struct node {
	uint8_t state;
	uint32_t generation;
	char name[CONDUCTOR_NAME_BYTES];
	uint64_t incarnation;
	bool fenced; /* this incarnation may not come back */
	bool drain_wanted;
	uint32_t role, model, block_tokens, blocks_total, max_num_seqs, max_model_len;
	struct conductor_report report;
	uint64_t report_ns, lease_ns; /* lease_ns: when it ends */
	uint64_t dispatch_count;
	struct list unseen; /* dispatches to it that no report includes yet, by number */
	uint64_t unseen_tokens, placed_tokens; /* our load as p, not yet in a report; as d */
	uint64_t prefilled_tokens, left_tokens; /* our load that a report may still name and is gone */
	uint64_t prefill_turn, decode_turn;
	uint64_t frames_refused, refused_ns; /* refused_ns: first refused frame of a fenced one */
};

struct ended {
	struct request_facts facts;
	struct trace_text trace;
};

struct conductor {
	struct conductor_config config;
	uint64_t now_ns, tick_ns;
	struct conductor_actions *actions; /* of the step that is running */

	struct node nodes[CONDUCTOR_NODES_MAX];
	uint32_t node_count; /* slots ever used */
	struct policy_node view[CONDUCTOR_NODES_MAX];
	uint64_t turn; /* decisions made */
	bool nodes_changed;
	uint32_t room_made; /* choices that have ended in this step */

	struct request *requests;
	struct choice *choices; /* [requests_max][CONDUCTOR_CHOICES_MAX], touched only as used */
	struct trace_text *traces;
	uint32_t request_free;
	struct map request_by_id;
	struct list open, urgent, waiting;

	struct dispatch *dispatches;
	uint32_t dispatch_free;

	struct ended *ended; /* ring of traces_max */
	uint64_t ended_count;

	struct conductor_counters counters;
	struct conductor_quantiles ttft, tbt;
};

/* conductor.c */
struct conductor_action *conductor__act(struct conductor *core, enum conductor_action_kind kind);
struct request *conductor__request(struct conductor *core, uint64_t id);

static inline uint32_t request_slot(const struct conductor *core, const struct request *request)
{
	return (uint32_t)(request - core->requests);
}

static inline struct choice *request_choices(const struct conductor *core,
					     const struct request *request)
{
	return core->choices + (size_t)request_slot(core, request) * CONDUCTOR_CHOICES_MAX;
}

static inline bool node_id_equal(struct conductor_node_id a, struct conductor_node_id b)
{
	return a.index == b.index && a.generation == b.generation;
}

static inline bool node_is_member(const struct node *node)
{
	return node->state >= NODE_STARTING && node->state <= NODE_DRAINED;
}

/* members.c */
struct node *conductor__member(struct conductor *core, struct conductor_node_id id);
int conductor__joined(struct conductor *core, const struct conductor_event *event);
int conductor__lost(struct conductor *core, const struct conductor_event *event);
int conductor__report(struct conductor *core, const struct conductor_event *event);
int conductor__command(struct conductor *core, const struct conductor_event *event);
void conductor__leases(struct conductor *core);
void conductor__leases_extend(struct conductor *core);
/* A frame that is not taken: counted, and its sender told to let go when it may be told. */
int conductor__refuse(struct conductor *core, const struct conductor_event *event, uint32_t choice);
void conductor__refused_count(struct conductor *core, struct conductor_node_id id);
uint64_t conductor__queued_tokens(const struct node *node);
uint64_t conductor__running_tokens(const struct node *node);

/* request.c */
int conductor__submitted(struct conductor *core, const struct conductor_event *event);
int conductor__cancelled(struct conductor *core, const struct conductor_event *event);
int conductor__stopped(struct conductor *core, const struct conductor_event *event);
int conductor__tokens(struct conductor *core, const struct conductor_event *event);
int conductor__returned(struct conductor *core, const struct conductor_event *event);
int conductor__measured(struct conductor *core, const struct conductor_event *event);
void conductor__deadlines(struct conductor *core);
void conductor__fail(struct conductor *core, struct request *request, int status,
		     const char *format, ...) __attribute__((format(printf, 4, 5)));

/* dispatch.c */
struct dispatch *conductor__dispatch_new(struct conductor *core, struct request *request,
					 const struct policy_choice *places,
					 const uint64_t choices[CONDUCTOR_CHOICES_MAX / 64]);
struct dispatch *conductor__dispatch_find(struct conductor *core, struct request *request,
					  uint32_t epoch);
/* The choice leaves its dispatch (done or to be placed again); ends the dispatch with its last. */
void conductor__choice_leave(struct conductor *core, struct request *request, uint32_t choice,
			     enum choice_state state);
/* One choice, or ALL that are left, goes back to waiting. @why: words for the trace. */
void conductor__abandon(struct conductor *core, struct dispatch *dispatch, uint32_t choice,
			enum conductor_cause cause, const char *why);
void conductor__dispatch_end(struct conductor *core, struct dispatch *dispatch);
void conductor__release_both(struct conductor *core, const struct dispatch *dispatch,
			     uint32_t choice);
void conductor__node_lost_dispatches(struct conductor *core, struct conductor_node_id id,
				     const char *why);
/* p has no further part in a dispatch whose d has begun. */
void conductor__prefill_out(struct conductor *core, struct dispatch *dispatch,
			    enum conductor_cause cause, const char *why);
void conductor__dispatch_seen(struct conductor *core, struct dispatch *dispatch);
/* Its prompt is computed, or is to be no more: from now on it is no load on p. */
void conductor__dispatch_prefilled(struct conductor *core, struct dispatch *dispatch);
/* A choice of it has more output than was predicted. */
void conductor__choice_grow(struct conductor *core, struct request *request, struct choice *choice);
const char *conductor__node_name(const struct conductor *core, struct conductor_node_id id);

/* place.c */
/* Some choice of it wants a place. @full: a node had no room; when all had none a moment ago
 * (other choices of the request asked), it waits for the next round with them. */
void conductor__queue(struct conductor *core, struct request *request, bool full);
void conductor__place_urgent(struct conductor *core);
void conductor__place_waiting(struct conductor *core, bool all);
/* Choices have ended: as many of those who wait may have room now, the oldest first. */
void conductor__place_oldest(struct conductor *core, uint32_t count);

/* trace.c */
void conductor__trace(struct conductor *core, struct request *request, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
void conductor__trace_ended(struct conductor *core, struct request *request);
void conductor__quantile_add(struct conductor_quantiles *quantiles, uint64_t ns, uint64_t weight);

#endif
