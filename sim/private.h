/* Shared inside sim/ only. */
#ifndef BATON_SIM_PRIVATE_H
#define BATON_SIM_PRIVATE_H

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/rand.h"
#include "conductor/codec.h"
#include "conductor/core/conductor.h"
#include "decode-node/core/decode.h"
#include "node/codec.h"
#include "node/role.h"
#include "prefill-node/core/prefill.h"
#include "sim/sim.h"

#define SIM_LAYERS 2
#define SIM_BLOCK_TOKENS 16
#define SIM_VOCAB 997
#define SIM_CONTEXT 256
#define SIM_NODES_MAX 16
#define SIM_MODEL "sim"

struct sim;

/* ---- world.c: time, processes, connections ---- */

struct sim_process {
	const char *name;
	uint32_t index;
	uint64_t life; /* counts up at each crash: what was meant for an earlier one is lost */
	bool alive;
	uint64_t frozen_ns; /* stands still until then */
};

/* @alive false: the process is not there any more; free what @argument holds. */
typedef void (*sim_event_fn)(struct sim *sim, void *argument, bool alive);

/* Runs when it is due, later when the process is frozen. @process NULL: always runs. */
void sim_post(struct sim *sim, struct sim_process *process, uint64_t delay_ns, sim_event_fn run,
	      void *argument);
bool sim_step(struct sim *sim); /* false: nothing is left */

enum { CLIENT_SIDE, SERVER_SIDE };

struct sim_conn {
	struct list link;
	struct sim_process *ends[2];
	uint64_t lives[2];
	bool closed[2], told[2]; /* told: its on_close has run or never will */
	void *context[2];
	uint64_t last_ns[2]; /* of the newest frame towards that end: frames keep their order */
	uint64_t stall_ns;   /* slow until then */
	uint32_t pending;    /* events that name it */
};

struct sim_conn_ops {
	void (*on_ready)(struct sim *sim, struct sim_conn *conn, void *context);
	void (*on_frame)(struct sim *sim, struct sim_conn *conn, uint16_t type, const uint8_t *body,
			 uint32_t bytes, void *context);
	void (*on_close)(struct sim *sim, struct sim_conn *conn, void *context);
};

/* Client side. on_ready or on_close follows. */
struct sim_conn *sim_connect(struct sim *sim, struct sim_process *from, struct sim_process *to,
			     void *context);
void sim_send(struct sim *sim, struct sim_conn *conn, uint32_t side, uint16_t type,
	      const struct buf *body);
void sim_close(struct sim *sim, struct sim_conn *conn, uint32_t side); /* on_close follows, both sides */
void sim_break(struct sim *sim, struct sim_conn *conn);                /* frames under way are lost */
void sim_process_crash(struct sim *sim, struct sim_process *process);

/* ---- conductor.c ---- */

struct sim_conductor;
struct sim_conductor *sim_conductor_new(struct sim *sim);
void sim_conductor_free(struct sim_conductor *conductor);
void *sim_conductor_accept(struct sim *sim, struct sim_conn *conn);
void sim_conductor_step(struct sim *sim, struct conductor_event *event);
void sim_conductor_command(struct sim *sim, const char *node, enum conductor_command command);
struct conductor *sim_conductor_core(struct sim *sim);
extern const struct sim_conn_ops sim_conductor_ops;

/* ---- node.c, transfer.c ---- */

/* KV of one layer of one block: for each token a hash of all tokens up to it. */
struct sim_slice {
	uint64_t cells[SIM_BLOCK_TOKENS];
};

struct sim_expect {
	struct list link;
	uint64_t id;
	node_handle handle;
	uint32_t count, landed, writing; /* slices; writing: begun and not ended */
	bool revoking;
	bool *done;
	kv_block_id *blocks; /* [count] of each range */
};

/* A slice on its way from the sending node's memory. */
struct sim_flight {
	struct list link; /* of the sender, while its outcome is open */
	struct sim_node *source, *target;
	uint64_t source_life, target_life;
	node_handle handle;
	uint64_t expect;
	uint32_t index;
	kv_block_id block;
	uint32_t layer;
	struct sim_slice sent;
	kv_block_id into; /* the receiver's block, once the write has begun ... */
	uint32_t into_generation; /* ... and its life then */
	bool cancelled, damaged, lost;
};

struct sim_outgoing {
	node_handle handle;
	struct node_ref ref;
	uint8_t ticket[32];
	uint32_t ticket_bytes;
};

struct sim_peer {
	struct list link;
	struct sim_node *node;
	struct sim_conn *conn;
	uint32_t side;
	uint64_t incarnation;
	char name[CONDUCTOR_NAME_BYTES];
	bool introduced;
	struct buf waiting; /* frames before the introduction */
};

struct sim_node {
	struct sim *sim;
	struct sim_process process;
	char name[CONDUCTOR_NAME_BYTES];
	enum node_role role;
	uint64_t incarnation;
	uint32_t state; /* as Report.state */
	uint64_t turned_ns;

	struct kv_node kv;
	struct sim_slice *memory; /* [blocks][SIM_LAYERS] */
	struct prefill *prefill;
	struct decode *decode;
	struct node_actions actions[2]; /* decode's, prefill's */
	struct node_batch batch;
	struct sample_result *results;
	uint32_t *sampled;
	bool busy;
	uint32_t depth;
	struct node_event_queue deferred;
	struct node_codec *codec;

	struct sim_conn *conductor;
	bool welcomed;
	uint64_t conductor_incarnation, lease_ns, heard_ns, report_due_ns, redial_ns;
	uint64_t dispatches_seen, report_sequence, frames_refused;

	struct list peers, expects, flights;
	struct sim_outgoing *outgoing; /* by handle index */
	uint64_t expect_next;
	uint64_t damaged;
	bool planted;
};

void sim_node_start(struct sim *sim, struct sim_node *node); /* a new life */
void sim_node_crash(struct sim *sim, struct sim_node *node);
void sim_node_free(struct sim_node *node);
void *sim_node_accept(struct sim *sim, struct sim_node *node, struct sim_conn *conn);
void sim_node_event(struct sim_node *node, struct node_event *event);
void sim_node_defer(struct sim_node *node, const struct node_event *event);
void sim_node_pump(struct sim_node *node);
void sim_node_notice_sleep(struct sim_node *node);
extern const struct sim_conn_ops sim_node_conductor_ops, sim_node_peer_ops;

void sim_transfer_reserve(struct sim_node *node, const struct node_action *action);
bool sim_transfer_answer(struct sim_node *node, const struct node_event *answer);
uint32_t sim_transfer_grant(struct sim_node *node, const struct node_action *action,
			    uint8_t ret_ticket[32]);
void sim_transfer_revoke(struct sim_node *node, node_handle handle);
void sim_transfer_send(struct sim_node *node, node_handle handle, const kv_block_id blocks[],
		       uint32_t first, uint32_t end, uint32_t base, uint32_t layer_first,
		       uint32_t layer_end);
void sim_transfer_resend(struct sim_node *node, const struct node_action *action);
void sim_transfer_cancel(struct sim_node *node, node_handle handle);
void sim_transfer_drop(struct sim_node *node); /* the process is gone */

/* ---- engine.c: what a token is ---- */

static inline uint64_t sim_mix(uint64_t a, uint64_t b)
{
	uint64_t state = a * UINT64_C(0x9e3779b97f4a7c15) ^ b;
	return rand_next(&state);
}

static inline uint64_t sim_cell(uint64_t before, uint32_t token, uint32_t layer)
{
	return sim_mix(before, (uint64_t)layer << 32 | token);
}

/* @cells: of the last token, one per layer. Token 0 ends. */
uint32_t sim_token(const uint64_t cells[SIM_LAYERS], uint64_t seed, uint32_t choice,
		   uint32_t position, bool may_end);

/* ---- clients.c ---- */

struct sim_client_choice {
	uint64_t cells[SIM_LAYERS]; /* the oracle: hash of prompt and output so far */
	uint32_t count;             /* tokens received */
	uint32_t *kept;             /* the conductor shell's array */
	uint32_t stop_after;        /* a stop string matches then; 0: never */
	bool done, stopped;
};

struct sim_client {
	struct sim *sim;
	uint64_t id;
	char name[CONDUCTOR_NAME_BYTES];
	uint32_t *prompt;
	uint32_t prompt_count, choice_count, max_tokens, min_tokens;
	uint64_t seed;
	bool ignore_eos;
	bool submitted, ended, cancelled, failed;
	uint64_t cancel_ns; /* after submission; 0: never */
	struct kv_key root;
	struct sim_client_choice choices[8];
};

void sim_clients_start(struct sim *sim);
void sim_clients_free(struct sim *sim);
struct sim_client *sim_client_find(struct sim *sim, uint64_t id);
void sim_client_tokens(struct sim *sim, const struct conductor_action *action);
void sim_client_failed(struct sim *sim, const struct conductor_action *action);
void sim_client_ended(struct sim *sim, uint64_t id);
bool sim_clients_done(const struct sim *sim);

/* ---- faults.c ---- */

void sim_faults_start(struct sim *sim);
void sim_faults_heal(struct sim *sim);

/* ---- sim.c ---- */

struct sim_heap_item {
	uint64_t at_ns, order;
	struct sim_process *process;
	uint64_t life;
	sim_event_fn run;
	void *argument;
};

struct sim {
	struct sim_config config;
	struct sim_result result;
	uint64_t now_ns, order, random;
	struct sim_heap_item *heap;
	uint32_t heap_count, heap_capacity;
	struct list conns;

	struct sim_process conductor_process;
	struct sim_conductor *conductor;
	struct sim_node nodes[SIM_NODES_MAX];
	uint32_t node_count;

	struct sim_client *clients;
	uint32_t client_count;
	bool storm; /* faults may happen */
	uint64_t storm_end_ns;
	bool failed;
};

/* The first failure counts; the run ends. */
void sim_fail(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Into the trace: what happens, in words, and its hash. */
void sim_trace(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t sim_random(struct sim *sim, uint64_t bound); /* [0, bound) */
bool sim_chance(struct sim *sim, uint32_t permille);
void sim_check_node(struct sim *sim, struct sim_node *node);
void sim_check_rest(struct sim *sim);

#endif
