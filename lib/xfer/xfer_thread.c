/* The xfer thread: one turn is what epoll reports, commands, waiting work, peers, deadlines. */
#include "xfer/xfer_internal.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"

#define EVENTS_PER_TURN 64
#define ACCEPTS_PER_TURN 16
#define LISTEN_PAUSE_NS (100 * NS_PER_MS) /* after accept() ran out of descriptors */

/* ---- the epoll set ---- */

int xfer__source_add(struct xfer__source *source, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = source };
	source->events = events;
	return epoll_ctl(source->xfer->epoll_fd, EPOLL_CTL_ADD, source->fd, &event) ? -errno : 0;
}

void xfer__source_want(struct xfer__source *source, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = source };
	if (source->events == events)
		return;
	source->events = events;
	CHECK(!epoll_ctl(source->xfer->epoll_fd, EPOLL_CTL_MOD, source->fd, &event));
}

/* Out of the set by name: a child that was forked meanwhile keeps the file open. */
void xfer__source_close(struct xfer__source *source)
{
	(void)epoll_ctl(source->xfer->epoll_fd, EPOLL_CTL_DEL, source->fd, NULL);
	close(source->fd);
	source->fd = -1;
}

/* ---- events and commands ---- */

void xfer__post(struct xfer *xfer, const struct xfer_event *event, int frees, void *owner)
{
	struct xfer__event *slot = ring_pop(&xfer->events_free);
	CHECK(slot); /* counted: see xfer_internal.h */
	slot->event = *event;
	slot->frees = frees;
	slot->owner = owner;
	CHECK(ring_push(&xfer->events, slot));
	xfer->events_queued = true;
}

bool xfer__credit_take(struct xfer *xfer)
{
	if (atomic_fetch_add(&xfer->credits_used, 1) < XFER_CREDITS_MAX)
		return true;
	atomic_fetch_sub(&xfer->credits_used, 1);
	atomic_store(&xfer->starved, true);
	/* The loop may have drained everything between the two: then nobody would wake us. */
	if (atomic_load(&xfer->credits_used) < XFER_CREDITS_MAX)
		atomic_store(&xfer->resume, true);
	return false;
}

void xfer__credit_return(struct xfer *xfer)
{
	atomic_fetch_sub(&xfer->credits_used, 1);
	if (atomic_exchange(&xfer->starved, false))
		atomic_store(&xfer->resume, true);
}

void xfer__commands_drain(struct xfer *xfer)
{
	struct xfer__command *command;

	while ((command = ring_pop(&xfer->commands))) {
		switch (command->kind) {
		case COMMAND_SEND: {
			struct xfer__operation *operation =
				container_of(command, struct xfer__operation, command);
			xfer__peer_queue(operation->peer, operation);
			break;
		}
		case COMMAND_GRANT:
			xfer__expect_grant(xfer, container_of(command, struct xfer__expect, grant));
			break;
		case COMMAND_REVOKE:
			xfer__expect_revoke(xfer, container_of(command, struct xfer__expect, revoke));
			break;
		case COMMAND_PEER_END: {
			struct xfer_peer *peer = container_of(command, struct xfer_peer, end);
			peer->ending = true;
			xfer__peer_pump_later(peer);
			break;
		}
		}
	}
}

static void wake_ready(struct xfer__source *source, uint32_t events)
{
	uint64_t count;
	(void)!read(source->fd, &count, sizeof count);
	/* An exchange, so that what was pushed by a caller who found it set is seen by the drain. */
	(void)atomic_exchange(&source->xfer->wake_sent, false);
}

static void commands_turn(struct xfer *xfer)
{
	bool cancel = atomic_exchange(&xfer->cancel_marked, false);

	xfer__commands_drain(xfer);
	if (cancel)
		list_for_each(link, &xfer->peers_busy)
			xfer__peer_cancel_marked(list_entry(link, struct xfer_peer, link));
	if (!atomic_exchange(&xfer->resume, false))
		return;
	list_for_each(link, &xfer->conns) {
		struct xfer__conn *conn = list_entry(link, struct xfer__conn, link);
		if (conn->in && conn->in->state == INBOUND_WAIT)
			xfer__conn_ready_later(conn);
	}
}

/* ---- listeners ---- */

static void listener_ready(struct xfer__source *source, uint32_t events)
{
	struct xfer *xfer = source->xfer;
	const struct xfer__ops *ops = xfer->listener_ops[source - xfer->listeners];

	for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
		int fd = accept4(source->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0) {
			xfer__conn_accepted(xfer, ops, fd, xfer->now_ns);
			continue;
		}
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
			xfer__source_want(source, 0);
			xfer->listen_again_ns = xfer->now_ns + LISTEN_PAUSE_NS;
			xfer__check_by(xfer, xfer->listen_again_ns);
		}
		if (errno != ECONNABORTED && errno != EINTR)
			return;
	}
}

/* ---- deadlines ---- */

void xfer__check_by(struct xfer *xfer, uint64_t at_ns)
{
	xfer->check_at_ns = MIN(xfer->check_at_ns, at_ns);
}

static void check_all(struct xfer *xfer)
{
	xfer->check_at_ns = UINT64_MAX;
	list_for_each_safe(link, after, &xfer->conns)
		xfer__conn_check(list_entry(link, struct xfer__conn, link), xfer->now_ns);
	list_for_each(link, &xfer->peers_busy)
		xfer__peer_check(list_entry(link, struct xfer_peer, link), xfer->now_ns);
	if (!xfer->listen_again_ns)
		return;
	if (xfer->now_ns < xfer->listen_again_ns) {
		xfer__check_by(xfer, xfer->listen_again_ns);
		return;
	}
	xfer->listen_again_ns = 0;
	for (uint32_t i = 0; i < xfer->listener_count; i++)
		xfer__source_want(&xfer->listeners[i], EPOLLIN);
}

/* ---- turns ---- */

static int turn_timeout_ms(const struct xfer *xfer)
{
	if (!list_empty(&xfer->conns_ready) || !list_empty(&xfer->peers_pump) ||
	    atomic_load(&xfer->resume))
		return 0;
	if (xfer->check_at_ns == UINT64_MAX)
		return -1;
	uint64_t now_ns = clock_now_ns();
	if (xfer->check_at_ns <= now_ns)
		return 0;
	return (int)MIN(DIV_UP(xfer->check_at_ns - now_ns, NS_PER_MS), 60000);
}

/* Only what is on the list now: work that asks for another turn gets it after the sockets. */
static void ready_turn(struct xfer *xfer)
{
	struct list ready;

	if (list_empty(&xfer->conns_ready))
		return;
	list_init(&ready);
	list_insert_after(&ready, &xfer->conns_ready);
	list_remove(&xfer->conns_ready);
	while (!list_empty(&ready)) {
		struct xfer__conn *conn = list_entry(ready.next, struct xfer__conn, ready_link);
		list_remove(&conn->ready_link);
		xfer__conn_work(conn, xfer->now_ns);
	}
}

static void pump_turn(struct xfer *xfer)
{
	while (!list_empty(&xfer->peers_pump)) {
		struct xfer_peer *peer = list_entry(xfer->peers_pump.next, struct xfer_peer, pump_link);
		list_remove(&peer->pump_link);
		xfer__peer_pump(peer, xfer->now_ns);
	}
}

static void reap_turn(struct xfer *xfer)
{
	list_for_each_safe(link, after, &xfer->conns_closed)
		xfer__conn_free(list_entry(link, struct xfer__conn, link));
}

static void notify_turn(struct xfer *xfer)
{
	if (!xfer->events_queued)
		return;
	xfer->events_queued = false;
	if (!atomic_exchange(&xfer->notify_sent, true) && xfer->config.notify)
		xfer->config.notify(xfer->config.notify_context);
}

void *xfer__thread_main(void *argument)
{
	struct xfer *xfer = argument;
	struct epoll_event events[EVENTS_PER_TURN];

	(void)prctl(PR_SET_NAME, "xfer");
	while (!atomic_load(&xfer->stop)) {
		int count = epoll_wait(xfer->epoll_fd, events, EVENTS_PER_TURN, turn_timeout_ms(xfer));
		CHECK(count >= 0 || errno == EINTR);
		xfer->now_ns = clock_now_ns();
		for (int i = 0; i < count; i++) {
			struct xfer__source *source = events[i].data.ptr;
			source->ready(source, events[i].events);
		}
		commands_turn(xfer);
		ready_turn(xfer);
		pump_turn(xfer);
		if (xfer->now_ns >= xfer->check_at_ns)
			check_all(xfer);
		reap_turn(xfer);
		notify_turn(xfer);
	}
	list_for_each_safe(link, after, &xfer->conns)
		xfer__conn_close(list_entry(link, struct xfer__conn, link), -ECANCELED);
	reap_turn(xfer);
	return NULL;
}

int xfer__thread_prepare(struct xfer *xfer)
{
	xfer->wake.ready = wake_ready;
	int error = xfer__source_add(&xfer->wake, EPOLLIN);
	for (uint32_t i = 0; i < xfer->listener_count && !error; i++) {
		xfer->listeners[i].ready = listener_ready;
		error = xfer__source_add(&xfer->listeners[i], EPOLLIN);
	}
	return error;
}
