/*
 * The receiver's end of the data plane, fed with whatever a peer might send. Two watchers: nothing
 * outside the granted ranges ever changes, and nothing inside them after they were revoked (X1).
 *
 * Input: byte 0 chooses what is fed (0: the tcp stream, 1: the shm stream, else: the frames of the
 * handshake, tickets and addresses); for the streams bytes 1 and 2 say after how many bytes the
 * transfer is revoked and byte 3 how many bytes come at a time.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/check.h"
#include "base/hash.h"
#include "xfer/xfer_internal.h"

#define PAGE HASH_LEAF_BYTES
#define SLAB_PAGES 16
#define GUARD 0xa5

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static struct xfer *the_xfer;
static uint8_t slab[SLAB_PAGES * PAGE], source[SLAB_PAGES * PAGE], revoked_copy[SLAB_PAGES * PAGE];
/* Pages 2 and 5 to 7; all others are guards. */
static const struct xfer_range ranges[] = { { 2 * PAGE, PAGE }, { 5 * PAGE, 3 * PAGE } };

static void setup(void)
{
	struct xfer_config config = { .transport = XFER_TCP, .expects_max = 2,
				      .slab = { -1, slab, sizeof slab } };
	the_xfer = aligned_alloc(64, ALIGN_UP(sizeof *the_xfer, 64));
	CHECK(the_xfer && !xfer__init(the_xfer, &config));
	the_xfer->wake.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	the_xfer->address.instance = 1; /* so that a ticket can be written down in the corpus */
}

static xfer_expect_id grant(void)
{
	uint8_t ticket[XFER_TICKET_BYTES_MAX];
	size_t ticket_bytes;
	xfer_expect_id id;

	CHECK(!xfer_expect(the_xfer, ranges, ARRAY_COUNT(ranges), 7, &id, ticket, &ticket_bytes));
	struct xfer__expect *expect = &the_xfer->expects[id.index];
	xfer__commands_drain(the_xfer);
	/* The same for every input: index 0, generation 1, token 2. */
	expect->token = 2;
	expect->live_generation = 1;
	return id;
}

static void drain_events(void)
{
	struct xfer_event event;
	while (xfer_poll(the_xfer, &event))
		;
}

static void check_guards(void)
{
	for (size_t page = 0; page < SLAB_PAGES; page++) {
		if (page == 2 || (page >= 5 && page < 8))
			continue;
		for (size_t i = 0; i < PAGE; i++)
			CHECK(slab[page * PAGE + i] == GUARD);
	}
}

/* Return: bytes taken, 0 when the parser takes none now. */
static size_t feed(struct xfer__inbound *in, const uint8_t *data, size_t bytes, int *ret_error)
{
	struct iovec iov[2];
	size_t fed = 0;

	while (xfer__inbound_step(in, 0))
		;
	in->acks_bytes = 0; /* the peer reads them */
	int count = xfer__inbound_want(in, iov);
	for (int i = 0; i < count && fed < bytes; i++) {
		size_t part = MIN(iov[i].iov_len, bytes - fed);
		memcpy(iov[i].iov_base, data + fed, part);
		fed += part;
		if (part < iov[i].iov_len)
			break;
	}
	if (fed)
		*ret_error = xfer__inbound_feed(in, fed, 0);
	return fed;
}

static void stream(const uint8_t *data, size_t bytes, bool shm, size_t revoke_at, size_t piece)
{
	struct xfer__inbound in;
	xfer_expect_id id = grant();
	bool revoked = false;
	int error = 0;

	memset(slab, GUARD, sizeof slab);
	CHECK(!xfer__inbound_init(&in, the_xfer, shm ? XFER_SHM : XFER_TCP));
	in.source = shm ? source : NULL;
	in.source_bytes = shm ? sizeof source : 0;
	for (size_t at = 0; at < bytes && !error;) {
		if (at >= revoke_at && !revoked) {
			xfer_revoke(the_xfer, id);
			xfer__commands_drain(the_xfer);
			memcpy(revoked_copy, slab, sizeof slab);
			revoked = true;
		}
		size_t fed = feed(&in, data + at, MIN(piece, bytes - at), &error);
		drain_events();
		if (!fed)
			break;
		at += fed;
	}
	while (!error && xfer__inbound_step(&in, 0))
		;
	if (revoked)
		CHECK(!memcmp(revoked_copy, slab, sizeof slab));
	xfer__inbound_fini(&in);
	xfer_revoke(the_xfer, id);
	xfer__commands_drain(the_xfer);
	drain_events();
	check_guards();
	CHECK(!the_xfer->expects_open && !the_xfer->expects_revoking);
	CHECK(!atomic_load(&the_xfer->credits_used));
}

static void frames(const uint8_t *data, size_t bytes)
{
	const uint8_t key[32] = { 0 };
	uint8_t frame[256] = { 0 };
	struct wire_ticket ticket;
	struct wire_address address;
	uint64_t number;
	int status;

	(void)wire_unpack_ticket(data, bytes, &ticket);
	if (!wire_unpack_address(data, bytes, &address)) {
		CHECK(memchr(address.host, 0, sizeof address.host));
		CHECK(memchr(address.socket, 0, sizeof address.socket));
		CHECK(wire_pack_address(&address, frame) == bytes);
	}
	memset(frame, 0, sizeof frame);
	memcpy(frame, data, MIN(bytes, sizeof frame));
	(void)wire_check_greeting(frame);
	CHECK(wire_check_proof(key, "tcp", frame + 100, 1, frame) < 0);
	CHECK(wire_check_confirm(key, "tcp", frame + 100, frame, frame) < 0);
	(void)wire_unpack_slab(frame, &number);
	(void)wire_unpack_ack(frame, &number, &status);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	if (!the_xfer)
		setup();
	if (bytes < 4)
		return 0;
	if (data[0] > 1)
		frames(data + 1, bytes - 1);
	else
		stream(data + 4, bytes - 4, data[0] == 1, (size_t)data[1] << 8 | data[2],
		       1 + (size_t)data[3] * 64);
	return 0;
}
