/*
 * The sending side's view of one peer, on the xfer thread: a queue of operations that its
 * connections take from, and when to make connections.
 */
#include "xfer/xfer_internal.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"

void xfer__operation_end(struct xfer *xfer, struct xfer__operation *operation, int status)
{
	list_remove(&operation->link);
	xfer__post(xfer,
		   &(struct xfer_event){ .kind = XFER_SENT,
					 .user = operation->user,
					 .index = operation->slice.index,
					 .bytes = operation->slice.bytes,
					 .status = status },
		   FREES_OPERATION, operation);
}

void xfer__peer_pump_later(struct xfer_peer *peer)
{
	if (list_empty(&peer->pump_link))
		list_push_back(&peer->xfer->peers_pump, &peer->pump_link);
}

static void peer_know(struct xfer_peer *peer)
{
	if (peer->known)
		return;
	peer->known = true;
	list_push_back(&peer->xfer->peers_busy, &peer->link);
}

void xfer__peer_queue(struct xfer_peer *peer, struct xfer__operation *operation)
{
	peer_know(peer);
	list_push_back(&peer->queue, &operation->link);
	if (atomic_load_explicit(&operation->cancel, memory_order_relaxed))
		xfer__operation_end(peer->xfer, operation, -ECANCELED);
	else
		xfer__peer_pump_later(peer);
}

void xfer__peer_cancel_marked(struct xfer_peer *peer)
{
	list_for_each_safe(link, after, &peer->queue) {
		struct xfer__operation *operation = list_entry(link, struct xfer__operation, link);
		if (atomic_load_explicit(&operation->cancel, memory_order_relaxed))
			xfer__operation_end(peer->xfer, operation, -ECANCELED);
	}
	xfer__peer_pump_later(peer);
}

void xfer__peer_fail_queue(struct xfer_peer *peer, int error)
{
	list_for_each_safe(link, after, &peer->queue)
		xfer__operation_end(peer->xfer, list_entry(link, struct xfer__operation, link), error);
}

static const struct xfer__ops *choose_ops(const struct xfer_peer *peer)
{
	const struct xfer *xfer = peer->xfer;

	if (xfer->config.transport == XFER_SHM)
		return &xfer__shm;
	if (xfer->config.transport == XFER_AUTO && xfer->address.socket[0] &&
	    peer->address.socket[0] && !peer->shm_refused &&
	    !memcmp(peer->address.boot_id, xfer->address.boot_id, sizeof xfer->address.boot_id))
		return &xfer__shm;
	return &xfer__tcp;
}

static void connect_one(struct xfer_peer *peer, uint64_t now_ns)
{
	const struct xfer__ops *ops = choose_ops(peer);
	int error = xfer__conn_connect(peer, ops, now_ns);

	if (error && ops->transport == XFER_SHM && peer->xfer->config.transport == XFER_AUTO) {
		peer->shm_refused = true;
		error = xfer__conn_connect(peer, &xfer__tcp, now_ns);
	}
	if (!error)
		return;
	peer->backoff_ns = MIN(MAX(peer->backoff_ns * 2, XFER_CONNECT_BACKOFF_MIN_NS),
			       XFER_CONNECT_BACKOFF_MAX_NS);
	peer->retry_at_ns = now_ns + peer->backoff_ns;
	if (!peer->conn_count)
		xfer__peer_fail_queue(peer, error);
}

/* Whether the queue would go faster over one connection more. */
static bool wants_connection(const struct xfer_peer *peer)
{
	uint32_t conns_max = peer->xfer->config.streams_per_peer;

	if (!peer->conn_count)
		return true;
	if (peer->connecting_count)
		return false;
	list_for_each(link, &peer->conns) {
		const struct xfer__conn *conn = list_entry(link, struct xfer__conn, peer_link);
		if (conn->ops->pull)
			conns_max = 1; /* one thread reads at the other end anyway */
		if (!conn->out->in_flight_count)
			return false;
	}
	return peer->conn_count < conns_max;
}

/* Return: true when the peer has ended; it is the loop's to free, perhaps already freed. */
static bool end_if_done(struct xfer_peer *peer)
{
	if (!peer->ending || !list_empty(&peer->queue))
		return false;
	list_for_each(link, &peer->conns) {
		const struct xfer__conn *conn = list_entry(link, struct xfer__conn, peer_link);
		if (conn->out && conn->out->in_flight_count)
			return false;
	}
	list_for_each_safe(link, after, &peer->conns)
		xfer__conn_close(list_entry(link, struct xfer__conn, peer_link), 0);
	list_remove(&peer->link);
	list_remove(&peer->pump_link);
	xfer__post(peer->xfer, &(struct xfer_event){ 0 }, FREES_PEER, peer);
	return true;
}

void xfer__peer_pump(struct xfer_peer *peer, uint64_t now_ns)
{
	if (peer->ending && end_if_done(peer))
		return;
	if (list_empty(&peer->queue))
		return;
	list_for_each(link, &peer->conns) {
		struct xfer__conn *conn = list_entry(link, struct xfer__conn, peer_link);
		if (conn->state == CONN_OPEN && conn->out->in_flight_count < XFER_IN_FLIGHT_MAX)
			xfer__conn_ready_later(conn);
	}
	if (!wants_connection(peer))
		return;
	if (now_ns < peer->retry_at_ns)
		xfer__check_by(peer->xfer, peer->retry_at_ns);
	else
		connect_one(peer, now_ns);
}

void xfer__peer_check(struct xfer_peer *peer, uint64_t now_ns)
{
	if (list_empty(&peer->queue) || peer->conn_count)
		return;
	if (now_ns < peer->retry_at_ns)
		xfer__check_by(peer->xfer, peer->retry_at_ns);
	else
		xfer__peer_pump_later(peer);
}
