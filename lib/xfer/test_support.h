/* What the tests of lib/xfer share: two xfers in one process, driven by one thread. */
#ifndef BATON_XFER_TEST_SUPPORT_H
#define BATON_XFER_TEST_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/rand.h"
#include "xfer/xfer.h"

#define PAGE 4096u
#define MIB (1u << 20)
#define EVENTS_KEPT 8192

struct end {
	struct xfer *xfer;
	struct xfer_slab slab;
	int wake;
	struct xfer_event events[EVENTS_KEPT];
	uint32_t event_count;
};

static inline void end_notify(void *context)
{
	const uint64_t one = 1;
	struct end *end = context;
	assert_int_equal(write(end->wake, &one, sizeof one), sizeof one);
}

static inline struct xfer_config end_config(enum xfer_transport transport)
{
	struct xfer_config config = { .transport = transport, .host = "127.0.0.1", .expects_max = 64 };
	memset(config.cluster_key, 7, sizeof config.cluster_key);
	return config;
}

static inline struct end *end_new(struct xfer_config config, uint64_t slab_bytes)
{
	char error[256];
	struct end *end = calloc(1, sizeof *end);
	assert_non_null(end);
	assert_int_equal(xfer_slab_map(slab_bytes, &end->slab), 0);
	end->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	config.slab = end->slab;
	config.notify = end_notify;
	config.notify_context = end;
	int status = xfer_open(&config, &end->xfer, error, sizeof error);
	if (status)
		fail_msg("xfer_open: %s", error);
	return end;
}

static inline void end_free(struct end *end)
{
	xfer_close(end->xfer);
	xfer_slab_unmap(&end->slab);
	close(end->wake);
	free(end);
}

static inline void end_drain(struct end *end)
{
	uint64_t count;
	(void)!read(end->wake, &count, sizeof count);
	struct xfer_event event;
	while (xfer_poll(end->xfer, &event)) {
		assert_true(end->event_count < EVENTS_KEPT);
		end->events[end->event_count++] = event;
	}
}

static inline uint32_t end_count(const struct end *end, enum xfer_event_kind kind)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < end->event_count; i++)
		count += end->events[i].kind == kind;
	return count;
}

static inline uint32_t end_count_status(const struct end *end, int status)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < end->event_count; i++)
		count += end->events[i].kind == XFER_SENT && end->events[i].status == status;
	return count;
}

/* Drains both until @end has @count events of @kind, or the time is over. */
static inline bool ends_wait(struct end *end, struct end *other, enum xfer_event_kind kind,
			     uint32_t count, uint32_t timeout_ms)
{
	uint64_t until = clock_now_ns() + timeout_ms * NS_PER_MS;
	for (;;) {
		end_drain(end);
		if (other)
			end_drain(other);
		if (end_count(end, kind) >= count)
			return true;
		if (clock_now_ns() >= until)
			return false;
		struct pollfd fds[2] = { { end->wake, POLLIN, 0 }, { other ? other->wake : -1, POLLIN, 0 } };
		(void)poll(fds, 2, 20);
	}
}

static inline void fill_random(void *data, size_t bytes, uint64_t seed)
{
	uint64_t *words = data;
	for (size_t i = 0; i < bytes / 8; i++)
		words[i] = rand_next(&seed);
}

static inline struct xfer_peer *end_peer(struct end *end, struct end *target)
{
	uint8_t address[XFER_ADDRESS_BYTES_MAX];
	struct xfer_peer *peer;
	size_t bytes = xfer_address(target->xfer, address);
	assert_int_equal(xfer_peer_ref(end->xfer, address, bytes, &peer), 0);
	return peer;
}

/* Waits until the slab has @value there. Through the file, so that it is no data race. */
static inline void end_await_byte(struct end *end, uint64_t offset, uint8_t value)
{
	uint8_t byte;
	do
		assert_int_equal(pread(end->slab.memfd, &byte, 1, (off_t)offset), 1);
	while (byte != value && !poll(NULL, 0, 1));
	assert_int_equal(byte, value);
}

struct grant {
	xfer_expect_id id;
	uint8_t ticket[XFER_TICKET_BYTES_MAX];
	size_t ticket_bytes;
};

static inline struct grant end_expect(struct end *end, const struct xfer_range *ranges,
				      uint32_t count, uint64_t user)
{
	struct grant grant;
	assert_int_equal(xfer_expect(end->xfer, ranges, count, user, &grant.id, grant.ticket,
				     &grant.ticket_bytes),
			 0);
	return grant;
}

static inline void wait_ms(uint32_t ms)
{
	(void)poll(NULL, 0, (int)ms);
}

#endif
