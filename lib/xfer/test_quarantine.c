/*
 * X1: after XFER_REVOKED no byte of the ranges changes any more. Each test gives the range back to
 * an owner who fills it, lets the sender go on, and looks. Built a second time against a library
 * with XFER_NO_QUARANTINE, where every one of them must fail.
 */
#include <errno.h>

#include "xfer/test_raw.h"

#define SLICE (4 * MIB)

static enum xfer_transport transport_of(void **state)
{
	return *(enum xfer_transport *)*state;
}

static void assert_filled(const uint8_t *data, uint8_t value, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (data[i] != value)
			fail_msg("byte %zu of the range changed after XFER_REVOKED", i);
}

/* A sender that stops in the middle of a slice and goes on after the revoke. */
static void test_stalled_sender(void **state)
{
	struct xfer_config config = end_config(XFER_TCP);
	struct end *end = end_new(config, 2 * SLICE);
	const struct xfer_range range = { 0, SLICE };
	struct grant grant = end_expect(end, &range, 1, 5);
	uint8_t *payload = malloc(SLICE), sum[WIRE_SUM_BYTES];
	int fd = raw_handshake(end, config.cluster_key);

	fill_random(payload, SLICE, 3);
	payload[SLICE / 2 - 1] |= 1; /* not the zero that is there before */
	wire_pack_u64(hash_slice(payload, SLICE), sum);
	struct wire_slice slice = raw_slice(&grant, 0, 0, SLICE);
	raw_write_head(fd, &slice);
	raw_write(fd, payload, SLICE / 2);
	end_await_byte(end, SLICE / 2 - 1, payload[SLICE / 2 - 1]);
	xfer_revoke(end->xfer, grant.id);
	assert_true(ends_wait(end, NULL, XFER_REVOKED, 1, 1000));
	memset(end->slab.base, 0x5a, SLICE);
	raw_write(fd, payload + SLICE / 2, SLICE / 2);
	raw_write(fd, sum, sizeof sum);
	assert_int_equal(raw_read_ack(fd, 0), BATON_EREVOKED);
	assert_filled(end->slab.base, 0x5a, SLICE);

	/* And a whole one more against the same ticket. */
	slice.sequence = 1;
	raw_write_head(fd, &slice);
	raw_write(fd, payload, SLICE);
	raw_write(fd, sum, sizeof sum);
	assert_int_equal(raw_read_ack(fd, 1), BATON_EREVOKED);
	assert_filled(end->slab.base, 0x5a, SLICE);
	close(fd);
	free(payload);
	end_free(end);
}

/* The slice has been accepted and is held back when the revoke comes. */
static void test_held_slice(void **state)
{
	struct xfer_config config = end_config(transport_of(state));
	struct end *source = end_new(config, SLICE);
	config.faults.delay_us = 300000;
	struct end *target = end_new(config, SLICE);
	struct xfer_peer *peer = end_peer(source, target);
	const struct xfer_range range = { 0, SLICE };
	const struct xfer_slice slice = { 0, 0, SLICE, 0 };
	struct grant grant = end_expect(target, &range, 1, 5);

	fill_random(source->slab.base, SLICE, 4);
	assert_int_equal(xfer_send(peer, grant.ticket, grant.ticket_bytes, &slice, 1, 1), 0);
	wait_ms(100);
	xfer_revoke(target->xfer, grant.id);
	assert_true(ends_wait(target, source, XFER_REVOKED, 1, 150));
	memset(target->slab.base, 0x5a, SLICE);
	assert_true(ends_wait(source, target, XFER_SENT, 1, 5000));
	assert_int_equal(source->events[0].status, BATON_EREVOKED);
	assert_filled(target->slab.base, 0x5a, SLICE);
	xfer_peer_unref(peer);
	end_free(source);
	end_free(target);
}

/* Revokes at all moments of busy transfers; the owner refills the ranges each time. */
#define STORM_ROUNDS 60
#define STORM_SLICES 4
#define STORM_BYTES (2 * MIB) /* more than one turn of the receiver */
static void test_revoke_storm(void **state)
{
	struct xfer_config config = end_config(transport_of(state));
	struct end *source = end_new(config, STORM_SLICES * STORM_BYTES);
	struct end *target = end_new(config, STORM_SLICES * STORM_BYTES);
	struct xfer_peer *peer = end_peer(source, target);
	struct xfer_range ranges[STORM_SLICES];
	struct xfer_slice slices[STORM_SLICES];
	uint64_t seed = 99;
	uint32_t revoked = 0, changed = 0;

	fill_random(source->slab.base, STORM_SLICES * STORM_BYTES, 4);
	for (uint32_t i = 0; i < STORM_SLICES; i++) {
		ranges[i] = (struct xfer_range){ i * STORM_BYTES, STORM_BYTES };
		slices[i] = (struct xfer_slice){ i, i * STORM_BYTES, STORM_BYTES, 0 };
	}
	for (uint32_t round = 0; round < STORM_ROUNDS; round++) {
		source->event_count = target->event_count = 0;
		struct grant grant = end_expect(target, ranges, STORM_SLICES, round);
		assert_int_equal(xfer_send(peer, grant.ticket, grant.ticket_bytes, slices,
					   STORM_SLICES, round), 0);
		uint64_t until = clock_now_ns() + rand_next(&seed) % (4 * NS_PER_MS);
		while (clock_now_ns() < until)
			;
		xfer_revoke(target->xfer, grant.id);
		while (!end_count(target, XFER_REVOKED) && !end_count(target, XFER_LANDED_ALL))
			end_drain(target);
		memset(target->slab.base, (int)round, STORM_SLICES * STORM_BYTES);
		assert_true(ends_wait(source, target, XFER_SENT, STORM_SLICES, 5000));
		if (!end_count(target, XFER_REVOKED))
			continue;
		revoked++;
		for (uint32_t i = 0; i < STORM_SLICES * STORM_BYTES; i++)
			if (((uint8_t *)target->slab.base)[i] != (uint8_t)round) {
				changed++;
				break;
			}
	}
	assert_true(revoked > 0); /* else the machine was too slow to tell anything */
	assert_int_equal(changed, 0);
	xfer_peer_unref(peer);
	end_free(source);
	end_free(target);
}

static enum xfer_transport shm = XFER_SHM, tcp = XFER_TCP;

#define OVER_EACH(test)                                                                          \
	{ #test " shm", test, NULL, NULL, &shm }, { #test " tcp", test, NULL, NULL, &tcp }

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stalled_sender),
		OVER_EACH(test_held_slice),
		OVER_EACH(test_revoke_storm),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
