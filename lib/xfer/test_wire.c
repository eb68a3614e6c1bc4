/* Frames by hand: what is packed comes back, what is not ours is refused; and the receiver's parser
 * gives the same answer however the stream is cut into pieces. */
#include <errno.h>

#include "xfer/test_support.h"
#include "xfer/xfer_internal.h"

static void test_round_trips(void **state)
{
	uint8_t bytes[XFER_ADDRESS_BYTES_MAX];
	struct wire_ticket ticket = { 1, 2, 3, 4, 5 }, ticket_back;
	size_t count = wire_pack_ticket(&ticket, bytes);
	assert_int_equal(wire_unpack_ticket(bytes, count, &ticket_back), 0);
	assert_int_equal(ticket_back.instance, 1);
	assert_int_equal(ticket_back.token, 2);
	assert_int_equal(ticket_back.index, 3);
	assert_int_equal(ticket_back.generation, 4);
	assert_int_equal(ticket_back.range_count, 5);
	assert_int_equal(wire_unpack_ticket(bytes, count - 1, &ticket_back), -EINVAL);

	struct wire_address address = { { 1, 2 }, 3, 7700, "127.0.0.1", "@somewhere" }, address_back;
	count = wire_pack_address(&address, bytes);
	assert_int_equal(wire_unpack_address(bytes, count, &address_back), 0);
	assert_string_equal(address_back.host, address.host);
	assert_string_equal(address_back.socket, address.socket);
	assert_int_equal(address_back.port, 7700);
	for (size_t cut = 0; cut < count; cut++)
		assert_int_equal(wire_unpack_address(bytes, cut, &address_back), -EINVAL);
	bytes[30] = 200; /* a host longer than the whole */
	assert_int_equal(wire_unpack_address(bytes, count, &address_back), -EINVAL);

	struct wire_slice slice = { .sequence = 9, .ticket = { 1, 2, 3, 4, 0 }, .index = 6,
				    .bytes = 8192, .offset = 4096, .sum = 77 }, slice_back;
	wire_pack_slice(&slice, bytes);
	assert_int_equal(wire_unpack_slice(bytes, &slice_back), 0);
	assert_int_equal(slice_back.offset, 4096);
	assert_int_equal(slice_back.ticket.token, 2);
	slice.bytes = 100;
	wire_pack_slice(&slice, bytes);
	assert_int_equal(wire_unpack_slice(bytes, &slice_back), BATON_EPROTOCOL);
	slice.bytes = XFER_SLICE_BYTES_MAX + PAGE;
	wire_pack_slice(&slice, bytes);
	assert_int_equal(wire_unpack_slice(bytes, &slice_back), BATON_EPROTOCOL);
}

static void test_proofs(void **state)
{
	uint8_t greeting[WIRE_GREETING_BYTES], proof[WIRE_PROOF_BYTES], confirm[WIRE_CONFIRM_BYTES];
	const uint8_t nonce_a[32] = { 1 }, nonce_b[32] = { 2 };
	uint8_t key[32] = { 3 }, other[32] = { 4 };

	wire_pack_greeting(nonce_a, greeting);
	wire_pack_proof(key, "tcp", greeting, 10, 20, nonce_b, proof);
	assert_int_equal(wire_check_proof(key, "tcp", greeting, 20, proof), 0);
	assert_int_equal(wire_check_proof(other, "tcp", greeting, 20, proof), BATON_EAUTH);
	assert_int_equal(wire_check_proof(key, "shm", greeting, 20, proof), BATON_EAUTH);
	assert_int_equal(wire_check_proof(key, "tcp", greeting, 21, proof), BATON_EFENCED);
	wire_pack_confirm(key, "tcp", greeting, proof, confirm);
	assert_int_equal(wire_check_confirm(key, "tcp", greeting, proof, confirm), 0);
	assert_int_equal(wire_check_confirm(other, "tcp", greeting, proof, confirm), BATON_EAUTH);
	/* The connector's own mac sent back to it. */
	memcpy(confirm + 8, proof + WIRE_PROOF_BYTES - 32, 32);
	assert_int_equal(wire_check_confirm(key, "tcp", greeting, proof, confirm), BATON_EAUTH);
	/* Another nonce: a recorded proof is worth nothing. */
	wire_pack_greeting(nonce_b, greeting);
	assert_int_equal(wire_check_proof(key, "tcp", greeting, 20, proof), BATON_EAUTH);
}

/* ---- the parser, fed in pieces ---- */

#define STREAM_SLICES 5

struct rig {
	struct xfer xfer;
	struct xfer__inbound in;
	struct grant grant;
	uint8_t *source, *target, *stream;
	size_t stream_bytes;
};

static void rig_init(struct rig *rig)
{
	struct xfer_config config = end_config(XFER_TCP);
	struct xfer_range ranges[STREAM_SLICES];

	rig->source = malloc(STREAM_SLICES * 3 * PAGE);
	rig->target = malloc(STREAM_SLICES * 3 * PAGE);
	rig->stream = malloc(STREAM_SLICES * (3 * PAGE + 128));
	fill_random(rig->source, STREAM_SLICES * 3 * PAGE, 5);
	config.slab = (struct xfer_slab){ -1, rig->target, STREAM_SLICES * 3 * PAGE };
	assert_int_equal(xfer__init(&rig->xfer, &config), 0);
	rig->xfer.wake.fd = eventfd(0, EFD_CLOEXEC);
	assert_int_equal(xfer__inbound_init(&rig->in, &rig->xfer, XFER_TCP), 0);
	for (uint32_t i = 0; i < STREAM_SLICES; i++)
		ranges[i] = (struct xfer_range){ i * 3 * PAGE, (1 + i % 3) * PAGE };
	assert_int_equal(xfer_expect(&rig->xfer, ranges, STREAM_SLICES, 1, &rig->grant.id,
				     rig->grant.ticket, &rig->grant.ticket_bytes), 0);
	rig->stream_bytes = 0;
	for (uint32_t i = 0; i < STREAM_SLICES; i++) {
		struct wire_slice slice = { .inline_payload = true, .sequence = i, .index = i,
					    .bytes = ranges[i].bytes };
		assert_int_equal(wire_unpack_ticket(rig->grant.ticket, rig->grant.ticket_bytes,
						    &slice.ticket), 0);
		wire_pack_slice(&slice, rig->stream + rig->stream_bytes);
		rig->stream_bytes += WIRE_SLICE_BYTES;
		memcpy(rig->stream + rig->stream_bytes, rig->source + ranges[i].offset, slice.bytes);
		rig->stream_bytes += slice.bytes;
		wire_pack_u64(hash_slice(rig->source + ranges[i].offset, slice.bytes),
			      rig->stream + rig->stream_bytes);
		rig->stream_bytes += WIRE_SUM_BYTES;
	}
}

static void rig_fini(struct rig *rig)
{
	xfer__inbound_fini(&rig->in);
	close(rig->xfer.wake.fd);
	xfer__fini(&rig->xfer);
	free(rig->source);
	free(rig->target);
	free(rig->stream);
}

/* Scatters at most @piece bytes of the stream into where the parser wants them. */
static int rig_feed(struct rig *rig, size_t *at, size_t piece)
{
	struct iovec iov[2];
	(void)xfer__inbound_step(&rig->in, 0);
	int count = xfer__inbound_want(&rig->in, iov);
	size_t fed = 0;
	assert_true(count > 0);
	for (int i = 0; i < count && fed < piece; i++) {
		size_t bytes = MIN(MIN(iov[i].iov_len, piece - fed), rig->stream_bytes - *at);
		memcpy(iov[i].iov_base, rig->stream + *at, bytes);
		*at += bytes;
		fed += bytes;
		if (bytes < iov[i].iov_len)
			break;
	}
	return xfer__inbound_feed(&rig->in, fed, 0);
}

static void test_pieces(void **state)
{
	for (size_t piece = 1; piece < 20000; piece = piece * 3 + 1) {
		struct rig *rig = aligned_alloc(64, ALIGN_UP(sizeof *rig, 64));
		struct xfer_event event;
		size_t at = 0;
		uint32_t landed = 0;

		rig_init(rig);
		while (at < rig->stream_bytes)
			assert_int_equal(rig_feed(rig, &at, piece), 0);
		assert_int_equal(rig->in.acks_bytes, STREAM_SLICES * WIRE_ACK_BYTES);
		while (xfer_poll(&rig->xfer, &event))
			landed += event.kind == XFER_LANDED;
		assert_int_equal(landed, STREAM_SLICES);
		assert_int_equal(event.kind, XFER_LANDED_ALL);
		for (uint32_t i = 0; i < STREAM_SLICES; i++)
			assert_memory_equal(rig->source + i * 3 * PAGE, rig->target + i * 3 * PAGE,
					    (1 + i % 3) * PAGE);
		rig_fini(rig);
		free(rig);
	}
}

static void test_lies(void **state)
{
	/* Where a byte of the first header is wrong: magic, kind, sequence. The rest (ticket, index,
	 * length) is answered in the ack. */
	static const size_t places[] = { 0, 4, 8 };
	for (size_t i = 0; i < ARRAY_COUNT(places); i++) {
		struct rig *rig = aligned_alloc(64, ALIGN_UP(sizeof *rig, 64));
		size_t at = 0;
		rig_init(rig);
		rig->stream[places[i]] ^= 0x40;
		assert_int_equal(rig_feed(rig, &at, WIRE_SLICE_BYTES), BATON_EPROTOCOL);
		rig_fini(rig);
		free(rig);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trips),
		cmocka_unit_test(test_proofs),
		cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_lies),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
