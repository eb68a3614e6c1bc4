/*
 * Connections: to each conductor (kept up, with a lease), to decode nodes (p, on demand), and from
 * prefill nodes (d). A connection that ends takes what came over it along: the conductor and the
 * other node see the same end and act on it too, so nothing has to be said.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "node/private.h"
#include "proto/frame.h"

#define RETRY_NS_MIN (100 * NS_PER_MS)
#define RETRY_NS_MAX (2 * NS_PER_S)
#define PEER_WAITING_BYTES_MAX (64u << 20)
#define PEER_IDLE_NS (120 * NS_PER_S)

static void hello_fill(const struct node *node, struct node_hello *hello)
{
	*hello = (struct node_hello){
		.node = node->name,
		.incarnation = node->incarnation,
		.role = (enum node_role)node->config.role,
		.model = node->served_name,
		.kv_format = node->kv_format,
		.numerics = engine_numerics(engine_thread_engine(node->engine)),
		.block_tokens = node->shape.block_tokens,
		.block_bytes = node->arena.block_bytes,
		.blocks_total = node->arena.block_count,
		.max_num_seqs = (uint32_t)node->config.max_num_seqs,
		.max_num_batched_tokens = (uint32_t)node->config.max_num_batched_tokens,
		.max_model_len = node->max_model_len,
		.peer_host = node->config.peer_host,
		.peer_port = node->peer_port,
		.admin_port = node->admin_port,
		.admin_host = node->config.admin_host,
	};
	hello->transfer_bytes = (uint32_t)xfer_address(node->xfer, hello->transfer);
}

static void send_hello(struct node *node, struct wire_conn *conn)
{
	struct node_hello hello;
	struct buf body;
	hello_fill(node, &hello);
	buf_init(&body, FRAME_BODY_BYTES_MAX);
	node_codec_hello(&body, &hello);
	(void)wire_send(conn, FRAME_HELLO, body.data, (uint32_t)body.bytes);
	buf_fini(&body);
}

/* ---- conductors ---- */

static void conductor_on_ready(struct wire_conn *conn, void *context)
{
	struct conductor_link *link = context;
	send_hello(link->node, conn);
}

static int conductor_welcome(struct conductor_link *link, const uint8_t *body, uint32_t bytes)
{
	struct node *node = link->node;
	struct node_welcome welcome;
	int status = node_codec_read_welcome(node->codec, body, bytes, &welcome);
	if (status < 0)
		return status;
	if (!welcome.accepted) {
		log_warning("conductor %s:%u does not take this node: %s", link->host, link->port, welcome.reason);
		/* Fenced there, perhaps: come back as a newer life. Other nodes know this one by the
		 * old one, so their connections go too. */
		node__links_reset(node);
		node_renew(node);
		return BATON_EFENCED;
	}
	link->welcomed = true;
	link->incarnation = welcome.incarnation;
	link->heartbeat_ns = welcome.heartbeat_ms * NS_PER_MS;
	link->lease_ns = welcome.lease_ms * NS_PER_MS;
	link->heard_ns = clock_now_ns();
	link->report_due_ns = 0;
	link->retry_wait_ns = RETRY_NS_MIN;
	link->dispatches_seen = 0;
	log_info("joined conductor %s at %s:%u", welcome.node, link->host, link->port);
	return 0;
}

static void conductor_command(struct conductor_link *link, const struct node_command *command)
{
	struct node *node = link->node;
	if (command->kind == NODE_COMMAND_DRAIN) {
		node_drain(node, node->config.shutdown_timeout_ns);
	} else if (command->kind == NODE_COMMAND_UNDRAIN && !node->stopping &&
		   (node->state == NODE_DRAINING || node->state == NODE_DRAINED)) {
		node->state = NODE_READY;
		log_info("takes work again");
		node_event(node, &(struct node_event){ .kind = NODE_UNDRAIN });
	}
}

/* Why this node has no part in a Prefill that the cores would not even see as wrong; NULL: it has. */
static const char *prefill_refusal(const struct node *node, const struct node_event *event)
{
	if (!node_has_role(node, NODE_ROLE_PREFILL))
		return "this node computes no prompts";
	if (event->prefill.has_decode && event->prefill.decode.incarnation == node->incarnation &&
	    !node_has_role(node, NODE_ROLE_DECODE))
		return "this node does not decode";
	return NULL;
}

static void refuse_prefill(struct node *node, const struct node_event *event, const char *detail)
{
	struct node_action action = {
		.kind = NODE_DO_RETURNED,
		.ref = event->prefill.request.ref,
		.returned = { .reason = RETURNED_NO_ROOM, .detail = detail },
	};
	struct buf body;
	buf_init(&body, FRAME_BODY_BYTES_MAX);
	node_codec_returned(&body, &action);
	node__send_conductor(node, action.ref.conductor, FRAME_RETURNED, &body);
	buf_fini(&body);
}

static int conductor_on_frame(struct wire_conn *conn, uint16_t type, const uint8_t *body, uint32_t bytes,
			      void *context)
{
	struct conductor_link *link = context;
	struct node *node = link->node;
	struct node_event event;
	struct node_command command;
	int status;

	node_notice_sleep(node);
	if (link->conn != conn)
		return -ECANCELED; /* given up just now */
	if (type == FRAME_WELCOME)
		return conductor_welcome(link, body, bytes);
	if (!link->welcomed)
		return BATON_EPROTOCOL;
	link->heard_ns = node->turned_ns;
	switch (type) {
	case FRAME_ACK:
		return 0;
	case FRAME_COMMAND:
		status = node_codec_read_command(node->codec, body, bytes, &command);
		if (!status)
			conductor_command(link, &command);
		return status;
	case FRAME_PREFILL:
	case FRAME_RELEASE:
		status = node_codec_read(node->codec, type, body, bytes, &event);
		if (status < 0)
			return status;
		if (type == FRAME_PREFILL) {
			link->dispatches_seen = event.prefill.dispatch;
			if (event.prefill.request.ref.conductor != link->incarnation) {
				node->frames_refused++;
				return 0;
			}
			const char *refusal = prefill_refusal(node, &event);
			if (refusal) {
				refuse_prefill(node, &event, refusal);
				return 0;
			}
		}
		node_event(node, &event);
		node_pump(node);
		return 0;
	default:
		node->frames_refused++;
		return 0;
	}
}

/* What it had asked for is over; it sees the same end and resumes elsewhere. */
static void conductor_lost(struct conductor_link *link)
{
	if (!link->welcomed)
		return;
	link->welcomed = false;
	node_event(link->node, &(struct node_event){ .kind = NODE_CONDUCTOR_LOST, .lost = { link->incarnation } });
}

static void conductor_on_close(struct wire_conn *conn, int reason, void *context)
{
	struct conductor_link *link = context;
	if (link->conn != conn)
		return;
	link->conn = NULL;
	link->retry_ns = clock_now_ns() + link->retry_wait_ns;
	link->retry_wait_ns = MIN(link->retry_wait_ns * 2, RETRY_NS_MAX);
	if (link->welcomed)
		log_warning("lost conductor %s:%u: %s", link->host, link->port, err_text(reason));
	else if (reason == BATON_EAUTH)
		log_warning("conductor %s:%u: %s", link->host, link->port, err_text(reason));
	conductor_lost(link);
}

static const struct wire_callbacks conductor_callbacks = { conductor_on_ready, conductor_on_frame,
							   conductor_on_close };

static void conductor_dial(struct conductor_link *link)
{
	struct node *node = link->node;
	if (wire_connect(&node->loop, link->host, link->port, NULL, &node->key, &conductor_callbacks, link,
			 &link->conn) < 0) {
		link->conn = NULL;
		link->retry_ns = clock_now_ns() + RETRY_NS_MAX;
	}
}

static void send_report(struct conductor_link *link)
{
	struct node *node = link->node;
	struct xfer_stats transfers;
	struct node_report report = { .role = (enum node_role)node->config.role, .state = node->state };
	struct buf body;

	node_load(node, &report.load);
	xfer_stats(node->xfer, &transfers);
	report.dispatches_seen = link->dispatches_seen;
	report.sequence = ++link->report_sequence;
	memcpy(report.blocks, node->kv.pool.counts, sizeof report.blocks);
	report.landed_shm = transfers.landed_bytes[XFER_SHM];
	report.landed_tcp = transfers.landed_bytes[XFER_TCP];
	report.landed_rdma = transfers.landed_bytes[XFER_RDMA];
	for (size_t i = 0; i < ARRAY_COUNT(transfers.sent_bytes); i++)
		report.sent += transfers.sent_bytes[i];
	report.slices_corrupt = transfers.slices_corrupt;
	report.frames_refused = node->frames_refused;
	buf_init(&body, FRAME_BODY_BYTES_MAX);
	node_codec_report(&body, &report);
	(void)wire_send(link->conn, FRAME_REPORT, body.data, (uint32_t)body.bytes);
	buf_fini(&body);
}

void node__send_conductor(struct node *node, uint64_t incarnation, uint16_t type, const struct buf *body)
{
	for (uint32_t i = 0; i < node->conductor_count; i++) {
		struct conductor_link *link = &node->conductors[i];
		if (!link->welcomed || link->incarnation != incarnation)
			continue;
		int status = body->failed ? -ENOMEM : wire_send(link->conn, type, body->data, (uint32_t)body->bytes);
		/* A lost token frame cannot be mended: the connection goes, the conductor resumes. */
		if (status < 0)
			wire_close(link->conn, status);
		return;
	}
}

/* ---- peers ---- */

static void peer_on_ready(struct wire_conn *conn, void *context)
{
	struct peer_link *link = context;
	if (link->outgoing)
		send_hello(link->node, conn);
}

static void peer_flush(struct peer_link *link)
{
	size_t at = 0;
	while (at < link->waiting.bytes) {
		uint16_t type;
		uint32_t bytes;
		memcpy(&type, link->waiting.data + at, sizeof type);
		memcpy(&bytes, link->waiting.data + at + sizeof type, sizeof bytes);
		at += sizeof type + sizeof bytes;
		if (wire_send(link->conn, type, link->waiting.data + at, bytes) < 0) {
			wire_close(link->conn, -EPIPE);
			break;
		}
		at += bytes;
	}
	buf_fini(&link->waiting);
	buf_init(&link->waiting, PEER_WAITING_BYTES_MAX);
}

static int peer_welcome(struct peer_link *link, const uint8_t *body, uint32_t bytes)
{
	struct node_welcome welcome;
	int status = node_codec_read_welcome(link->node->codec, body, bytes, &welcome);
	if (status < 0)
		return status;
	if (!welcome.accepted || welcome.incarnation != link->incarnation) {
		log_warning("node %s refused: %s", link->name,
			    welcome.accepted ? "it is another life than the one named" : welcome.reason);
		return BATON_EFENCED;
	}
	link->introduced = true;
	peer_flush(link);
	return 0;
}

/* An older life of a node that has a newer one here is refused; the newer fences the older. */
static const char *peer_refusal(struct node *node, const struct node_hello *hello)
{
	if (memcmp(hello->kv_format, node->kv_format, sizeof node->kv_format))
		return "its KV format differs: model, block size or layout";
	if (strcmp(hello->numerics, engine_numerics(engine_thread_engine(node->engine))))
		return "its numerics class differs";
	list_for_each_safe(entry, after, &node->peers) {
		struct peer_link *other = list_entry(entry, struct peer_link, in_peers);
		if (other->outgoing || !other->introduced || strcmp(other->name, hello->node))
			continue;
		if (other->incarnation > hello->incarnation)
			return "a newer life of that node is connected";
		wire_close(other->conn, BATON_EFENCED);
	}
	return NULL;
}

static int peer_hello(struct peer_link *link, const uint8_t *body, uint32_t bytes)
{
	struct node *node = link->node;
	struct node_hello hello;
	struct buf answer;
	int status = node_codec_read_hello(node->codec, body, bytes, &hello);
	if (status < 0)
		return status;
	const char *refusal = peer_refusal(node, &hello);
	buf_init(&answer, FRAME_BODY_BYTES_MAX);
	node_codec_welcome(&answer, &(struct node_welcome){ .accepted = !refusal,
							     .reason = refusal ? refusal : "",
							     .incarnation = node->incarnation,
							     .node = node->name });
	(void)wire_send(link->conn, FRAME_WELCOME, answer.data, (uint32_t)answer.bytes);
	buf_fini(&answer);
	if (refusal) {
		node->frames_refused++;
		return BATON_EFENCED;
	}
	link->introduced = true;
	link->incarnation = hello.incarnation;
	snprintf(link->name, sizeof link->name, "%s", hello.node);
	return 0;
}

static int peer_on_frame(struct wire_conn *conn, uint16_t type, const uint8_t *body, uint32_t bytes,
			 void *context)
{
	struct peer_link *link = context;
	struct node *node = link->node;
	struct node_event event;

	node_notice_sleep(node);
	if (link->conn != conn)
		return -ECANCELED;
	if (!link->introduced)
		return link->outgoing && type == FRAME_WELCOME ? peer_welcome(link, body, bytes)
		       : !link->outgoing && type == FRAME_HELLO ? peer_hello(link, body, bytes)
								: BATON_EPROTOCOL;
	bool fits = link->outgoing ? type == FRAME_RESERVE_ANSWER
				   : type == FRAME_RESERVE || type == FRAME_FIRST_TOKENS || type == FRAME_RELEASE;
	if (!fits) {
		node->frames_refused++;
		return 0;
	}
	int status = node_codec_read(node->codec, type, body, bytes, &event);
	if (status < 0)
		return status;
	if (type == FRAME_RESERVE_ANSWER && !node__transfer_answer(node, &event)) {
		node->frames_refused++;
		return 0;
	}
	if (type == FRAME_RESERVE && (!node_has_role(node, NODE_ROLE_DECODE) || event.reserve.source != link->incarnation)) {
		struct buf answer;
		node->frames_refused++;
		buf_init(&answer, FRAME_BODY_BYTES_MAX);
		node_codec_reserve_answer(&answer, &event.reserve.request.ref, false, 0,
					  "this node does not decode", NULL, 0);
		(void)wire_send(conn, FRAME_RESERVE_ANSWER, answer.data, (uint32_t)answer.bytes);
		buf_fini(&answer);
		return 0;
	}
	if (type == FRAME_RELEASE)
		event.release.by_peer = true;
	link->used_ns = node->turned_ns;
	node_event(node, &event);
	node_pump(node);
	return 0;
}

static void peer_free(struct peer_link *link)
{
	list_remove(&link->in_peers);
	buf_fini(&link->waiting);
	free(link);
}

static void peer_on_close(struct wire_conn *conn, int reason, void *context)
{
	struct peer_link *link = context;
	struct node *node = link->node;
	uint64_t incarnation = link->incarnation;
	bool told = link->outgoing || link->introduced;
	if (told && reason != -ECANCELED)
		log_warning("lost node %s: %s", link->name, err_text(reason));
	peer_free(link);
	if (told)
		node_event(node, &(struct node_event){ .kind = NODE_PEER_LOST, .lost = { incarnation } });
	node_pump(node);
}

static const struct wire_callbacks peer_callbacks = { peer_on_ready, peer_on_frame, peer_on_close };

static struct peer_link *peer_new(struct node *node, bool outgoing)
{
	struct peer_link *link = calloc(1, sizeof *link);
	if (!link)
		return NULL;
	link->node = node;
	link->outgoing = outgoing;
	link->used_ns = clock_now_ns();
	buf_init(&link->waiting, PEER_WAITING_BYTES_MAX);
	list_push_back(&node->peers, &link->in_peers);
	return link;
}

static void *peer_on_accept(struct wire_conn *conn, void *context)
{
	struct peer_link *link = peer_new(context, false);
	if (link)
		link->conn = conn;
	return link;
}

struct peer_link *node__peer_out(struct node *node, const struct node_peer *peer)
{
	list_for_each(entry, &node->peers) {
		struct peer_link *link = list_entry(entry, struct peer_link, in_peers);
		if (link->outgoing && link->incarnation == peer->incarnation)
			return link;
	}
	struct peer_link *link = peer_new(node, true);
	if (!link)
		return NULL;
	link->incarnation = peer->incarnation;
	snprintf(link->name, sizeof link->name, "%s", peer->name);
	if (wire_connect(&node->loop, peer->host, (uint16_t)peer->port, NULL, &node->key, &peer_callbacks, link,
			 &link->conn) < 0) {
		peer_free(link);
		return NULL;
	}
	return link;
}

void node__peer_send(struct peer_link *link, uint16_t type, const struct buf *body)
{
	uint32_t bytes = (uint32_t)body->bytes;
	link->used_ns = clock_now_ns();
	int status = body->failed ? -ENOMEM : 0;
	if (!status && link->introduced) {
		status = wire_send(link->conn, type, body->data, bytes);
	} else if (!status) {
		buf_append(&link->waiting, &type, sizeof type);
		buf_append(&link->waiting, &bytes, sizeof bytes);
		buf_append(&link->waiting, body->data, bytes);
		status = link->waiting.failed ? -ENOMEM : 0;
	}
	/* NODE_PEER_LOST follows and gives the work back. */
	if (status < 0)
		wire_close(link->conn, status);
}

bool node__peer_answer(struct node *node, uint64_t incarnation, uint16_t type, const struct buf *body)
{
	list_for_each(entry, &node->peers) {
		struct peer_link *link = list_entry(entry, struct peer_link, in_peers);
		if (!link->outgoing && link->introduced && link->incarnation == incarnation) {
			node__peer_send(link, type, body);
			return true;
		}
	}
	return false;
}

/* ---- life ---- */

static int parse_conductors(struct node *node)
{
	const char *at = node->config.conductors;
	while (*at) {
		size_t bytes = strcspn(at, "\n");
		const char *colon = memrchr(at, ':', bytes);
		unsigned long port = colon ? strtoul(colon + 1, NULL, 10) : 0;
		struct conductor_link *link = &node->conductors[node->conductor_count];
		if (!colon || !port || port > 65535 || (size_t)(colon - at) >= sizeof link->host) {
			log_error("--conductor %.*s: give HOST:PORT, such as 127.0.0.1:7600", (int)bytes, at);
			return -EINVAL;
		}
		if (node->conductor_count == NODE_CONDUCTORS_MAX - 1) {
			log_error("--conductor: at most %d", NODE_CONDUCTORS_MAX - 1);
			return -EINVAL;
		}
		link->node = node;
		link->port = (uint16_t)port;
		link->retry_wait_ns = RETRY_NS_MIN;
		memcpy(link->host, at, (size_t)(colon - at));
		node->conductor_count++;
		at += bytes + (at[bytes] == '\n');
	}
	return 0;
}

int node__links_open(struct node *node)
{
	const struct node_config *config = &node->config;
	const struct node_codec_limits limits = {
		.vocab_count = model_config(node->model)->vocab_count,
		.max_model_len = node->max_model_len,
	};
	node->codec = node_codec_new(&limits);
	if (!node->codec)
		return -ENOMEM;
	int status = parse_conductors(node);
	if (status < 0)
		return status;
	status = wire_listen(&node->loop, config->peer_host, (uint16_t)config->peer_port, &node->key,
			     &peer_callbacks, peer_on_accept, node, &node->listener, &node->peer_port);
	if (status < 0)
		log_error("cannot listen on %s:%llu: %s", config->peer_host,
			  (unsigned long long)config->peer_port, err_text(status));
	return status;
}

void node__links_start(struct node *node)
{
	node->state = NODE_READY;
	for (uint32_t i = 0; i < node->conductor_count; i++)
		conductor_dial(&node->conductors[i]);
	printf("ready peer=%s:%u admin=%s:%u\n", node->config.peer_host, node->peer_port,
	       node->config.admin_host, node->admin_port);
	fflush(stdout);
}

void node__links_tick(struct node *node, uint64_t now_ns)
{
	for (uint32_t i = 0; i < node->conductor_count; i++) {
		struct conductor_link *link = &node->conductors[i];
		if (!link->conn) {
			if (!node->stopping && now_ns >= link->retry_ns)
				conductor_dial(link);
		} else if (link->welcomed && now_ns - link->heard_ns > link->lease_ns) {
			wire_close(link->conn, BATON_ELEASE);
		} else if (link->welcomed && now_ns >= link->report_due_ns) {
			link->report_due_ns = now_ns + link->heartbeat_ns;
			send_report(link);
		}
	}
	list_for_each_safe(entry, after, &node->peers) {
		struct peer_link *link = list_entry(entry, struct peer_link, in_peers);
		if (link->outgoing && node_idle(node) && now_ns - link->used_ns > PEER_IDLE_NS)
			wire_close(link->conn, -ECANCELED);
	}
}

/* Every connection of the old life goes; conductors are dialled again by the tick. */
void node__links_reset(struct node *node)
{
	for (uint32_t i = 0; i < node->conductor_count; i++) {
		if (node->conductors[i].conn)
			wire_close(node->conductors[i].conn, BATON_ELEASE);
		conductor_lost(&node->conductors[i]);
	}
	list_for_each_safe(entry, after, &node->peers) {
		struct peer_link *link = list_entry(entry, struct peer_link, in_peers);
		wire_close(link->conn, BATON_ELEASE);
	}
}

void node__links_close(struct node *node)
{
	node__links_reset(node);
	wire_listener_close(node->listener);
	node->listener = NULL;
}
