/*
 * The core thread: turns frames, messages of the fronts and time into events, steps the core and
 * performs what it asks for. Performing only queues (a frame, a message, a close), so no callback
 * comes back into the core while it is being stepped, and the core may be stepped right where
 * the event arrives.
 */
#include "conductor/private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "frame.h"

/* ---- actions ---- */

struct shell_conn *shell__member(struct shell *shell, struct conductor_node_id node)
{
	struct shell_conn *conn =
		node.index < CONDUCTOR_NODES_MAX ? shell->members[node.index] : NULL;

	return conn && conn->node.generation == node.generation ? conn : NULL;
}

void shell__send(struct shell *shell, struct conductor_node_id node, uint16_t type)
{
	struct shell_conn *conn = shell__member(shell, node);

	if (!conn)
		return;
	int error = wire_send(conn->wire, type, shell->out.data, (uint32_t)shell->out.bytes);
	if (error < 0 && error != -ENOTCONN) {
		log_warning("node %s does not take its frames: %s; its connection is closed", conn->name,
			    err_text(error));
		wire_close(conn->wire, error);
	}
}

static void do_admit(struct shell *shell, const struct conductor_action *action)
{
	struct shell_conn *conn = (struct shell_conn *)(uintptr_t)action->connection;
	struct codec_welcome welcome = {
		.accepted = true,
		.node = shell->node,
		.incarnation = shell->incarnation,
		.version = conn->hello.version,
		.heartbeat_ms = (uint32_t)(shell->config.heartbeat_ns / NS_PER_MS),
		.lease_ms = (uint32_t)(shell->config.lease_ns / NS_PER_MS),
	};

	conn->node = action->node;
	shell->members[action->node.index] = conn;
	bridge_set_kv_format(shell->bridge, conn->model_index, conn->kv_format);
	log_info("node %s (%s) joined from %s", conn->name, conductor_role_name(conn->hello.role),
		 wire_peer_name(conn->wire));
	if (codec_write_welcome(&shell->out, &welcome) == 0)
		shell__send(shell, conn->node, FRAME_WELCOME);
}

static void conn_refuse(struct shell *shell, struct shell_conn *conn, const char *reason, int error)
{
	struct codec_welcome welcome = {
		.accepted = false,
		.reason = reason,
		.node = shell->node,
		.incarnation = shell->incarnation,
		.version = FRAME_VERSION_MAX,
	};

	log_warning("node %s from %s is refused: %s", conn->name, wire_peer_name(conn->wire), reason);
	if (codec_write_welcome(&shell->out, &welcome) == 0)
		(void)wire_send(conn->wire, FRAME_WELCOME, shell->out.data,
				(uint32_t)shell->out.bytes);
	wire_close(conn->wire, error);
}

static void do_close(struct shell *shell, const struct conductor_action *action)
{
	struct shell_conn *conn = shell__member(shell, action->node);

	if (!conn)
		return;
	shell->members[action->node.index] = NULL;
	conn->node.index = CONDUCTOR_NODE_NONE;
	wire_close(conn->wire, BATON_EFENCED);
}

static void do_fence(struct shell *shell, const struct conductor_action *action)
{
	struct shell_conn *conn = shell__member(shell, action->node);

	log_warning("node %s is fenced: no report for longer than its lease of %u ms",
		    conn ? conn->name : "?", (unsigned)(shell->config.lease_ns / NS_PER_MS));
}

static void perform(struct shell *shell, const struct conductor_action *action)
{
	switch (action->kind) {
	case ACTION_PREFILL:
		shell__do_prefill(shell, action);
		break;
	case ACTION_RELEASE:
		if (codec_write_release(&shell->out, &action->ref, action->choice) == 0)
			shell__send(shell, action->node, FRAME_RELEASE);
		break;
	case ACTION_KEEP:
		shell__do_keep(shell, action);
		break;
	case ACTION_DELIVER:
		shell__do_deliver(shell, action);
		break;
	case ACTION_FAIL:
		shell__do_fail(shell, action);
		break;
	case ACTION_END:
		shell__do_end(shell, action);
		break;
	case ACTION_COMMAND:
		if (codec_write_command(&shell->out, action->command, action->role) == 0)
			shell__send(shell, action->node, FRAME_COMMAND);
		break;
	case ACTION_NODE_ADMIT:
		do_admit(shell, action);
		break;
	case ACTION_NODE_REFUSE:
		conn_refuse(shell, (struct shell_conn *)(uintptr_t)action->connection, action->text,
			    BATON_EFENCED);
		break;
	case ACTION_NODE_FENCE:
		do_fence(shell, action);
		break;
	case ACTION_NODE_CLOSE:
		do_close(shell, action);
		break;
	}
}

void shell__step(struct shell *shell, struct conductor_event *event)
{
	event->now_ns = clock_now_ns();
	event->result = conductor_step(shell->core, event, &shell->actions);
	for (uint32_t i = 0; i < shell->actions.count; i++)
		perform(shell, &shell->actions.items[i]);
	atomic_store(&shell->bridge->ready, conductor_ready(shell->core));
}

/* ---- connections ---- */

static const struct shell_model *model_named(const struct shell *shell, const char *name,
					     uint32_t *ret_index)
{
	for (uint32_t i = 0; i < shell->config.model_count; i++) {
		if (strcmp(shell->config.models[i].name, name) != 0)
			continue;
		*ret_index = i;
		return &shell->config.models[i];
	}
	return NULL;
}

/* Members of one model must compute the same bits, or a resumed text could turn another way. */
static const char *numerics_objection(const struct shell *shell, const struct shell_conn *conn)
{
	for (uint32_t i = 0; i < CONDUCTOR_NODES_MAX; i++) {
		const struct shell_conn *other = shell->members[i];
		if (other && !strcmp(other->model, conn->model) && strcmp(other->name, conn->name) &&
		    strcmp(other->numerics, conn->numerics))
			return "its numerics class differs from that of the model's other nodes";
	}
	return NULL;
}

/* Nodes pair only when their blocks mean the same. The conductor has no weights to tell by: the
 * first node of a model that is admitted sets the format, until the last one has gone. */
static const char *format_objection(const struct shell *shell, const struct shell_conn *conn,
				    const uint8_t format[32], uint32_t model)
{
	uint8_t known[32];
	bool others = false;

	for (uint32_t i = 0; i < CONDUCTOR_NODES_MAX; i++) {
		const struct shell_conn *other = shell->members[i];
		others |= other && !strcmp(other->model, conn->model) && strcmp(other->name, conn->name);
	}
	bridge_kv_format(shell->bridge, model, known);
	if (others && memcmp(known, format, sizeof known))
		return "its kv_format differs from that of the model's other nodes: another model file, or "
		       "another block size";
	return NULL;
}

static void hello_keep(struct shell_conn *conn, const struct codec_hello *hello)
{
	conn->hello = *hello;
	snprintf(conn->name, sizeof conn->name, "%s", hello->node);
	snprintf(conn->model, sizeof conn->model, "%s", hello->model);
	snprintf(conn->numerics, sizeof conn->numerics, "%s", hello->numerics);
	snprintf(conn->peer_host, sizeof conn->peer_host, "%s", hello->peer_host);
	snprintf(conn->admin, sizeof conn->admin, "%s", hello->admin);
	snprintf(conn->build, sizeof conn->build, "%s", hello->build);
	if (hello->transfer_bytes)
		memcpy(conn->transfer, hello->transfer, hello->transfer_bytes);
	if (hello->kv_format)
		memcpy(conn->kv_format, hello->kv_format, sizeof conn->kv_format);
	conn->hello.node = conn->name;
	conn->hello.model = conn->model;
	conn->hello.numerics = conn->numerics;
	conn->hello.peer_host = conn->peer_host;
	conn->hello.admin = conn->admin;
	conn->hello.build = conn->build;
	conn->hello.transfer = conn->transfer;
	conn->hello.kv_format = conn->kv_format;
}

static int on_hello(struct shell *shell, struct shell_conn *conn, const struct codec_hello *hello)
{
	uint32_t index = 0;

	if (conn->greeted)
		return BATON_EPROTOCOL;
	conn->greeted = true;
	hello_keep(conn, hello);
	const struct shell_model *model = model_named(shell, hello->model, &index);
	const char *objection = NULL;
	if (!model)
		objection = "its model is not served here";
	else if (!hello->kv_format)
		objection = "it does not name its kv_format";
	else
		objection = format_objection(shell, conn, hello->kv_format, index);
	conn->model_index = index;
	if (!objection)
		objection = numerics_objection(shell, conn);
	if (objection) {
		conn_refuse(shell, conn, objection, BATON_EFORMAT);
		return 0;
	}
	struct conductor_hello join = {
		.name = conn->name,
		.incarnation = hello->incarnation,
		.role = hello->role,
		.model = index,
		.block_tokens = hello->block_tokens ? hello->block_tokens : model->block_tokens,
		.blocks_total = hello->blocks_total,
		.max_num_seqs = hello->max_num_seqs,
		.max_model_len = hello->max_model_len,
		.connection = (uintptr_t)conn,
	};
	shell__step(shell, &(struct conductor_event){ .kind = EVENT_NODE_JOINED, .hello = &join });
	return 0;
}

static void on_report(struct shell *shell, struct shell_conn *conn,
		      const struct conductor_report *report)
{
	struct conductor_event event = { .kind = EVENT_NODE_REPORT, .node = conn->node, .report = report };
	struct conductor_node_id node = conn->node;

	shell__step(shell, &event);
	if (event.result == 0 && codec_write_ack(&shell->out, report->sequence) == 0)
		shell__send(shell, node, FRAME_ACK);
}

static int conn_on_frame(struct wire_conn *wire, uint16_t type, const uint8_t *body, uint32_t bytes,
			 void *context)
{
	struct shell_conn *conn = context;
	struct shell *shell = conn->shell;
	struct codec_frame frame;

	CHECK(conn->magic == SHELL_CONN_MAGIC);
	int error = codec_read(shell->codec, type, body, bytes, &frame);
	if (error == -ENOTSUP)
		return 0;
	if (error < 0)
		return error;
	if (frame.type == FRAME_HELLO)
		return on_hello(shell, conn, &frame.hello);
	if (conn->node.index == CONDUCTOR_NODE_NONE)
		return BATON_EPROTOCOL;
	if (frame.type == FRAME_REPORT) {
		on_report(shell, conn, &frame.report);
	} else if (frame.type == FRAME_TOKENS) {
		shell__on_tokens(shell, conn->node, &frame.tokens);
	} else {
		shell__step(shell, &(struct conductor_event){
					   .kind = EVENT_RETURNED,
					   .node = conn->node,
					   .ref = frame.returned.ref,
					   .choice = frame.returned.choice,
					   .cause = frame.returned.cause,
					   .detail = frame.returned.detail });
	}
	return 0;
}

static void conn_on_ready(struct wire_conn *wire, void *context)
{
	(void)wire;
	(void)context;
}

static void shell_settle(struct shell *shell)
{
	if (shell->closing_handles || !list_empty(&shell->conns))
		return;
	void (*on_closed)(void *) = shell->on_closed;
	void *context = shell->closed_context;
	codec_free(shell->codec);
	conductor_actions_fini(&shell->actions);
	conductor_free(shell->core);
	map_fini(&shell->requests);
	buf_fini(&shell->out);
	shell__metrics_close(shell);
	free(shell);
	if (on_closed)
		on_closed(context);
}

static void conn_on_close(struct wire_conn *wire, int reason, void *context)
{
	struct shell_conn *conn = context;
	struct shell *shell = conn->shell;
	struct conductor_node_id node = conn->node;

	CHECK(conn->magic == SHELL_CONN_MAGIC);
	if (node.index != CONDUCTOR_NODE_NONE) {
		if (!shell->closing)
			log_warning("node %s is gone: %s", conn->name, err_text(reason));
		shell->members[node.index] = NULL;
	}
	list_remove(&conn->link);
	conn->magic = 0;
	free(conn);
	if (shell->closing)
		shell_settle(shell);
	else if (node.index != CONDUCTOR_NODE_NONE)
		shell__step(shell, &(struct conductor_event){ .kind = EVENT_NODE_LOST, .node = node });
}

static void *on_accept(struct wire_conn *wire, void *context)
{
	struct shell *shell = context;
	struct shell_conn *conn = shell->closing ? NULL : calloc(1, sizeof *conn);

	if (!conn)
		return NULL;
	conn->magic = SHELL_CONN_MAGIC;
	conn->shell = shell;
	conn->wire = wire;
	conn->node.index = CONDUCTOR_NODE_NONE;
	list_push_back(&shell->conns, &conn->link);
	return conn;
}

/* ---- life ---- */

static void on_tick(uv_timer_t *timer)
{
	struct shell *shell = timer->data;

	shell__step(shell, &(struct conductor_event){ .kind = EVENT_TICK });
	shell__bridge_drain(shell);
	uint64_t now_ns = clock_now_ns();
	if (now_ns - shell->metrics_ns >= SHELL_METRICS_MS * NS_PER_MS) {
		shell->metrics_ns = now_ns;
		shell__metrics_update(shell);
	}
}

static void on_wake(uv_async_t *async)
{
	shell__bridge_drain(async->data);
}

static int core_open(struct shell *shell)
{
	struct conductor_config config = {
		.incarnation = shell->incarnation,
		.requests_max = shell->config.requests_max,
		.traces_max = 1024,
		.model_count = shell->config.model_count,
		.policy = conductor_policy_find(shell->config.policy),
		.lease_ns = shell->config.lease_ns,
		.resume_wait_ns = shell->config.resume_wait_ns,
		.predicted_tokens = shell->config.predicted_tokens,
	};

	if (!config.policy) {
		log_error("there is no policy %s; there are: %s", shell->config.policy,
			  conductor_policy_names());
		return -EINVAL;
	}
	int error = conductor_new(&config, &shell->core);
	if (error < 0)
		return error;
	error = conductor_actions_init(&shell->actions, shell->core);
	if (error < 0)
		return error;
	error = map_init(&shell->requests, shell->config.requests_max);
	if (error < 0)
		return error;
	return codec_new(&shell->codec);
}

static void shell_unmake(struct shell *shell)
{
	codec_free(shell->codec);
	map_fini(&shell->requests);
	conductor_actions_fini(&shell->actions);
	conductor_free(shell->core);
	shell__metrics_close(shell);
	free(shell);
}

int shell_open(uv_loop_t *loop, const struct shell_config *config, struct bridge *bridge,
	       struct shell **ret_shell, uint16_t *ret_control_port)
{
	static const struct wire_callbacks callbacks = { conn_on_ready, conn_on_frame, conn_on_close };
	struct shell *shell = calloc(1, sizeof *shell);

	if (!shell)
		return -ENOMEM;
	shell->config = *config;
	snprintf(shell->node, sizeof shell->node, "%s", config->node);
	shell->loop = loop;
	shell->bridge = bridge;
	shell->incarnation = clock_wall_us();
	shell->start_ns = clock_now_ns();
	list_init(&shell->conns);
	list_init(&shell->open);
	for (uint32_t i = 0; i < BRIDGE_FRONTS_MAX; i++)
		list_init(&shell->late[i]);
	buf_init(&shell->out, 0);
	int error = core_open(shell);
	if (error == 0)
		error = shell__metrics_open(shell);
	if (error == 0)
		error = wire_listen(loop, config->control_host, config->control_port,
				    &config->cluster_key, &callbacks, on_accept, shell,
				    &shell->listener, ret_control_port);
	if (error < 0) {
		shell_unmake(shell);
		return error;
	}
	uv_async_init(loop, &bridge->wake_core, on_wake);
	bridge->wake_core.data = shell;
	uv_timer_init(loop, &shell->tick);
	shell->tick.data = shell;
	uv_timer_start(&shell->tick, on_tick, SHELL_TICK_MS, SHELL_TICK_MS);
	*ret_shell = shell;
	return 0;
}

static void on_handle_closed(uv_handle_t *handle)
{
	struct shell *shell = handle->data;

	shell->closing_handles--;
	shell_settle(shell);
}

/* What must be true of a core whose requests have all been ended. */
static int leaks(struct shell *shell)
{
	struct conductor_counters counters;

	conductor_counters(shell->core, &counters);
	conductor_check(shell->core);
	if (counters.requests_open)
		log_error("%u requests were not ended", counters.requests_open);
	if (counters.dispatches_live)
		log_error("%u dispatches were not ended", counters.dispatches_live);
	if (shell->requests.count)
		log_error("%u requests were not freed", shell->requests.count);
	return counters.requests_open || counters.dispatches_live || shell->requests.count ? -EBUSY :
											      0;
}

int shell_close(struct shell *shell, void (*on_closed)(void *), void *context)
{
	shell__bridge_drain(shell);
	shell__requests_fail(shell, 503, "the conductor is stopping");
	shell__bridge_flush(shell);
	for (uint32_t i = 0; i < BRIDGE_FRONTS_MAX; i++) {
		list_for_each_safe(link, after, &shell->late[i]) {
			struct shell_late *late = list_entry(link, struct shell_late, link);
			list_remove(link);
			bridge_message_free(late->message);
			free(late);
		}
	}
	int result = leaks(shell);
	shell->closing = true;
	shell->on_closed = on_closed;
	shell->closed_context = context;
	wire_listener_close(shell->listener);
	list_for_each(link, &shell->conns)
		wire_close(list_entry(link, struct shell_conn, link)->wire, -ESHUTDOWN);
	shell->closing_handles = 2;
	uv_close((uv_handle_t *)&shell->tick, on_handle_closed);
	uv_close((uv_handle_t *)&shell->bridge->wake_core, on_handle_closed);
	return result;
}
