/* Shared by the files of lib/node. Everything here belongs to the loop thread. */
#ifndef BATON_NODE_PRIVATE_H
#define BATON_NODE_PRIVATE_H

#include <uv.h>

#include "base/list.h"
#include "base/map.h"
#include "base/metrics.h"
#include "engine/engine.h"
#include "model/model.h"
#include "net/http.h"
#include "net/wire.h"
#include "node/arena.h"
#include "node/codec.h"
#include "node/config.h"
#include "node/engine_thread.h"
#include "node/node.h"
#include "node/role.h"
#include "xfer/xfer.h"

#define NODE_CONDUCTORS_MAX 16
#define NODE_TICK_MS 100
#define ADMIN_GAUGES 8
#define ADMIN_COUNTERS 10

struct node;

enum node_state { NODE_STARTING = 1, NODE_READY = 2, NODE_DRAINING = 3, NODE_DRAINED = 4 }; /* as Report.state */

/* One conductor named in the settings. */
struct conductor_link {
	struct node *node;
	char host[NODE_HOST_BYTES];
	uint16_t port;
	struct wire_conn *conn;  /* NULL: not connected */
	bool welcomed;
	uint64_t incarnation;    /* the conductor's, when welcomed */
	uint64_t heartbeat_ns, lease_ns;
	uint64_t heard_ns;       /* last Ack or Welcome */
	uint64_t report_due_ns;
	uint64_t retry_ns, retry_wait_ns;
	uint64_t dispatches_seen;
	uint64_t report_sequence;
};

/* A connection to another node, made by us (p, to a decode node) or accepted (d, from p). */
struct peer_link {
	struct list in_peers;
	struct node *node;
	bool outgoing, introduced; /* introduced: Welcome (outgoing) or Hello (accepted) came */
	struct wire_conn *conn;
	uint64_t incarnation; /* the other's */
	char name[NODE_NAME_BYTES];
	struct buf waiting;     /* frames for before it is introduced: type, length, body */
	uint64_t used_ns;
};

/* p: what the shell keeps for a request between Reserve and its end, by slot of its handle. */
struct outgoing {
	node_handle handle; /* .v == 0: free */
	struct node_ref ref;
	struct xfer_peer *peer; /* counted */
	uint8_t ticket[XFER_TICKET_BYTES_MAX];
	uint32_t ticket_bytes;
};

struct pending_slice {
	node_handle handle;
	struct xfer_slice slice;
};

struct node {
	struct node_config config;
	const char *daemon;
	char name[NODE_NAME_BYTES];
	char served_name[NODE_MODEL_BYTES];
	uint64_t incarnation;
	enum node_state state;
	bool stopping, failed;
	uint64_t stop_deadline_ns;

	uv_loop_t loop;
	uv_timer_t tick;
	uv_signal_t sigterm, sigint;
	uint64_t turned_ns; /* last time the loop was seen to turn, for waking from a stop */

	struct model *model;
	struct kv_shape shape;
	uint8_t kv_format[32];
	uint32_t max_model_len;
	struct arena arena;
	struct kv_node kv;
	struct wire_key key;

	/* roles: decode before prefill, the order in which they fill a batch */
	struct {
		const struct node_role_maker *maker;
		void *core;
		struct node_actions actions;
	} roles[2];
	uint32_t role_count;
	struct node_event_queue deferred;
	uint32_t depth;

	/* batch.c */
	struct engine_config engine_config;
	struct engine_thread *engine;
	struct node_batch batch;
	struct engine_batch engine_batch;
	struct engine_rows *engine_rows;
	struct sample_request *sample_requests;
	struct sample_params *sample_params;
	struct sample_result *sample_results;
	uint32_t *sampled;
	uint64_t batch_started_ns;
	bool warming;

	/* transfer.c */
	struct xfer *xfer;
	uv_async_t xfer_wake;
	struct outgoing *outgoing; /* [outgoing_count] by node_handle_index() */
	uint32_t outgoing_count;
	struct map outgoing_refs;  /* hash of ref -> slot */
	struct map expects;        /* handle.v -> xfer_expect_id */
	struct pending_slice *pending; /* slices that xfer had no room for, oldest first */
	uint32_t pending_count, pending_capacity;

	/* links.c */
	struct conductor_link conductors[NODE_CONDUCTORS_MAX];
	uint32_t conductor_count;
	struct list peers;
	struct wire_listener *listener;
	uint16_t peer_port;
	struct node_codec *codec;
	uint64_t frames_refused;

	/* admin.c */
	struct http_server *admin;
	uint16_t admin_port;
	struct metrics *metrics;
	struct metric *steps, *step_tokens, *step_seconds;
	struct metric *gauges[ADMIN_GAUGES], *counters[ADMIN_COUNTERS];
	struct metric *landed[3], *sent[3]; /* shm, tcp, rdma */
};

/* node.c */
bool node_has_role(const struct node *node, enum node_role role);
/* Steps every role that the event concerns, does the actions, then whatever they deferred. */
void node_event(struct node *node, struct node_event *event);
/* For events born while actions are being done (rules R1, R5): they run after them. */
void node_defer(struct node *node, const struct node_event *event);
void node_flush(struct node *node);
void node_do(struct node *node, uint32_t role);
void node_load(const struct node *node, struct node_load *load);
bool node_idle(const struct node *node);
/* A stop longer than a lease (SIGSTOP, a suspended machine): this life is over, begin a new one. */
void node_notice_sleep(struct node *node);
/* A new incarnation: nothing meant for the former life is taken by this one. */
void node_renew(struct node *node);
void node_drain(struct node *node, uint64_t grace_ns);
void node_stop(struct node *node);

/* batch.c */
int node__batch_open(struct node *node);
void node__batch_close(struct node *node);
/* Runs the next batch when the engine is idle and somebody has rows. */
void node_pump(struct node *node);

/* transfer.c */
int node__transfer_open(struct node *node);
void node__transfer_close(struct node *node);
void node__transfer_reserve(struct node *node, const struct node_action *action, struct xfer_peer *peer);
/* A ReserveAnswer came: keeps its ticket and finds the handle. false: nobody waits for it. */
bool node__transfer_answer(struct node *node, const struct node_event *answer);
void node__transfer_send(struct node *node, node_handle handle, const kv_block_id blocks[],
			 uint32_t first, uint32_t end, uint32_t base, uint32_t layer_first,
			 uint32_t layer_end);
void node__transfer_resend(struct node *node, const struct node_action *action);
void node__transfer_cancel(struct node *node, node_handle handle);
/* Grants; fills the ticket. Return: 0, or negative: nothing was granted. */
int node__transfer_grant(struct node *node, const struct node_action *action,
			 uint8_t ret_ticket[XFER_TICKET_BYTES_MAX], size_t *ret_ticket_bytes);
void node__transfer_revoke(struct node *node, node_handle handle);
/* The transport most bytes have landed by; for reports. */
uint32_t node__transfer_kind(const struct node *node);
void node__transfer_forget(struct node *node, node_handle handle);

/* links.c */
int node__links_open(struct node *node);
void node__links_start(struct node *node); /* when ready: connect to the conductors */
void node__links_tick(struct node *node, uint64_t now_ns);
void node__links_close(struct node *node);
/* Drops every connection of this life. */
void node__links_reset(struct node *node);
void node__send_conductor(struct node *node, uint64_t incarnation, uint16_t type, const struct buf *body);
/* To the decode node @peer; connects on demand. NULL when no link can be had. */
struct peer_link *node__peer_out(struct node *node, const struct node_peer *peer);
void node__peer_send(struct peer_link *link, uint16_t type, const struct buf *body);
/* To the node that connected to us under this incarnation; false: it is gone. */
bool node__peer_answer(struct node *node, uint64_t incarnation, uint16_t type, const struct buf *body);

/* admin.c */
int node__admin_open(struct node *node);
void node__admin_close(struct node *node);

#endif
