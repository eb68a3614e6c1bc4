/* The loop thread's side: the public calls, and the whole's beginning and end. */
#include "xfer/xfer_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/rand.h"

#define STREAMS_PER_PEER_DEFAULT 2
#define STALL_MS_DEFAULT 10000
#define IDLE_MS_DEFAULT 60000
#define HANDSHAKE_MS_DEFAULT 5000
#define EXPECTS_MAX_MAX (1u << 20)

static void check_loop(struct xfer *xfer)
{
	if (!xfer->loop_known) {
		xfer->loop = pthread_self();
		xfer->loop_known = true;
	}
	CHECK(pthread_equal(xfer->loop, pthread_self()));
}

static void wake(struct xfer *xfer)
{
	const uint64_t one = 1;
	if (!atomic_exchange(&xfer->wake_sent, true))
		CHECK(write(xfer->wake.fd, &one, sizeof one) == sizeof one);
}

static void command(struct xfer *xfer, struct xfer__command *command, int kind)
{
	command->kind = kind;
	CHECK(ring_push(&xfer->commands, command)); /* counted: see xfer_internal.h */
}

/* ---- state ---- */

static uint32_t round_up_power(uint32_t count)
{
	uint32_t power = 1;
	while (power < count)
		power *= 2;
	return power;
}

static int rings_init(struct xfer *xfer)
{
	uint32_t expects = 2 * xfer->config.expects_max;
	uint32_t commands = XFER_OPERATIONS_MAX + expects + XFER_PEERS_MAX;
	uint32_t events = commands + XFER_CREDITS_MAX;
	int error = ring_init(&xfer->commands, round_up_power(commands));

	if (!error)
		error = ring_init(&xfer->events, round_up_power(events));
	if (!error)
		error = ring_init(&xfer->events_free, round_up_power(events));
	if (error)
		return error;
	xfer->event_slots = calloc(events, sizeof *xfer->event_slots);
	if (!xfer->event_slots)
		return -ENOMEM;
	for (uint32_t i = 0; i < events; i++)
		CHECK(ring_push(&xfer->events_free, &xfer->event_slots[i]));
	return 0;
}

static void lists_init(struct xfer *xfer)
{
	struct list *heads[] = { &xfer->operations_free, &xfer->expects_free, &xfer->peers,
				 &xfer->conns, &xfer->conns_ready, &xfer->conns_closed,
				 &xfer->peers_busy, &xfer->peers_pump };
	for (size_t i = 0; i < ARRAY_COUNT(heads); i++)
		list_init(heads[i]);
}

static void pools_fill(struct xfer *xfer)
{
	for (uint32_t i = 0; i < XFER_OPERATIONS_MAX; i++) {
		list_init(&xfer->operations[i].link);
		list_push_back(&xfer->operations_free, &xfer->operations[i].loop_link);
	}
	for (uint32_t i = 0; i < xfer->config.expects_max; i++) {
		list_init(&xfer->expects[i].writers);
		list_push_back(&xfer->expects_free, &xfer->expects[i].free_link);
	}
}

static uint32_t or_default(uint32_t value, uint32_t fallback)
{
	return value ? value : fallback;
}

int xfer__init(struct xfer *xfer, const struct xfer_config *config)
{
	memset(xfer, 0, sizeof *xfer);
	xfer->config = *config;
	xfer->config.streams_per_peer = or_default(config->streams_per_peer, STREAMS_PER_PEER_DEFAULT);
	xfer->stall_ns = or_default(config->stall_ms, STALL_MS_DEFAULT) * NS_PER_MS;
	xfer->idle_ns = or_default(config->idle_ms, IDLE_MS_DEFAULT) * NS_PER_MS;
	xfer->handshake_ns = or_default(config->handshake_ms, HANDSHAKE_MS_DEFAULT) * NS_PER_MS;
	xfer->epoll_fd = xfer->wake.fd = -1;
	xfer->check_at_ns = UINT64_MAX;
	xfer->wake.xfer = xfer;
	lists_init(xfer);
	do
		xfer->address.instance = rand_system();
	while (!xfer->address.instance);
	xfer->operations = calloc(XFER_OPERATIONS_MAX, sizeof *xfer->operations);
	xfer->expects = calloc(config->expects_max, sizeof *xfer->expects);
	xfer->scratch = malloc(XFER_CHUNK_BYTES);
	if (!xfer->operations || !xfer->expects || !xfer->scratch)
		return -ENOMEM;
	pools_fill(xfer);
	return rings_init(xfer);
}

void xfer__fini(struct xfer *xfer)
{
	for (uint32_t i = 0; xfer->expects && i < xfer->config.expects_max; i++)
		free(xfer->expects[i].ranges);
	/* Peers that nobody refers to any more wait for their FREES_PEER, in the list as well. */
	list_for_each_safe(link, after, &xfer->peers)
		free(list_entry(link, struct xfer_peer, loop_link));
	ring_fini(&xfer->commands);
	ring_fini(&xfer->events);
	ring_fini(&xfer->events_free);
	free(xfer->event_slots);
	free(xfer->operations);
	free(xfer->expects);
	free(xfer->scratch);
}

/* ---- open and close ---- */

static int explain(char *ret_error, size_t error_bytes, int error, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	int length = vsnprintf(ret_error, error_bytes, format, args);
	va_end(args);
	if (length >= 0 && (size_t)length < error_bytes)
		snprintf(ret_error + length, error_bytes - length, ": %s", err_text(error));
	return error;
}

static int config_check(const struct xfer_config *config, char *ret_error, size_t error_bytes)
{
	if (config->transport != XFER_AUTO && config->transport != XFER_SHM &&
	    config->transport != XFER_TCP)
		return explain(ret_error, error_bytes, -EPROTONOSUPPORT,
			       "this transport is not part of this build");
	if (!config->slab.base || !config->slab.bytes)
		return explain(ret_error, error_bytes, -EINVAL, "no slab");
	if (!config->expects_max || config->expects_max > EXPECTS_MAX_MAX)
		return explain(ret_error, error_bytes, -EINVAL, "expects_max must be 1 to %u",
			       EXPECTS_MAX_MAX);
	return 0;
}

static int read_boot_id(uint8_t ret_id[16])
{
	char text[64];
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ssize_t count = read(fd, text, sizeof text - 1);
	close(fd);
	if (count <= 0)
		return -EIO;
	uint8_t digest[32];
	hash_sha256(&(struct hash_piece){ text, (size_t)count }, 1, digest);
	memcpy(ret_id, digest, 16);
	return 0;
}

static int listen_on(struct xfer *xfer, const struct xfer__ops *ops)
{
	int fd = ops->listen(xfer, &xfer->address);
	if (fd < 0)
		return fd;
	uint32_t index = xfer->listener_count++;
	xfer->listeners[index].fd = fd;
	xfer->listeners[index].xfer = xfer;
	xfer->listener_ops[index] = ops;
	return 0;
}

static int listen_all(struct xfer *xfer, char *ret_error, size_t error_bytes)
{
	const struct xfer_config *config = &xfer->config;
	int error = read_boot_id(xfer->address.boot_id);

	if (error)
		return explain(ret_error, error_bytes, error, "cannot read the boot id");
	if (config->transport == XFER_SHM || (config->transport == XFER_AUTO && config->slab.memfd >= 0)) {
		error = listen_on(xfer, &xfer__shm);
		if (error)
			return explain(ret_error, error_bytes, error, "cannot offer shm (the slab's memfd "
				       "must allow F_SEAL_SHRINK) in %s",
				       config->socket_dir ? config->socket_dir : "the abstract namespace");
	}
	if (config->transport != XFER_SHM) {
		error = listen_on(xfer, &xfer__tcp);
		if (error)
			return explain(ret_error, error_bytes, error, "cannot listen on %s port %u",
				       config->host, config->port);
	}
	return 0;
}

static int thread_start(struct xfer *xfer)
{
	sigset_t all, before;

	xfer->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	xfer->wake.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (xfer->epoll_fd < 0 || xfer->wake.fd < 0)
		return -errno;
	int error = xfer__thread_prepare(xfer);
	if (error)
		return error;
	/* Signals are the loop thread's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = -pthread_create(&xfer->thread, NULL, xfer__thread_main, xfer);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	xfer->started = !error;
	return error;
}

int xfer_open(const struct xfer_config *config, struct xfer **ret_xfer, char *ret_error,
	      size_t error_bytes)
{
	int error = config_check(config, ret_error, error_bytes);
	if (error)
		return error;
	/* Aligned for the rings' two ends, which keep apart by cache lines. */
	struct xfer *xfer = aligned_alloc(64, ALIGN_UP(sizeof *xfer, 64));
	if (!xfer)
		return explain(ret_error, error_bytes, -ENOMEM, "xfer");
	error = xfer__init(xfer, config);
	if (error)
		explain(ret_error, error_bytes, error, "xfer");
	else
		error = listen_all(xfer, ret_error, error_bytes);
	if (!error) {
		error = thread_start(xfer);
		if (error)
			explain(ret_error, error_bytes, error, "cannot start the xfer thread");
	}
	if (error) {
		xfer_close(xfer);
		return error;
	}
	*ret_xfer = xfer;
	return 0;
}

void xfer_close(struct xfer *xfer)
{
	if (!xfer)
		return;
	if (xfer->started) {
		atomic_store(&xfer->stop, true);
		wake(xfer);
		pthread_join(xfer->thread, NULL);
	}
	for (uint32_t i = 0; i < xfer->listener_count; i++)
		close(xfer->listeners[i].fd);
	if (xfer->wake.fd >= 0)
		close(xfer->wake.fd);
	if (xfer->epoll_fd >= 0)
		close(xfer->epoll_fd);
	if (xfer->socket_path)
		unlink(xfer->socket_path);
	free(xfer->socket_path);
	xfer__fini(xfer);
	free(xfer);
}

size_t xfer_address(const struct xfer *xfer, uint8_t ret_address[XFER_ADDRESS_BYTES_MAX])
{
	return wire_pack_address(&xfer->address, ret_address);
}

/* ---- receiver ---- */

static bool range_valid(const struct xfer *xfer, uint64_t offset, uint32_t bytes)
{
	return bytes && bytes <= XFER_SLICE_BYTES_MAX && bytes % HASH_LEAF_BYTES == 0 &&
	       offset <= xfer->config.slab.bytes && bytes <= xfer->config.slab.bytes - offset;
}

int xfer_expect(struct xfer *xfer, const struct xfer_range ranges[], uint32_t range_count,
		uint64_t user, xfer_expect_id *ret_id, uint8_t ret_ticket[XFER_TICKET_BYTES_MAX],
		size_t *ret_ticket_bytes)
{
	check_loop(xfer);
	if (!range_count || range_count > XFER_RANGES_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < range_count; i++)
		if (!range_valid(xfer, ranges[i].offset, ranges[i].bytes))
			return -EINVAL;
	if (list_empty(&xfer->expects_free))
		return -ENOSPC;
	struct xfer_range *copy = malloc(range_count * (sizeof *copy + 1));
	if (!copy)
		return -ENOMEM;
	struct xfer__expect *expect =
		list_entry(xfer->expects_free.next, struct xfer__expect, free_link);
	list_remove(&expect->free_link);
	expect->generation++;
	expect->in_use = true;
	expect->revoke_sent = false;
	expect->user = user;
	expect->token = rand_system();
	memcpy(copy, ranges, range_count * sizeof *copy);
	expect->ranges = copy;
	expect->range_states = (uint8_t *)(copy + range_count);
	memset(expect->range_states, RANGE_WAITING, range_count);
	expect->range_count = range_count;
	xfer->expects_open++;
	const struct wire_ticket ticket = {
		.instance = xfer->address.instance,
		.token = expect->token,
		.index = (uint32_t)(expect - xfer->expects),
		.generation = expect->generation,
		.range_count = range_count,
	};
	*ret_id = (xfer_expect_id){ ticket.index, ticket.generation };
	*ret_ticket_bytes = wire_pack_ticket(&ticket, ret_ticket);
	command(xfer, &expect->grant, COMMAND_GRANT);
	wake(xfer);
	return 0;
}

void xfer_revoke(struct xfer *xfer, xfer_expect_id id)
{
	check_loop(xfer);
	if (id.index >= xfer->config.expects_max)
		return;
	struct xfer__expect *expect = &xfer->expects[id.index];
	if (!expect->in_use || expect->generation != id.generation || expect->revoke_sent)
		return;
	expect->revoke_sent = true;
	xfer->expects_revoking++;
	command(xfer, &expect->revoke, COMMAND_REVOKE);
	wake(xfer);
}

static void expect_free(struct xfer *xfer, struct xfer__expect *expect)
{
	free(expect->ranges);
	expect->ranges = NULL;
	expect->in_use = false;
	xfer->expects_open--;
	if (expect->revoke_sent)
		xfer->expects_revoking--;
	list_push_back(&xfer->expects_free, &expect->free_link);
}

/* ---- sender ---- */

int xfer_peer_ref(struct xfer *xfer, const uint8_t address[], size_t address_bytes,
		  struct xfer_peer **ret_peer)
{
	struct wire_address unpacked;

	check_loop(xfer);
	if (address_bytes > XFER_ADDRESS_BYTES_MAX ||
	    wire_unpack_address(address, address_bytes, &unpacked))
		return -EINVAL;
	list_for_each(link, &xfer->peers) {
		struct xfer_peer *peer = list_entry(link, struct xfer_peer, loop_link);
		if (peer->references && peer->packed_bytes == address_bytes &&
		    !memcmp(peer->packed, address, address_bytes)) {
			peer->references++;
			*ret_peer = peer;
			return 0;
		}
	}
	struct xfer_peer *peer = xfer->peer_count < XFER_PEERS_MAX ? calloc(1, sizeof *peer) : NULL;
	if (!peer)
		return -ENOMEM;
	peer->xfer = xfer;
	peer->address = unpacked;
	atomic_init(&peer->transport_name, "");
	peer->references = 1;
	memcpy(peer->packed, address, address_bytes);
	peer->packed_bytes = address_bytes;
	list_init(&peer->operations);
	list_init(&peer->link);
	list_init(&peer->pump_link);
	list_init(&peer->queue);
	list_init(&peer->conns);
	list_push_back(&xfer->peers, &peer->loop_link);
	xfer->peer_count++;
	*ret_peer = peer;
	return 0;
}

void xfer_peer_unref(struct xfer_peer *peer)
{
	if (!peer)
		return;
	check_loop(peer->xfer);
	CHECK(peer->references);
	if (--peer->references)
		return;
	command(peer->xfer, &peer->end, COMMAND_PEER_END);
	wake(peer->xfer);
}

const char *xfer_peer_transport(const struct xfer_peer *peer)
{
	return atomic_load(&peer->transport_name);
}

static int send_check(const struct xfer *xfer, const struct wire_ticket *ticket,
		      const struct xfer_slice slices[], uint32_t slice_count)
{
	if (slice_count > XFER_PEER_SLICES_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < slice_count; i++)
		if (!range_valid(xfer, slices[i].offset, slices[i].bytes) ||
		    slices[i].index >= ticket->range_count)
			return -EINVAL;
	return 0;
}

static bool operations_free(const struct xfer_peer *peer, uint32_t slice_count)
{
	return peer->operation_count + slice_count <= XFER_PEER_SLICES_MAX &&
	       peer->xfer->operation_count + slice_count <= XFER_OPERATIONS_MAX;
}

int xfer_send(struct xfer_peer *peer, const uint8_t ticket[], size_t ticket_bytes,
	      const struct xfer_slice slices[], uint32_t slice_count, uint64_t user)
{
	struct xfer *xfer = peer->xfer;
	struct wire_ticket unpacked;

	check_loop(xfer);
	int error = wire_unpack_ticket(ticket, ticket_bytes, &unpacked);
	if (!error)
		error = send_check(xfer, &unpacked, slices, slice_count);
	if (error)
		return error;
	if (!operations_free(peer, slice_count))
		return -EAGAIN;
	for (uint32_t i = 0; i < slice_count; i++) {
		struct xfer__operation *operation =
			list_entry(xfer->operations_free.next, struct xfer__operation, loop_link);
		list_remove(&operation->loop_link);
		list_push_back(&peer->operations, &operation->loop_link);
		operation->peer = peer;
		operation->ticket = unpacked;
		operation->slice = slices[i];
		operation->user = user;
		atomic_store_explicit(&operation->cancel, false, memory_order_relaxed);
		peer->operation_count++;
		xfer->operation_count++;
		command(xfer, &operation->command, COMMAND_SEND);
	}
	if (slice_count)
		wake(xfer);
	return 0;
}

void xfer_cancel(struct xfer_peer *peer, uint64_t user)
{
	bool any = false;

	check_loop(peer->xfer);
	list_for_each(link, &peer->operations) {
		struct xfer__operation *operation = list_entry(link, struct xfer__operation, loop_link);
		if (operation->user != user)
			continue;
		atomic_store_explicit(&operation->cancel, true, memory_order_relaxed);
		any = true;
	}
	if (!any)
		return;
	atomic_store(&peer->xfer->cancel_marked, true);
	wake(peer->xfer);
}

static void operation_free(struct xfer *xfer, struct xfer__operation *operation)
{
	operation->peer->operation_count--;
	xfer->operation_count--;
	list_remove(&operation->loop_link);
	list_push_back(&xfer->operations_free, &operation->loop_link);
}

static void peer_free(struct xfer *xfer, struct xfer_peer *peer)
{
	CHECK(!peer->operation_count && !peer->references);
	list_remove(&peer->loop_link);
	xfer->peer_count--;
	free(peer);
}

/* ---- events ---- */

/* What @slot held is free again. Return: whether the event is one to tell. */
static bool release(struct xfer *xfer, const struct xfer__event *slot)
{
	switch (slot->frees) {
	case FREES_CREDIT:
		atomic_fetch_sub(&xfer->credits_used, 1);
		if (atomic_exchange(&xfer->starved, false)) {
			atomic_store(&xfer->resume, true);
			wake(xfer);
		}
		return true;
	case FREES_OPERATION:
		operation_free(xfer, slot->owner);
		return true;
	case FREES_EXPECT: {
		struct xfer__expect *expect = slot->owner;
		/* A revoke that crossed this end is still to be answered; until then the slot stays. */
		if (slot->event.kind == XFER_REVOKED || !expect->revoke_sent)
			expect_free(xfer, expect);
		return true;
	}
	case FREES_EXPECT_SILENT:
		expect_free(xfer, slot->owner);
		return false;
	case FREES_PEER:
		peer_free(xfer, slot->owner);
		return false;
	}
	return false;
}

static struct xfer__event *next_event(struct xfer *xfer)
{
	struct xfer__event *slot = ring_pop(&xfer->events);
	if (slot)
		return slot;
	/* Events that came before this exchange fire no new notify(), so look once more. */
	(void)atomic_exchange(&xfer->notify_sent, false);
	return ring_pop(&xfer->events);
}

bool xfer_poll(struct xfer *xfer, struct xfer_event *ret_event)
{
	struct xfer__event *slot;

	check_loop(xfer);
	while ((slot = next_event(xfer))) {
		struct xfer__event copy = *slot;
		CHECK(ring_push(&xfer->events_free, slot));
		if (release(xfer, &copy)) {
			*ret_event = copy.event;
			return true;
		}
	}
	return false;
}

void xfer_stats(const struct xfer *xfer, struct xfer_stats *ret_stats)
{
	const struct xfer__counters *counters = &xfer->counters;

	*ret_stats = (struct xfer_stats){
		.slices_corrupt = atomic_load(&counters->slices_corrupt),
		.slices_revoked = atomic_load(&counters->slices_revoked),
		.connects = atomic_load(&counters->connects),
		.disconnects = atomic_load(&counters->disconnects),
		.refused = atomic_load(&counters->refused),
		.expects_open = xfer->expects_open,
		.expects_revoking = xfer->expects_revoking,
	};
	for (size_t i = 0; i < ARRAY_COUNT(ret_stats->sent_bytes); i++) {
		ret_stats->sent_bytes[i] = atomic_load(&counters->sent_bytes[i]);
		ret_stats->landed_bytes[i] = atomic_load(&counters->landed_bytes[i]);
	}
}
