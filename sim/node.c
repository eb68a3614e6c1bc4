/*
 * A node's process: its real cores and codec. The shell around them is lib/node's in short: the
 * rules of node/role.h (R1 to R5), connections with a lease, an engine that runs one batch at a
 * time.
 */
#include "sim/private.h"

#include "base/err.h"
#include "frame.h"
#include "sim/engine.h"

#define TICK_NS (100 * NS_PER_MS)
#define SLEEP_NS (2 * NS_PER_S)
#define REQUESTS_MAX 32
#define SEQUENCES_MAX 16
#define BATCH_TOKENS 64

static const uint8_t kv_format[32] = { 's', 'i', 'm' };

/* ---- events and actions ---- */

static void do_actions(struct sim_node *node, enum node_role role);

static bool has_role(const struct sim_node *node, enum node_role role)
{
	return (node->role & role) != 0;
}

static void step_role(struct sim_node *node, struct node_event *event, enum node_role role)
{
	if (!has_role(node, role))
		return;
	if (role == NODE_ROLE_DECODE)
		decode_step(node->decode, event, &node->actions[0]);
	else
		prefill_step(node->prefill, event, &node->actions[1]);
	do_actions(node, role);
}

static void event_step(struct sim_node *node, struct node_event *event)
{
	enum node_role role = node_event_role(event->kind);

	event->now_ns = node->sim->now_ns;
	if (role != NODE_ROLE_PREFILL)
		step_role(node, event, NODE_ROLE_DECODE);
	if (role != NODE_ROLE_DECODE)
		step_role(node, event, NODE_ROLE_PREFILL);
}

static void flush(struct sim_node *node)
{
	if (node->depth)
		return;
	for (uint32_t i = 0; i < node->deferred.count; i++) {
		struct node_event event = node->deferred.v[i];
		event_step(node, &event);
	}
	node->deferred.count = 0;
}

void sim_node_event(struct sim_node *node, struct node_event *event)
{
	event_step(node, event);
	flush(node);
}

void sim_node_defer(struct sim_node *node, const struct node_event *event)
{
	node_event_queue_push(&node->deferred, event);
}

static void to_conductor(struct sim_node *node, uint64_t incarnation, uint16_t type,
			 const struct buf *body)
{
	if (node->welcomed && node->conductor_incarnation == incarnation)
		sim_send(node->sim, node->conductor, CLIENT_SIDE, type, body);
}

static void peer_send(struct sim_peer *peer, uint16_t type, const struct buf *body)
{
	uint32_t bytes = (uint32_t)body->bytes;

	if (peer->introduced) {
		sim_send(peer->node->sim, peer->conn, peer->side, type, body);
		return;
	}
	buf_append(&peer->waiting, &type, sizeof type);
	buf_append(&peer->waiting, &bytes, sizeof bytes);
	buf_append(&peer->waiting, body->data, bytes);
}

static struct sim_peer *peer_new(struct sim_node *node, uint32_t side)
{
	struct sim_peer *peer = calloc(1, sizeof *peer);

	CHECK(peer);
	peer->node = node;
	peer->side = side;
	buf_init(&peer->waiting, 0);
	list_push_back(&node->peers, &peer->link);
	return peer;
}

static void peer_free(struct sim_peer *peer)
{
	list_remove(&peer->link);
	buf_fini(&peer->waiting);
	free(peer);
}

static struct sim_peer *peer_out(struct sim_node *node, const struct node_peer *to)
{
	struct sim *sim = node->sim;

	list_for_each(link, &node->peers) {
		struct sim_peer *peer = list_entry(link, struct sim_peer, link);
		if (peer->side == CLIENT_SIDE && peer->incarnation == to->incarnation)
			return peer;
	}
	for (uint32_t i = 0; i < sim->node_count; i++) {
		if (strcmp(sim->nodes[i].name, to->host) != 0)
			continue;
		struct sim_peer *peer = peer_new(node, CLIENT_SIDE);
		peer->incarnation = to->incarnation;
		snprintf(peer->name, sizeof peer->name, "%s", to->name);
		peer->conn = sim_connect(sim, &node->process, &sim->nodes[i].process, peer);
		return peer;
	}
	CHECK(!"a node of this name");
	return NULL;
}

static void peer_answer(struct sim_node *node, uint64_t incarnation, uint16_t type,
			const struct buf *body)
{
	list_for_each(link, &node->peers) {
		struct sim_peer *peer = list_entry(link, struct sim_peer, link);
		if (peer->side == SERVER_SIDE && peer->introduced && peer->incarnation == incarnation) {
			peer_send(peer, type, body);
			return;
		}
	}
}

static void do_reserve(struct sim_node *node, const struct node_action *action, struct buf *body)
{
	if (action->reserve.local) {
		event_step(node, &(struct node_event){
					 .kind = NODE_RESERVE,
					 .reserve = { .request = *action->reserve.request,
						      .source = node->incarnation,
						      .source_node = node->name,
						      .target = node->incarnation,
						      .predicted_tokens =
							      action->reserve.predicted_tokens,
						      .local = true } });
		return;
	}
	struct sim_peer *peer = peer_out(node, action->reserve.peer);
	sim_transfer_reserve(node, action);
	node_codec_reserve(body, action, node->incarnation, node->name);
	peer_send(peer, FRAME_RESERVE, body);
}

static void do_grant(struct sim_node *node, const struct node_action *action, struct buf *body)
{
	uint8_t ticket[32];
	uint32_t ticket_bytes = 0;

	if (action->grant.local) {
		sim_node_defer(node, &(struct node_event){ .kind = NODE_RESERVE_ANSWER,
							   .answer = { .ref = action->ref,
								       .accepted = true,
								       .reason = "" } });
		return;
	}
	if (action->grant.block_count > action->grant.cached_blocks)
		ticket_bytes = sim_transfer_grant(node, action, ticket);
	node_codec_reserve_answer(body, &action->ref, true, action->grant.cached_blocks, "", ticket,
				  ticket_bytes);
	peer_answer(node, action->grant.source, FRAME_RESERVE_ANSWER, body);
}

static void do_refuse(struct sim_node *node, const struct node_action *action, struct buf *body)
{
	node->sim->result.refusals++;
	if (action->refuse.local) {
		sim_node_defer(node, &(struct node_event){ .kind = NODE_RESERVE_ANSWER,
							   .answer = { .ref = action->ref,
								       .reason = action->refuse.reason } });
		return;
	}
	node_codec_reserve_answer(body, &action->ref, false, 0, action->refuse.reason, NULL, 0);
	peer_answer(node, action->refuse.source, FRAME_RESERVE_ANSWER, body);
}

static void do_tokens(struct sim_node *node, const struct node_action *action, struct buf *body)
{
	struct node_action changed = *action;
	struct node_token token;

	/* Planted: the same token once more, as if it were the next. */
	if (node->sim->config.plant == SIM_PLANT_REPEAT && !node->planted &&
	    action->tokens.count == 1 && action->tokens.v[0].position > 1) {
		node->planted = true;
		node_codec_tokens(body, action, node->results, 4);
		to_conductor(node, action->ref.conductor, FRAME_TOKENS, body);
		token = action->tokens.v[0];
		token.position++;
		changed.tokens.v = &token;
		buf_clear(body);
	}
	node_codec_tokens(body, &changed, node->results, 4);
	to_conductor(node, action->ref.conductor, FRAME_TOKENS, body);
}

static void do_action(struct sim_node *node, const struct node_action *action)
{
	struct buf body;

	buf_init(&body, 0);
	switch (action->kind) {
	case NODE_DO_RESERVE:
		do_reserve(node, action, &body);
		break;
	case NODE_DO_SEND:
		sim_transfer_send(node, action->handle, action->send.blocks, action->send.first,
				  action->send.end, action->send.base, 0, SIM_LAYERS);
		break;
	case NODE_DO_RESEND:
		sim_transfer_resend(node, action);
		break;
	case NODE_DO_CANCEL_SEND:
		sim_transfer_cancel(node, action->handle);
		break;
	case NODE_DO_FIRST_TOKENS:
		node_codec_first_tokens(&body, action);
		peer_send(peer_out(node, action->first.peer), FRAME_FIRST_TOKENS, &body);
		break;
	case NODE_DO_HAND_OVER:
		event_step(node, &(struct node_event){ .kind = NODE_ADOPT,
						       .adopt = { action->ref, action->adopt.sequence,
								  action->adopt.tokens,
								  action->adopt.token_count } });
		break;
	case NODE_DO_RELEASE_PEER:
		if (action->release.local) {
			struct node_event event = { .kind = NODE_RELEASE,
						    .now_ns = node->sim->now_ns,
						    .release = { .ref = action->ref,
								 .by_peer = true } };
			step_role(node, &event, NODE_ROLE_DECODE);
			break;
		}
		node_codec_release(&body, &action->ref);
		peer_send(peer_out(node, action->release.peer), FRAME_RELEASE, &body);
		break;
	case NODE_DO_GRANT:
		do_grant(node, action, &body);
		break;
	case NODE_DO_REFUSE:
		do_refuse(node, action, &body);
		break;
	case NODE_DO_REVOKE:
		sim_transfer_revoke(node, action->handle);
		break;
	case NODE_DO_TOKENS:
		do_tokens(node, action, &body);
		break;
	case NODE_DO_RETURNED:
		node_codec_returned(&body, action);
		to_conductor(node, action->ref.conductor, FRAME_RETURNED, &body);
		break;
	case NODE_DO_FORGET:
		if (node->outgoing[node_handle_index(action->handle)].handle.v == action->handle.v)
			node->outgoing[node_handle_index(action->handle)].handle.v = 0;
		break;
	case NODE_ACTION_KIND_COUNT:
		CHECK(!"an action");
	}
	buf_fini(&body);
}

static void do_actions(struct sim_node *node, enum node_role role)
{
	struct node_actions *actions = &node->actions[role == NODE_ROLE_PREFILL];

	node->depth++;
	for (uint32_t i = 0; i < actions->count; i++)
		do_action(node, &actions->v[i]);
	node_actions_clear(actions);
	node->depth--;
}

/* ---- the engine ---- */

struct layer {
	struct sim_node *node;
	uint32_t layer;
};

static void run_layer(struct sim *sim, void *argument, bool alive)
{
	struct layer *layer = argument;
	struct sim_node *node = layer->node;
	uint32_t at = layer->layer;

	free(layer);
	if (!alive || sim->failed)
		return;
	sim_engine_layer(node, at);
	for (uint32_t r = 0; r < node->batch.row_count; r++) {
		const struct node_rows *row = &node->batch.rows[r];
		if (row->send_first < row->send_end)
			sim_transfer_send(node, row->handle, row->blocks, row->send_first,
					  row->send_end, row->send_base, at, at + 1);
	}
	flush(node);
}

static void links_reset(struct sim_node *node);

/* Stood still for longer than its lease: nothing of the former life is believed any more.
 * Asked at every turn, before anything else. */
void sim_node_notice_sleep(struct sim_node *node)
{
	uint64_t now_ns = node->sim->now_ns;
	uint64_t lease_ns = MAX(SLEEP_NS, node->welcomed ? node->lease_ns : 0);
	bool slept = node->turned_ns && now_ns - node->turned_ns > lease_ns;

	node->turned_ns = now_ns;
	if (!slept)
		return;
	sim_trace(node->sim, "%s slept past its lease", node->name);
	links_reset(node);
}

static void run_batch_done(struct sim *sim, void *argument, bool alive)
{
	struct sim_node *node = argument;

	if (!alive || sim->failed)
		return;
	sim_engine_sample(node);
	node->busy = false;
	sim_node_notice_sleep(node);
	sim_node_event(node, &(struct node_event){ .kind = NODE_BATCH_DONE,
						   .batch = { &node->batch, node->sampled } });
	sim_node_pump(node);
}

void sim_node_pump(struct sim_node *node)
{
	struct sim *sim = node->sim;

	flush(node);
	if (node->busy || node->depth)
		return;
	node_batch_clear(&node->batch);
	if (has_role(node, NODE_ROLE_DECODE)) {
		decode_schedule(node->decode, sim->now_ns, &node->batch, &node->actions[0]);
		do_actions(node, NODE_ROLE_DECODE);
	}
	if (has_role(node, NODE_ROLE_PREFILL)) {
		prefill_schedule(node->prefill, sim->now_ns, &node->batch, &node->actions[1]);
		do_actions(node, NODE_ROLE_PREFILL);
	}
	/* What the actions gave rise to; nothing of the batch may change by it (R2). */
	flush(node);
	if (!node->batch.row_count)
		return;
	node->busy = true;
	sim_engine_copies(node);
	uint64_t layer_ns = sim->config.slowness * (500 * NS_PER_US + node->batch.token_count *
									      50 * NS_PER_US) +
			    sim_random(sim, 200 * NS_PER_US);
	for (uint32_t i = 0; i < SIM_LAYERS; i++) {
		struct layer *layer = malloc(sizeof *layer);
		CHECK(layer);
		*layer = (struct layer){ node, i };
		sim_post(sim, &node->process, (i + 1) * layer_ns, run_layer, layer);
	}
	sim_post(sim, &node->process, SIM_LAYERS * layer_ns + 10 * NS_PER_US, run_batch_done, node);
}

/* ---- the conductor ---- */

static void send_hello(struct sim_node *node, struct sim_conn *conn)
{
	struct node_hello hello = {
		.node = node->name,
		.incarnation = node->incarnation,
		.role = node->role,
		.model = SIM_MODEL,
		.kv_format = kv_format,
		.numerics = "sim",
		.block_tokens = SIM_BLOCK_TOKENS,
		.blocks_total = node->kv.pool.block_count,
		.max_num_seqs = SEQUENCES_MAX,
		.max_model_len = SIM_CONTEXT,
		.peer_host = node->name,
		.peer_port = 1,
		.admin_host = "127.0.0.1",
		.admin_port = 1,
	};
	struct buf body;

	buf_init(&body, 0);
	node_codec_hello(&body, &hello);
	sim_send(node->sim, conn, CLIENT_SIDE, FRAME_HELLO, &body);
	buf_fini(&body);
}

/* Ordered in time, and of one node only: the cores know each other by it alone. */
static uint64_t incarnation_new(const struct sim *sim, const struct sim_node *node)
{
	uint64_t now = sim->now_ns / NS_PER_US * SIM_NODES_MAX + node->process.index;

	return MAX(node->incarnation + SIM_NODES_MAX, now);
}

static void renew(struct sim_node *node)
{
	node->incarnation = incarnation_new(node->sim, node);
	if (node->decode)
		decode_renew(node->decode, node->incarnation);
	if (node->prefill)
		prefill_renew(node->prefill, node->incarnation);
}

static void conductor_lost(struct sim_node *node)
{
	if (!node->welcomed)
		return;
	node->welcomed = false;
	sim_node_event(node, &(struct node_event){ .kind = NODE_CONDUCTOR_LOST,
						   .lost = { node->conductor_incarnation } });
}

static void conductor_on_ready(struct sim *sim, struct sim_conn *conn, void *context)
{
	(void)sim;
	send_hello(context, conn);
}

static void on_welcome(struct sim_node *node, const uint8_t *body, uint32_t bytes)
{
	struct node_welcome welcome;

	if (node_codec_read_welcome(node->codec, body, bytes, &welcome) < 0) {
		sim_fail(node->sim, "%s cannot read a Welcome", node->name);
		return;
	}
	if (!welcome.accepted) {
		links_reset(node);
		return;
	}
	node->welcomed = true;
	node->conductor_incarnation = welcome.incarnation;
	node->lease_ns = welcome.lease_ms * NS_PER_MS;
	node->heard_ns = node->sim->now_ns;
	node->report_due_ns = 0;
	node->dispatches_seen = 0;
}

static void on_command(struct sim_node *node, const uint8_t *body, uint32_t bytes)
{
	struct node_command command;

	if (node_codec_read_command(node->codec, body, bytes, &command) < 0) {
		sim_fail(node->sim, "%s cannot read a Command", node->name);
	} else if (command.kind == NODE_COMMAND_DRAIN && node->state == 2) {
		node->state = 3;
		sim_node_event(node, &(struct node_event){ .kind = NODE_DRAIN,
							   .drain = { NS_PER_S / 2 } });
	} else if (command.kind == NODE_COMMAND_UNDRAIN && node->state > 2) {
		node->state = 2;
		sim_node_event(node, &(struct node_event){ .kind = NODE_UNDRAIN });
	}
}

/* V3 planted: a block that the released dispatch shared with others is let go of once more. */
static void plant_double_release(struct sim_node *node, struct node_event *event)
{
	uint32_t before[512], after;

	for (uint32_t b = 0; b < node->kv.pool.block_count; b++)
		before[b] = node->kv.pool.blocks[b].refs;
	sim_node_event(node, event);
	for (uint32_t b = 0; b < node->kv.pool.block_count && !node->planted; b++) {
		after = node->kv.pool.blocks[b].refs;
		if (after >= before[b] || !after)
			continue;
		kv_node_unref(&node->kv, (kv_block_id){ b });
		node->planted = true;
	}
}

static void on_dispatch(struct sim_node *node, uint16_t type, const uint8_t *body, uint32_t bytes)
{
	struct node_event event;
	int error = node_codec_read(node->codec, type, body, bytes, &event);

	if (error < 0) {
		sim_fail(node->sim, "%s cannot read a frame of type %u: %s", node->name, type,
			 err_text(error));
		return;
	}
	if (type == FRAME_PREFILL) {
		node->dispatches_seen = event.prefill.dispatch;
		CHECK(has_role(node, NODE_ROLE_PREFILL));
	}
	if (type == FRAME_RELEASE && node->sim->config.plant == SIM_PLANT_DOUBLE_RELEASE &&
	    !node->planted)
		plant_double_release(node, &event);
	else
		sim_node_event(node, &event);
	sim_node_pump(node);
}

static void conductor_on_frame(struct sim *sim, struct sim_conn *conn, uint16_t type,
			       const uint8_t *body, uint32_t bytes, void *context)
{
	struct sim_node *node = context;

	(void)sim;
	sim_node_notice_sleep(node);
	if (node->conductor != conn || conn->closed[CLIENT_SIDE])
		return;
	if (type == FRAME_WELCOME) {
		on_welcome(node, body, bytes);
		return;
	}
	if (!node->welcomed)
		return;
	node->heard_ns = node->sim->now_ns;
	if (type == FRAME_COMMAND)
		on_command(node, body, bytes);
	else if (type == FRAME_PREFILL || type == FRAME_RELEASE)
		on_dispatch(node, type, body, bytes);
	sim_check_node(sim, node);
}

static void conductor_on_close(struct sim *sim, struct sim_conn *conn, void *context)
{
	struct sim_node *node = context;

	if (node->conductor != conn)
		return;
	node->conductor = NULL;
	node->redial_ns = sim->now_ns + 100 * NS_PER_MS + sim_random(sim, 400 * NS_PER_MS);
	conductor_lost(node);
	sim_node_pump(node);
	sim_check_node(sim, node);
}

const struct sim_conn_ops sim_node_conductor_ops = { conductor_on_ready, conductor_on_frame,
						     conductor_on_close };

static void send_report(struct sim_node *node)
{
	struct node_report report = { .role = node->role,
				      .state = node->state,
				      .dispatches_seen = node->dispatches_seen,
				      .sequence = ++node->report_sequence,
				      .frames_refused = node->frames_refused };
	struct buf body;

	if (node->decode)
		decode_load(node->decode, &report.load);
	if (node->prefill)
		prefill_load(node->prefill, &report.load);
	memcpy(report.blocks, node->kv.pool.counts, sizeof report.blocks);
	buf_init(&body, 0);
	node_codec_report(&body, &report);
	sim_send(node->sim, node->conductor, CLIENT_SIDE, FRAME_REPORT, &body);
	buf_fini(&body);
}

/* ---- other nodes ---- */

static void peer_on_ready(struct sim *sim, struct sim_conn *conn, void *context)
{
	struct sim_peer *peer = context;

	(void)sim;
	send_hello(peer->node, conn);
}

static void peer_introduced(struct sim_peer *peer, const uint8_t *body, uint32_t bytes)
{
	struct node_welcome welcome;
	size_t at = 0;

	CHECK(node_codec_read_welcome(peer->node->codec, body, bytes, &welcome) == 0);
	if (!welcome.accepted || welcome.incarnation != peer->incarnation) {
		sim_close(peer->node->sim, peer->conn, CLIENT_SIDE);
		return;
	}
	peer->introduced = true;
	while (at < peer->waiting.bytes) {
		struct buf frame;
		uint16_t type;
		uint32_t length;
		memcpy(&type, peer->waiting.data + at, sizeof type);
		memcpy(&length, peer->waiting.data + at + sizeof type, sizeof length);
		at += sizeof type + sizeof length;
		buf_init(&frame, 0);
		buf_append(&frame, peer->waiting.data + at, length);
		sim_send(peer->node->sim, peer->conn, CLIENT_SIDE, type, &frame);
		buf_fini(&frame);
		at += length;
	}
	buf_clear(&peer->waiting);
}

static void peer_hello(struct sim_peer *peer, const uint8_t *body, uint32_t bytes)
{
	struct sim_node *node = peer->node;
	struct node_hello hello;
	bool accepted = true;
	struct buf answer;

	CHECK(node_codec_read_hello(node->codec, body, bytes, &hello) == 0);
	list_for_each(link, &node->peers) {
		struct sim_peer *other = list_entry(link, struct sim_peer, link);
		if (other->side == CLIENT_SIDE || !other->introduced || strcmp(other->name, hello.node))
			continue;
		if (other->incarnation > hello.incarnation)
			accepted = false;
		else
			sim_close(node->sim, other->conn, SERVER_SIDE);
	}
	buf_init(&answer, 0);
	node_codec_welcome(&answer, &(struct node_welcome){ .accepted = accepted,
							     .reason = accepted ? "" : "newer known",
							     .incarnation = node->incarnation,
							     .node = node->name });
	sim_send(node->sim, peer->conn, SERVER_SIDE, FRAME_WELCOME, &answer);
	buf_fini(&answer);
	if (!accepted) {
		sim_close(node->sim, peer->conn, SERVER_SIDE);
		return;
	}
	peer->introduced = true;
	peer->incarnation = hello.incarnation;
	snprintf(peer->name, sizeof peer->name, "%s", hello.node);
}

static void peer_on_frame(struct sim *sim, struct sim_conn *conn, uint16_t type,
			  const uint8_t *body, uint32_t bytes, void *context)
{
	struct sim_peer *peer = context;
	struct sim_node *node = peer->node;
	struct node_event event;

	sim_node_notice_sleep(node);
	if (conn->closed[peer->side])
		return;
	if (!peer->introduced) {
		if (peer->side == CLIENT_SIDE)
			peer_introduced(peer, body, bytes);
		else
			peer_hello(peer, body, bytes);
		return;
	}
	int error = node_codec_read(node->codec, type, body, bytes, &event);
	if (error < 0) {
		sim_fail(sim, "%s cannot read a frame of type %u: %s", node->name, type, err_text(error));
		return;
	}
	if (type == FRAME_RESERVE_ANSWER && !sim_transfer_answer(node, &event)) {
		node->frames_refused++;
		return;
	}
	if (type == FRAME_RELEASE)
		event.release.by_peer = true;
	sim_node_event(node, &event);
	sim_node_pump(node);
	sim_check_node(sim, node);
}

static void peer_on_close(struct sim *sim, struct sim_conn *conn, void *context)
{
	struct sim_peer *peer = context;
	struct sim_node *node = peer->node;
	uint64_t incarnation = peer->incarnation;
	bool told = peer->side == CLIENT_SIDE || peer->introduced;

	(void)conn;
	peer_free(peer);
	if (told)
		sim_node_event(node, &(struct node_event){ .kind = NODE_PEER_LOST,
							   .lost = { incarnation } });
	sim_node_pump(node);
	sim_check_node(sim, node);
}

const struct sim_conn_ops sim_node_peer_ops = { peer_on_ready, peer_on_frame, peer_on_close };

void *sim_node_accept(struct sim *sim, struct sim_node *node, struct sim_conn *conn)
{
	struct sim_peer *peer = peer_new(node, SERVER_SIDE);

	(void)sim;
	peer->conn = conn;
	return peer;
}

static void links_reset(struct sim_node *node)
{
	if (node->conductor)
		sim_close(node->sim, node->conductor, CLIENT_SIDE);
	conductor_lost(node);
	list_for_each_safe(link, after, &node->peers) {
		struct sim_peer *peer = list_entry(link, struct sim_peer, link);
		sim_close(node->sim, peer->conn, peer->side);
	}
	renew(node);
}

/* ---- life ---- */

static void run_tick(struct sim *sim, void *argument, bool alive)
{
	struct sim_node *node = argument;

	if (!alive || sim->failed)
		return;
	sim_node_notice_sleep(node);
	sim_node_event(node, &(struct node_event){ .kind = NODE_TICK });
	if (node->state == 3 && (!node->decode || decode_idle(node->decode)) &&
	    (!node->prefill || prefill_idle(node->prefill)))
		node->state = 4;
	if (!node->conductor) {
		if (sim->now_ns >= node->redial_ns)
			node->conductor = sim_connect(sim, &node->process, &sim->conductor_process,
						      node);
	} else if (node->welcomed && sim->now_ns - node->heard_ns > node->lease_ns) {
		sim_close(sim, node->conductor, CLIENT_SIDE);
	} else if (node->welcomed && sim->now_ns >= node->report_due_ns) {
		node->report_due_ns = sim->now_ns + 500 * NS_PER_MS;
		send_report(node);
	}
	sim_node_pump(node);
	sim_check_node(sim, node);
	sim_post(sim, &node->process, TICK_NS, run_tick, node);
}

static void cores_new(struct sim_node *node)
{
	struct decode_config decode = {
		.incarnation = node->incarnation,
		.model = SIM_MODEL,
		.layer_count = SIM_LAYERS,
		.max_model_len = SIM_CONTEXT,
		.sequences_max = SEQUENCES_MAX,
		.eos_count = 1,
		.landing_timeout_ns = 4 * NS_PER_S,
	};
	struct prefill_config prefill = {
		.incarnation = node->incarnation,
		.model = SIM_MODEL,
		.layer_count = SIM_LAYERS,
		.max_model_len = SIM_CONTEXT,
		.requests_max = REQUESTS_MAX,
		.chunk_tokens = 16 + (uint32_t)(node->sim->config.seed % 3) * 17,
		.ahead_tokens = BATCH_TOKENS,
		.predicted_tokens = 16,
		.eos_count = 1,
		.answer_timeout_ns = 4 * NS_PER_S,
		.send_timeout_ns = 4 * NS_PER_S,
	};

	if (has_role(node, NODE_ROLE_DECODE))
		CHECK(decode_new(&decode, &node->kv, &node->decode) == 0);
	if (has_role(node, NODE_ROLE_PREFILL))
		CHECK(prefill_new(&prefill, &node->kv, &node->prefill) == 0);
}

void sim_node_start(struct sim *sim, struct sim_node *node)
{
	const struct node_codec_limits limits = { SIM_VOCAB, SIM_CONTEXT };

	node->sim = sim;
	node->process.name = node->name;
	node->process.alive = true;
	node->incarnation = incarnation_new(sim, node);
	node->state = 2;
	node->turned_ns = 0;
	list_init(&node->peers);
	list_init(&node->expects);
	list_init(&node->flights);
	CHECK(kv_node_init(&node->kv, sim->config.blocks, SIM_BLOCK_TOKENS) == 0);
	node->memory = calloc(sim->config.blocks * SIM_LAYERS, sizeof *node->memory);
	node->outgoing = calloc(64, sizeof *node->outgoing);
	for (uint32_t i = 0; i < 2; i++)
		CHECK(node_actions_init(&node->actions[i], REQUESTS_MAX + SEQUENCES_MAX,
					BATCH_TOKENS + NODE_CHOICES_MAX) == 0);
	CHECK(node_batch_init(&node->batch, SEQUENCES_MAX + 8, BATCH_TOKENS) == 0);
	node->results = calloc(node->batch.sample_max, sizeof *node->results);
	node->sampled = calloc(node->batch.sample_max, sizeof *node->sampled);
	node->codec = node_codec_new(&limits);
	CHECK(node->memory && node->outgoing && node->results && node->sampled && node->codec);
	cores_new(node);
	node->busy = node->welcomed = false;
	node->depth = node->deferred.count = 0;
	node->conductor = NULL;
	node->redial_ns = 0;
	sim_trace(sim, "%s starts as %llu", node->name, (unsigned long long)node->incarnation);
	sim_post(sim, &node->process, sim_random(sim, TICK_NS), run_tick, node);
}

void sim_node_free(struct sim_node *node)
{
	sim_transfer_drop(node);
	list_for_each_safe(link, after, &node->peers)
		peer_free(list_entry(link, struct sim_peer, link));
	prefill_free(node->prefill);
	decode_free(node->decode);
	node->prefill = NULL;
	node->decode = NULL;
	for (uint32_t i = 0; i < 2; i++)
		node_actions_fini(&node->actions[i]);
	node_batch_fini(&node->batch);
	node_codec_free(node->codec);
	kv_node_fini(&node->kv);
	free(node->memory);
	free(node->outgoing);
	free(node->results);
	free(node->sampled);
	node_event_queue_fini(&node->deferred);
}

void sim_node_crash(struct sim *sim, struct sim_node *node)
{
	sim_trace(sim, "%s crashes", node->name);
	sim_process_crash(sim, &node->process);
	sim_node_free(node);
}
