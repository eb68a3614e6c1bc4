/*
 * One connection: its handshake (xfer_wire.h), then either an outbound (the connector sends
 * slices) or an inbound (the acceptor receives them), until it is closed. Handlers may close the
 * connection; it is freed at the end of the thread's turn, so what they return to may look at it.
 */
#include "xfer/xfer_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"

static void conn_ready(struct xfer__source *source, uint32_t events);

static struct xfer__conn *conn_new(struct xfer *xfer, const struct xfer__ops *ops, int fd,
				   enum xfer__conn_state state, uint64_t now_ns)
{
	struct xfer__conn *conn = calloc(1, sizeof *conn);
	if (!conn)
		return NULL;
	conn->source = (struct xfer__source){ .ready = conn_ready, .xfer = xfer, .fd = fd };
	conn->ops = ops;
	conn->xfer = xfer;
	conn->state = state;
	conn->slab_fd = -1;
	conn->started_ns = conn->progress_ns = now_ns;
	list_init(&conn->link);
	list_init(&conn->peer_link);
	list_init(&conn->ready_link);
	if (xfer__source_add(&conn->source, state == CONN_CONNECTING ? EPOLLOUT : EPOLLIN)) {
		free(conn);
		return NULL;
	}
	list_push_back(&xfer->conns, &conn->link);
	xfer__check_by(xfer, now_ns + xfer->handshake_ns);
	return conn;
}

void xfer__conn_free(struct xfer__conn *conn)
{
	list_remove(&conn->link);
	free(conn);
}

void xfer__conn_ready_later(struct xfer__conn *conn)
{
	if (list_empty(&conn->ready_link))
		list_push_back(&conn->xfer->conns_ready, &conn->ready_link);
}

/* Tells the peer what became of the connection, after it is off the peer's list. */
static void part_from_peer(struct xfer__conn *conn, enum xfer__conn_state state, int error)
{
	struct xfer_peer *peer = conn->peer;
	struct xfer *xfer = conn->xfer;

	list_remove(&conn->peer_link);
	peer->conn_count--;
	xfer__peer_pump_later(peer);
	/* Over tcp, at once. A peer that could not map our slab closes an open connection. */
	if (conn->ops->transport == XFER_SHM && xfer->config.transport == XFER_AUTO && error &&
	    !conn->acked)
		peer->shm_refused = true;
	if (state == CONN_OPEN) {
		if (error == -ETIMEDOUT)
			xfer__peer_fail_queue(peer, error);
		return;
	}
	peer->connecting_count--;
	if (peer->shm_refused && conn->ops->transport == XFER_SHM)
		return;
	peer->backoff_ns = MIN(MAX(peer->backoff_ns * 2, XFER_CONNECT_BACKOFF_MIN_NS),
			       XFER_CONNECT_BACKOFF_MAX_NS);
	peer->retry_at_ns = xfer->now_ns + peer->backoff_ns;
	if (!peer->conn_count)
		xfer__peer_fail_queue(peer, error);
}

void xfer__conn_close(struct xfer__conn *conn, int error)
{
	struct xfer *xfer = conn->xfer;
	enum xfer__conn_state state = conn->state;

	if (state == CONN_CLOSED)
		return;
	if (error == BATON_EAUTH || error == BATON_EPROTOCOL || error == BATON_EVERSION)
		xfer__count(&xfer->counters.refused, 1);
	conn->state = CONN_CLOSED;
	xfer__source_close(&conn->source);
	if (conn->slab_fd >= 0)
		close(conn->slab_fd);
	list_remove(&conn->ready_link);
	list_remove(&conn->link);
	list_push_back(&xfer->conns_closed, &conn->link);
	if (state == CONN_OPEN)
		xfer__count(&xfer->counters.disconnects, 1);
	/* Only now, with the socket closed, may the operations end (X2). */
	xfer__outbound_fini(conn, error);
	if (conn->in) {
		xfer__inbound_fini(conn->in);
		conn->ops->part(conn);
		free(conn->in);
		conn->in = NULL;
	}
	if (conn->peer) {
		part_from_peer(conn, state, error);
		return;
	}
	xfer->accepted_count--;
	if (state == CONN_PROOF)
		xfer->unproven_count--;
}

/* ---- handshake ---- */

/* Return: 0 when all is written, -EAGAIN, or an error. */
static int output_write(struct xfer__conn *conn)
{
	while (conn->output_at < conn->output_bytes) {
		ssize_t count = send(conn->source.fd, conn->output + conn->output_at,
				     conn->output_bytes - conn->output_at,
				     MSG_NOSIGNAL | MSG_DONTWAIT);
		if (count < 0 && errno != EINTR)
			return -errno;
		if (count > 0)
			conn->output_at += count;
	}
	conn->output_at = conn->output_bytes = 0;
	return 0;
}

static uint8_t *output_add(struct xfer__conn *conn, uint32_t bytes)
{
	CHECK(!conn->output_at && conn->output_bytes + bytes <= sizeof conn->output);
	conn->output_bytes += bytes;
	return conn->output + conn->output_bytes - bytes;
}

/* Return: 0 when @bytes are there, -EAGAIN, or an error. */
static int input_read(struct xfer__conn *conn, uint32_t bytes)
{
	CHECK(bytes <= sizeof conn->input);
	while (conn->input_bytes < bytes) {
		ssize_t count = recv(conn->source.fd, conn->input + conn->input_bytes,
				     bytes - conn->input_bytes, MSG_DONTWAIT);
		if (count == 0)
			return -ECONNRESET;
		if (count < 0 && errno != EINTR)
			return -errno;
		if (count > 0)
			conn->input_bytes += count;
	}
	conn->input_bytes = 0;
	return 0;
}

static int conn_open(struct xfer__conn *conn)
{
	struct xfer_peer *peer = conn->peer;

	if (peer) {
		int error = xfer__outbound_init(conn);
		if (error)
			return error;
		peer->connecting_count--;
		peer->backoff_ns = peer->retry_at_ns = 0;
		xfer__peer_pump_later(peer);
		atomic_store(&peer->transport_name, conn->ops->name);
	}
	conn->state = CONN_OPEN;
	xfer__count(&conn->xfer->counters.connects, 1);
	xfer__check_by(conn->xfer, conn->progress_ns + conn->xfer->idle_ns);
	return 0;
}

/* The acceptor has shown and seen the key. */
static int acceptor_meet(struct xfer__conn *conn)
{
	if (!conn->in) {
		conn->in = calloc(1, sizeof *conn->in);
		if (!conn->in)
			return -ENOMEM;
		int error = xfer__inbound_init(conn->in, conn->xfer, conn->ops->transport);
		if (error)
			return error;
	}
	int error = conn->ops->meet(conn);
	return error ? error : conn_open(conn);
}

static int acceptor_proof(struct xfer__conn *conn)
{
	struct xfer *xfer = conn->xfer;
	int error = input_read(conn, WIRE_PROOF_BYTES);

	if (error)
		return error;
	memcpy(conn->proof, conn->input, WIRE_PROOF_BYTES);
	error = wire_check_proof(xfer->config.cluster_key, conn->ops->name, conn->greeting,
				 xfer->address.instance, conn->proof);
	if (error)
		return error;
	if (conn->output_bytes) /* an answer before the greeting was out */
		return BATON_EPROTOCOL;
	wire_pack_confirm(xfer->config.cluster_key, conn->ops->name, conn->greeting, conn->proof,
			  output_add(conn, WIRE_CONFIRM_BYTES));
	conn->state = CONN_MEET;
	xfer->unproven_count--;
	return acceptor_meet(conn);
}

static int connector_greeting(struct xfer__conn *conn)
{
	struct xfer *xfer = conn->xfer;
	uint8_t nonce[32];
	int error = input_read(conn, WIRE_GREETING_BYTES);

	if (error)
		return error;
	memcpy(conn->greeting, conn->input, WIRE_GREETING_BYTES);
	error = wire_check_greeting(conn->greeting);
	if (error)
		return error;
	CHECK(getrandom(nonce, sizeof nonce, 0) == sizeof nonce);
	wire_pack_proof(xfer->config.cluster_key, conn->ops->name, conn->greeting,
			xfer->address.instance, conn->peer->address.instance, nonce, conn->proof);
	memcpy(output_add(conn, WIRE_PROOF_BYTES), conn->proof, WIRE_PROOF_BYTES);
	conn->state = CONN_CONFIRM;
	return 0;
}

static int connector_introduce(struct xfer__conn *conn)
{
	int error = conn->ops->introduce(conn);
	return error ? error : conn_open(conn);
}

static int connector_confirm(struct xfer__conn *conn)
{
	int error = input_read(conn, WIRE_CONFIRM_BYTES);

	if (error)
		return error;
	error = wire_check_confirm(conn->xfer->config.cluster_key, conn->ops->name, conn->greeting,
				   conn->proof, conn->input);
	if (error)
		return error;
	conn->state = CONN_INTRODUCE;
	return connector_introduce(conn);
}

static int connector_connected(struct xfer__conn *conn)
{
	int error = 0;
	socklen_t bytes = sizeof error;

	if (getsockopt(conn->source.fd, SOL_SOCKET, SO_ERROR, &error, &bytes) < 0)
		return -errno;
	if (error)
		return -error;
	conn->state = CONN_GREETING;
	return 0;
}

/* ---- open ---- */

static int acks_write(struct xfer__conn *conn)
{
	struct xfer__inbound *in = conn->in;

	if (!in->acks_bytes)
		return 0;
	ssize_t count = send(conn->source.fd, in->acks, in->acks_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (count < 0)
		return errno == EINTR ? -EAGAIN : -errno;
	in->acks_bytes -= count;
	memmove(in->acks, in->acks + count, in->acks_bytes);
	conn->progress_ns = conn->xfer->now_ns;
	return in->acks_bytes ? -EAGAIN : 0;
}

static int inbound_read(struct xfer__conn *conn, uint64_t now_ns)
{
	for (size_t moved = 0; moved < XFER_TURN_BYTES;) {
		struct iovec iov[2];
		int iov_count = xfer__inbound_want(conn->in, iov);
		if (!iov_count)
			return 0;
		size_t asked = iov[0].iov_len + (iov_count > 1 ? iov[1].iov_len : 0);
		ssize_t count = readv(conn->source.fd, iov, iov_count);
		if (count == 0)
			return -ECONNRESET;
		if (count < 0)
			return errno == EAGAIN || errno == EINTR ? 0 : -errno;
		conn->progress_ns = now_ns;
		moved += count;
		int error = xfer__inbound_feed(conn->in, count, now_ns);
		if (error)
			return error;
		if (xfer__inbound_step(conn->in, now_ns)) {
			xfer__conn_ready_later(conn);
			return 0;
		}
		if ((size_t)count < asked)
			return 0; /* the socket is empty */
	}
	return 0;
}

static int acceptor_work(struct xfer__conn *conn, uint32_t events, uint64_t now_ns)
{
	bool waited = conn->in->state == INBOUND_WAIT;
	bool more = xfer__inbound_step(conn->in, now_ns);
	int error = 0;

	if (waited) /* our own side held it: the peer's time begins now */
		conn->progress_ns = now_ns;
	if (more)
		xfer__conn_ready_later(conn);
	else
		error = inbound_read(conn, now_ns);
	int written = acks_write(conn);
	if (!error && written != -EAGAIN)
		error = written;
	return error;
}

static int connector_work(struct xfer__conn *conn, uint32_t events, uint64_t now_ns)
{
	int error = 0;

	if (events & (EPOLLIN | EPOLLERR | EPOLLHUP))
		error = xfer__outbound_acks(conn, now_ns);
	if (!error) {
		error = xfer__outbound_write(conn, now_ns);
		if (error == -EAGAIN)
			error = 0;
	}
	return error;
}

/* ---- dispatch ---- */

/* A step of the handshake. Return: 0 when it got on, -EAGAIN when it waits, or an error. */
static int handshake_step(struct xfer__conn *conn)
{
	switch (conn->state) {
	case CONN_CONNECTING:
		return connector_connected(conn);
	case CONN_GREETING:
		return connector_greeting(conn);
	case CONN_CONFIRM:
		return connector_confirm(conn);
	case CONN_INTRODUCE:
		return connector_introduce(conn);
	case CONN_PROOF:
		return acceptor_proof(conn);
	case CONN_MEET:
		return acceptor_meet(conn);
	case CONN_OPEN:
	case CONN_CLOSED:
		break;
	}
	return -EAGAIN;
}

static int handshake(struct xfer__conn *conn, uint32_t events)
{
	int error = output_write(conn);

	if (conn->state == CONN_CONNECTING && !(events & (EPOLLOUT | EPOLLERR | EPOLLHUP)))
		return 0;
	while (conn->state != CONN_OPEN && (!error || error == -EAGAIN)) {
		error = handshake_step(conn);
		if (error == -EAGAIN || error == -EINPROGRESS)
			break;
		if (!error)
			error = output_write(conn);
	}
	if (!error || error == -EAGAIN)
		error = output_write(conn);
	return error == -EAGAIN ? 0 : error;
}

/* Does what the connection wants to hear of next, so that no event comes again and again. */
static void want_events(struct xfer__conn *conn)
{
	uint32_t events = EPOLLIN;

	if (conn->state == CONN_CONNECTING)
		events = EPOLLOUT;
	else if (conn->output_bytes || conn->state == CONN_INTRODUCE)
		events |= EPOLLOUT;
	else if (conn->state == CONN_OPEN && conn->out) {
		if (conn->out->iov_at < conn->out->iov_count)
			events |= EPOLLOUT;
	} else if (conn->state == CONN_OPEN) {
		struct iovec iov[2];
		if (!xfer__inbound_want(conn->in, iov))
			events = 0;
		if (conn->in->acks_bytes)
			events |= EPOLLOUT;
	}
	xfer__source_want(&conn->source, events);
}

static void conn_run(struct xfer__conn *conn, uint32_t events, uint64_t now_ns)
{
	int error = 0;

	if (conn->state == CONN_CLOSED)
		return;
	/* A connection that is not read would report this for ever. */
	if (conn->state == CONN_OPEN && !(conn->source.events & EPOLLIN) &&
	    (events & (EPOLLERR | EPOLLHUP))) {
		xfer__conn_close(conn, -ECONNRESET);
		return;
	}
	if (conn->state != CONN_OPEN) {
		conn->progress_ns = now_ns;
		error = handshake(conn, events);
	} else if (conn->output_bytes) { /* the end of the handshake */
		error = output_write(conn);
		error = error == -EAGAIN ? 0 : error;
	}
	if (!error && conn->state == CONN_OPEN && !conn->output_bytes)
		error = conn->out ? connector_work(conn, events, now_ns)
				  : acceptor_work(conn, events, now_ns);
	if (error) {
		xfer__conn_close(conn, error);
		return;
	}
	want_events(conn);
	xfer__check_by(conn->xfer, now_ns + conn->xfer->stall_ns);
}

static void conn_ready(struct xfer__source *source, uint32_t events)
{
	conn_run(container_of(source, struct xfer__conn, source), events, source->xfer->now_ns);
}

void xfer__conn_work(struct xfer__conn *conn, uint64_t now_ns)
{
	conn_run(conn, 0, now_ns);
}

/* ---- beginnings ---- */

int xfer__conn_connect(struct xfer_peer *peer, const struct xfer__ops *ops, uint64_t now_ns)
{
	int fd = ops->connect(&peer->address);
	if (fd < 0)
		return fd;
	struct xfer__conn *conn = conn_new(peer->xfer, ops, fd, CONN_CONNECTING, now_ns);
	if (!conn) {
		close(fd);
		return -ENOMEM;
	}
	conn->peer = peer;
	list_push_back(&peer->conns, &conn->peer_link);
	peer->conn_count++;
	peer->connecting_count++;
	return 0;
}

/* Too many strangers: the one that has kept silent longest makes room, so that a few silent
 * connections cannot lock the others out. */
static void unproven_evict(struct xfer *xfer)
{
	list_for_each_safe(link, after, &xfer->conns) {
		struct xfer__conn *conn = list_entry(link, struct xfer__conn, link);
		if (conn->state == CONN_PROOF) {
			xfer__conn_close(conn, -ETIMEDOUT);
			return;
		}
	}
}

void xfer__conn_accepted(struct xfer *xfer, const struct xfer__ops *ops, int fd, uint64_t now_ns)
{
	uint8_t nonce[32];

	if (xfer->accepted_count == XFER_ACCEPTED_MAX) {
		close(fd);
		return;
	}
	if (xfer->unproven_count == XFER_UNPROVEN_MAX)
		unproven_evict(xfer);
	ops->adjust(fd);
	struct xfer__conn *conn = conn_new(xfer, ops, fd, CONN_PROOF, now_ns);
	if (!conn) {
		close(fd);
		return;
	}
	xfer->accepted_count++;
	xfer->unproven_count++;
	CHECK(getrandom(nonce, sizeof nonce, 0) == sizeof nonce);
	wire_pack_greeting(nonce, conn->greeting);
	memcpy(output_add(conn, WIRE_GREETING_BYTES), conn->greeting, WIRE_GREETING_BYTES);
	conn_run(conn, 0, now_ns);
}

/* ---- deadlines ---- */

static bool inbound_waits(const struct xfer__inbound *in)
{
	/* A slice that our own side holds back (no credit, an injected delay) is not the peer's fault. */
	return in->acks_bytes || in->state == INBOUND_PAYLOAD || in->head_bytes;
}

void xfer__conn_check(struct xfer__conn *conn, uint64_t now_ns)
{
	struct xfer *xfer = conn->xfer;
	uint64_t deadline_ns;
	int error = -ETIMEDOUT;

	if (conn->state != CONN_OPEN) {
		deadline_ns = conn->started_ns + xfer->handshake_ns;
	} else if (conn->out ? !list_empty(&conn->out->in_flight) : inbound_waits(conn->in)) {
		deadline_ns = conn->progress_ns + xfer->stall_ns;
	} else {
		/* The connector closes an idle connection; the acceptor only if that never came. */
		deadline_ns = conn->progress_ns + xfer->idle_ns * (conn->out ? 1 : 2);
		error = 0;
	}
	if (now_ns >= deadline_ns) {
		xfer__conn_close(conn, error);
		return;
	}
	xfer__check_by(xfer, deadline_ns);
	if (conn->in && conn->state == CONN_OPEN && conn->in->state == INBOUND_WAIT)
		conn_run(conn, 0, now_ns);
}
