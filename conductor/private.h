/* Shared by the files of the conductor's shell only. All of it belongs to the core thread. */
#ifndef BATON_CONDUCTOR_PRIVATE_H
#define BATON_CONDUCTOR_PRIVATE_H

#include "base/buf.h"
#include "base/list.h"
#include "base/map.h"
#include "conductor/bridge.h"
#include "conductor/codec.h"
#include "conductor/core/conductor.h"
#include "conductor/shell.h"
#include "net/wire.h"

#define SHELL_CONN_MAGIC 0x636f6e6eu
#define SHELL_TICK_MS 50
#define SHELL_METRICS_MS 500

/* One control connection; before its Hello it is nobody. */
struct shell_conn {
	uint32_t magic;
	struct shell *shell;
	struct wire_conn *wire;
	struct list link;
	bool greeted;                  /* a Hello was taken */
	struct conductor_node_id node; /* index NONE: not a member, or no more */
	struct codec_hello hello;      /* texts point into what follows */
	char model[CODEC_TEXT_BYTES_MAX + 1], numerics[CODEC_TEXT_BYTES_MAX + 1];
	char name[CONDUCTOR_NAME_BYTES], peer_host[CODEC_TEXT_BYTES_MAX + 1];
	char admin[CODEC_TEXT_BYTES_MAX + 1], build[CODEC_TEXT_BYTES_MAX + 1];
	uint8_t transfer[CODEC_TRANSFER_BYTES_MAX], kv_format[32];
	uint32_t model_index;
};

/* Tokens that arrived together and are not with the front yet: the message that will carry them. */
struct shell_run {
	struct list link;
	uint32_t position;
	struct bridge_message *message;
};

struct shell_choice {
	uint32_t *ids; /* output so far, held ones included; what a resume sends again */
	uint32_t count, capacity;
	struct list runs; /* by position */
};

struct shell_request {
	struct request_spec *spec;
	uint32_t front;
	struct list link;
	struct shell_choice choices[]; /* [spec->choice_count] */
};

/* A message that a full ring did not take. */
struct shell_late {
	struct list link;
	struct bridge_message *message;
};

struct shell {
	struct shell_config config;
	char node[CONDUCTOR_NAME_BYTES];
	uv_loop_t *loop;
	struct bridge *bridge;
	uint64_t incarnation, start_ns, metrics_ns;
	struct conductor *core;
	struct conductor_actions actions;
	struct codec *codec;
	struct buf out; /* the frame being written */
	struct wire_listener *listener;
	struct list conns;
	struct shell_conn *members[CONDUCTOR_NODES_MAX]; /* by the core's node index */
	struct map requests;
	struct list open;
	struct list late[BRIDGE_FRONTS_MAX];
	uint64_t late_count;
	bool wake_front[BRIDGE_FRONTS_MAX];
	struct shell_run *arriving; /* run of the token event that is being stepped */
	uv_timer_t tick;
	uint32_t closing_handles;
	bool closing;
	void (*on_closed)(void *);
	void *closed_context;
	struct shell_metrics *metrics;
};

/* shell.c */
void shell__step(struct shell *shell, struct conductor_event *event);
/* A frame to a member; one that cannot take it any more is closed, which resumes its work. */
void shell__send(struct shell *shell, struct conductor_node_id node, uint16_t type);
struct shell_conn *shell__member(struct shell *shell, struct conductor_node_id node);

/* shell_bridge.c: requests and messages between the fronts and the core */
void shell__bridge_drain(struct shell *shell);
void shell__bridge_flush(struct shell *shell);
void shell__to_front(struct shell *shell, uint32_t front, struct bridge_message *message);
void shell__requests_fail(struct shell *shell, int status, const char *text);
void shell__on_tokens(struct shell *shell, struct conductor_node_id node,
		      const struct codec_tokens *tokens);
void shell__do_prefill(struct shell *shell, const struct conductor_action *action);
void shell__do_keep(struct shell *shell, const struct conductor_action *action);
void shell__do_deliver(struct shell *shell, const struct conductor_action *action);
void shell__do_fail(struct shell *shell, const struct conductor_action *action);
void shell__do_end(struct shell *shell, const struct conductor_action *action);

/* shell_stats.c */
char *shell__stats_json(struct shell *shell);                   /* caller frees; NULL: no memory */
char *shell__trace_json(struct shell *shell, const char *name, int *ret_status);
int shell__metrics_open(struct shell *shell);
void shell__metrics_update(struct shell *shell);
void shell__metrics_close(struct shell *shell);

#endif
