/* One body of tests over every stream transport. */
#include <dirent.h>
#include <errno.h>

#include "xfer/test_support.h"

static enum xfer_transport transport_of(void **state)
{
	return *(enum xfer_transport *)*state;
}

static const char *const names[] = { [XFER_SHM] = "shm", [XFER_TCP] = "tcp" };

static uint32_t descriptors_open(void)
{
	uint32_t count = 0;
	DIR *dir = opendir("/proc/self/fd");
	assert_non_null(dir);
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

/* A source, a target, and a peer of the one for the other. */
struct pair {
	struct end *source, *target;
	struct xfer_peer *peer;
};

static struct pair pair_new(struct xfer_config source, struct xfer_config target, uint64_t bytes)
{
	struct pair pair = { end_new(source, bytes), end_new(target, bytes), NULL };
	pair.peer = end_peer(pair.source, pair.target);
	fill_random(pair.source->slab.base, bytes, 42);
	return pair;
}

static void pair_free(struct pair *pair)
{
	xfer_peer_unref(pair->peer);
	end_free(pair->source);
	end_free(pair->target);
}

/* @count slices of @bytes, the i-th from and to the i-th place. */
static struct grant pair_expect(struct pair *pair, uint32_t count, uint32_t bytes)
{
	struct xfer_range *ranges = calloc(count, sizeof *ranges);
	for (uint32_t i = 0; i < count; i++)
		ranges[i] = (struct xfer_range){ (uint64_t)i * bytes, bytes };
	struct grant grant = end_expect(pair->target, ranges, count, 77);
	free(ranges);
	return grant;
}

static int pair_send(struct pair *pair, const struct grant *grant, uint32_t first, uint32_t count,
		     uint32_t bytes)
{
	struct xfer_slice *slices = calloc(count, sizeof *slices);
	for (uint32_t i = 0; i < count; i++)
		slices[i] = (struct xfer_slice){ first + i, (uint64_t)(first + i) * bytes, bytes, 0 };
	int error = xfer_send(pair->peer, grant->ticket, grant->ticket_bytes, slices, count, 1);
	free(slices);
	return error;
}

/* Sends again what failed, until the expect is over. Return: rounds that it took. */
static uint32_t pair_resend_until_landed(struct pair *pair, const struct grant *grant, uint32_t bytes)
{
	for (uint32_t round = 1; round < 100; round++) {
		uint32_t failed[256], count = 0;
		for (uint32_t i = 0; i < pair->source->event_count; i++)
			if (pair->source->events[i].status) {
				assert_true(count < 256);
				failed[count++] = pair->source->events[i].index;
			}
		pair->source->event_count = 0;
		for (uint32_t i = 0; i < count; i++)
			assert_int_equal(pair_send(pair, grant, failed[i], 1, bytes), 0);
		assert_true(ends_wait(pair->source, pair->target, XFER_SENT, count, 10000));
		if (ends_wait(pair->target, pair->source, XFER_LANDED_ALL, 1, count ? 0 : 1000))
			return round;
	}
	fail_msg("it never landed");
	return 0;
}

/* Sizes 4 KiB to 8 MiB, both directions at once, every byte compared. */
#define MIXED_SLICES 40
struct mixed {
	struct xfer_range ranges[MIXED_SLICES];
	struct xfer_slice slices[MIXED_SLICES];
	uint64_t bytes;
};

static struct mixed mixed_new(uint64_t source_base, uint64_t target_base, uint64_t seed, bool sums,
			      const uint8_t *source)
{
	struct mixed mixed = { .bytes = 0 };
	for (uint32_t i = 0; i < MIXED_SLICES; i++) {
		uint32_t bytes = i == 3 ? 8 * MIB : PAGE << (rand_next(&seed) % 8);
		mixed.ranges[i] = (struct xfer_range){ target_base + mixed.bytes, bytes };
		mixed.slices[i] = (struct xfer_slice){ i, source_base + mixed.bytes, bytes, 0 };
		if (sums)
			mixed.slices[i].sum = hash_slice(source + source_base + mixed.bytes, bytes);
		mixed.bytes += bytes;
	}
	return mixed;
}

static void test_both_directions(void **state)
{
	const uint64_t half = 32 * MIB;
	struct end *a = end_new(end_config(transport_of(state)), 2 * half);
	struct end *b = end_new(end_config(transport_of(state)), 2 * half);
	struct xfer_peer *to_b = end_peer(a, b), *to_a = end_peer(b, a);

	for (uint32_t round = 0; round < 3; round++) {
		fill_random(a->slab.base, half, 10 + round);
		fill_random(b->slab.base, half, 20 + round);
		struct mixed out = mixed_new(0, half, round, round == 1, a->slab.base);
		struct mixed back = mixed_new(0, half, round + 7, round == 1, b->slab.base);
		assert_true(out.bytes <= half && back.bytes <= half);
		struct grant at_b = end_expect(b, out.ranges, MIXED_SLICES, 100);
		struct grant at_a = end_expect(a, back.ranges, MIXED_SLICES, 200);
		a->event_count = b->event_count = 0;
		assert_int_equal(xfer_send(to_b, at_b.ticket, at_b.ticket_bytes, out.slices,
					   MIXED_SLICES, 1), 0);
		assert_int_equal(xfer_send(to_a, at_a.ticket, at_a.ticket_bytes, back.slices,
					   MIXED_SLICES, 2), 0);
		assert_true(ends_wait(a, b, XFER_SENT, MIXED_SLICES, 10000));
		assert_true(ends_wait(b, a, XFER_SENT, MIXED_SLICES, 10000));
		assert_true(ends_wait(a, b, XFER_LANDED_ALL, 1, 10000));
		assert_true(ends_wait(b, a, XFER_LANDED_ALL, 1, 10000));
		assert_int_equal(end_count_status(a, 0), MIXED_SLICES);
		assert_int_equal(end_count(b, XFER_LANDED), MIXED_SLICES);
		assert_memory_equal(a->slab.base, (char *)b->slab.base + half, out.bytes);
		assert_memory_equal(b->slab.base, (char *)a->slab.base + half, back.bytes);
	}
	struct xfer_stats stats;
	xfer_stats(b->xfer, &stats);
	assert_int_equal(stats.expects_open, 0);
	assert_true(stats.landed_bytes[transport_of(state)] > 0);
	assert_string_equal(xfer_peer_transport(to_b), names[transport_of(state)]);
	xfer_peer_unref(to_b);
	xfer_peer_unref(to_a);
	end_free(a);
	end_free(b);
}

/* Many transfers at a time to one peer, in several calls each, out of order. */
static void test_concurrent_transfers(void **state)
{
	enum { TRANSFERS = 32, SLICES = 16 };
	struct pair pair = pair_new(end_config(transport_of(state)), end_config(transport_of(state)),
				    TRANSFERS * SLICES * 4 * PAGE);
	struct grant grants[TRANSFERS];

	for (uint32_t t = 0; t < TRANSFERS; t++) {
		struct xfer_range ranges[SLICES];
		for (uint32_t i = 0; i < SLICES; i++)
			ranges[i] = (struct xfer_range){ (t * SLICES + i) * 4 * PAGE, 4 * PAGE };
		grants[t] = end_expect(pair.target, ranges, SLICES, t);
	}
	for (uint32_t i = SLICES; i-- > 0;)
		for (uint32_t t = 0; t < TRANSFERS; t++) {
			struct xfer_slice slice = { i, (t * SLICES + i) * 4 * PAGE, 4 * PAGE, 0 };
			assert_int_equal(xfer_send(pair.peer, grants[t].ticket, grants[t].ticket_bytes,
						   &slice, 1, t), 0);
		}
	assert_true(ends_wait(pair.source, pair.target, XFER_SENT, TRANSFERS * SLICES, 10000));
	assert_true(ends_wait(pair.target, pair.source, XFER_LANDED_ALL, TRANSFERS, 10000));
	assert_memory_equal(pair.source->slab.base, pair.target->slab.base, pair.source->slab.bytes);
	pair_free(&pair);
}

static void test_corruption(void **state)
{
	struct xfer_config source = end_config(transport_of(state));
	source.faults.flip_every = 3;
	struct pair pair = pair_new(source, end_config(transport_of(state)), 30 * 64 * PAGE);
	struct grant grant = pair_expect(&pair, 30, 64 * PAGE);
	struct xfer_stats stats;

	assert_int_equal(pair_send(&pair, &grant, 0, 30, 64 * PAGE), 0);
	assert_true(ends_wait(pair.source, pair.target, XFER_SENT, 30, 10000));
	assert_int_equal(end_count_status(pair.source, BATON_ECHECKSUM), 10);
	assert_int_equal(end_count_status(pair.source, 0), 20);
	assert_true(pair_resend_until_landed(&pair, &grant, 64 * PAGE) > 1);
	assert_true(end_count(pair.target, XFER_CORRUPT) >= 10);
	assert_int_equal(end_count(pair.target, XFER_LANDED), 30);
	xfer_stats(pair.target->xfer, &stats);
	assert_int_equal(stats.slices_corrupt, end_count(pair.target, XFER_CORRUPT));
	assert_memory_equal(pair.source->slab.base, pair.target->slab.base, pair.source->slab.bytes);
	pair_free(&pair);
}

/* A sum that the caller brought is what counts: memory that changed behind it does not land. */
static void test_wrong_sum(void **state)
{
	struct pair pair = pair_new(end_config(transport_of(state)), end_config(transport_of(state)), MIB);
	struct grant grant = pair_expect(&pair, 1, MIB);
	struct xfer_slice slice = { 0, 0, MIB, hash_slice(pair.source->slab.base, MIB) };

	((uint8_t *)pair.source->slab.base)[MIB - 1] ^= 1;
	assert_int_equal(xfer_send(pair.peer, grant.ticket, grant.ticket_bytes, &slice, 1, 1), 0);
	assert_true(ends_wait(pair.source, pair.target, XFER_SENT, 1, 5000));
	assert_int_equal(pair.source->events[0].status, BATON_ECHECKSUM);
	pair_free(&pair);
}

static void test_dropped_connections(void **state)
{
	struct xfer_config source = end_config(transport_of(state));
	source.faults.drop_every = 7;
	struct pair pair = pair_new(source, end_config(transport_of(state)), 40 * 64 * PAGE);
	struct grant grant = pair_expect(&pair, 40, 64 * PAGE);

	assert_int_equal(pair_send(&pair, &grant, 0, 40, 64 * PAGE), 0);
	assert_true(ends_wait(pair.source, pair.target, XFER_SENT, 40, 10000));
	assert_true(end_count_status(pair.source, -ECONNRESET) > 0);
	pair_resend_until_landed(&pair, &grant, 64 * PAGE);
	if (transport_of(state) == XFER_TCP)
		assert_true(end_count(pair.target, XFER_BROKEN) > 0);
	assert_memory_equal(pair.source->slab.base, pair.target->slab.base, pair.source->slab.bytes);
	pair_free(&pair);
}

static void test_wrong_tickets(void **state)
{
	struct pair pair = pair_new(end_config(transport_of(state)), end_config(transport_of(state)), MIB);
	/* Bytes of a ticket: 8 instance, 16 token, 24 index, 28 generation. */
	static const uint8_t places[] = { 8, 16, 23, 24, 27, 28 };
	uint8_t *before = malloc(MIB);
	struct grant grant = pair_expect(&pair, 2, 64 * PAGE);

	memcpy(before, pair.target->slab.base, MIB);
	for (uint32_t i = 0; i < ARRAY_COUNT(places); i++) {
		struct grant wrong = grant;
		wrong.ticket[places[i]] ^= 1;
		assert_int_equal(pair_send(&pair, &wrong, 0, 1, 64 * PAGE), 0);
	}
	assert_true(ends_wait(pair.source, pair.target, XFER_SENT, ARRAY_COUNT(places), 5000));
	assert_int_equal(end_count_status(pair.source, BATON_EREVOKED), ARRAY_COUNT(places));
	/* The right ticket, but not the range's size. */
	assert_int_equal(pair_send(&pair, &grant, 0, 1, 32 * PAGE), 0);
	assert_true(ends_wait(pair.source, pair.target, XFER_SENT, ARRAY_COUNT(places) + 1, 5000));
	assert_int_equal(end_count_status(pair.source, BATON_EPROTOCOL), 1);
	assert_memory_equal(before, pair.target->slab.base, MIB);
	free(before);

	grant.ticket[0] ^= 1;
	assert_int_equal(pair_send(&pair, &grant, 0, 1, 64 * PAGE), -EINVAL);
	grant.ticket[0] ^= 1;
	assert_int_equal(pair_send(&pair, &grant, 2, 1, 64 * PAGE), -EINVAL);
	grant.ticket_bytes--;
	assert_int_equal(pair_send(&pair, &grant, 0, 1, 64 * PAGE), -EINVAL);
	pair_free(&pair);
}

/* A slot's former ticket does not open its next grant. */
static void test_slot_reused(void **state)
{
	struct xfer_config config = end_config(transport_of(state));
	config.expects_max = 1;
	struct pair pair = pair_new(end_config(transport_of(state)), config, MIB);
	struct grant old = pair_expect(&pair, 1, 64 * PAGE);
	xfer_expect_id id;
	uint8_t ticket[XFER_TICKET_BYTES_MAX];
	size_t bytes;

	assert_int_equal(xfer_expect(pair.target->xfer, &(struct xfer_range){ 0, PAGE }, 1, 1, &id,
				     ticket, &bytes), -ENOSPC);
	xfer_revoke(pair.target->xfer, old.id);
	xfer_revoke(pair.target->xfer, old.id); /* once is enough, twice is harmless */
	assert_true(ends_wait(pair.target, NULL, XFER_REVOKED, 1, 1000));
	struct grant new = pair_expect(&pair, 1, 64 * PAGE);
	xfer_revoke(pair.target->xfer, old.id);
	assert_int_equal(pair_send(&pair, &old, 0, 1, 64 * PAGE), 0);
	assert_true(ends_wait(pair.source, pair.target, XFER_SENT, 1, 5000));
	assert_int_equal(pair.source->events[0].status, BATON_EREVOKED);
	assert_int_equal(pair_send(&pair, &new, 0, 1, 64 * PAGE), 0);
	assert_true(ends_wait(pair.source, pair.target, XFER_SENT, 2, 5000));
	assert_int_equal(pair.source->events[1].status, 0);
	assert_int_equal(end_count(pair.target, XFER_REVOKED), 1);
	/* A revoke that crosses the end gives no event, and the slot comes back all the same. */
	xfer_revoke(pair.target->xfer, new.id);
	assert_true(ends_wait(pair.target, NULL, XFER_LANDED_ALL, 1, 1000));
	wait_ms(20);
	end_drain(pair.target);
	assert_int_equal(end_count(pair.target, XFER_REVOKED), 1);
	struct xfer_stats stats;
	xfer_stats(pair.target->xfer, &stats);
	assert_int_equal(stats.expects_open, 0);
	assert_int_equal(stats.expects_revoking, 0);
	(void)pair_expect(&pair, 1, 64 * PAGE);
	pair_free(&pair);
}

/* A slice that landed answers 0 again, and its range stays as it was verified. */
static void test_sent_twice(void **state)
{
	struct pair pair = pair_new(end_config(transport_of(state)), end_config(transport_of(state)), MIB);
	struct grant grant = pair_expect(&pair, 2, 64 * PAGE);
	uint8_t *first = malloc(64 * PAGE);

	memcpy(first, pair.source->slab.base, 64 * PAGE);
	assert_int_equal(pair_send(&pair, &grant, 0, 1, 64 * PAGE), 0);
	assert_true(ends_wait(pair.source, pair.target, XFER_SENT, 1, 5000));
	fill_random(pair.source->slab.base, 64 * PAGE, 1000);
	assert_int_equal(pair_send(&pair, &grant, 0, 1, 64 * PAGE), 0);
	assert_true(ends_wait(pair.source, pair.target, XFER_SENT, 2, 5000));
	assert_int_equal(end_count_status(pair.source, 0), 2);
	assert_memory_equal(first, pair.target->slab.base, 64 * PAGE);
	assert_int_equal(end_count(pair.target, XFER_LANDED), 1);
	free(first);
	pair_free(&pair);
}

/* The peer's queue is bounded; a cancel ends what is not on its way; each slice ends once. */
static void test_queue_full_and_cancel(void **state)
{
	struct xfer_config target = end_config(transport_of(state));
	target.faults.delay_us = 2000;
	struct pair pair = pair_new(end_config(transport_of(state)), target,
				    (uint64_t)XFER_PEER_SLICES_MAX * PAGE + PAGE);
	struct grant grant = pair_expect(&pair, XFER_PEER_SLICES_MAX + 1, PAGE);

	assert_int_equal(pair_send(&pair, &grant, 0, XFER_PEER_SLICES_MAX + 1, PAGE), -EINVAL);
	assert_int_equal(pair_send(&pair, &grant, 0, XFER_PEER_SLICES_MAX, PAGE), 0);
	assert_int_equal(pair_send(&pair, &grant, XFER_PEER_SLICES_MAX, 1, PAGE), -EAGAIN);
	assert_true(ends_wait(pair.source, pair.target, XFER_SENT, 1, 5000));
	assert_int_equal(pair_send(&pair, &grant, XFER_PEER_SLICES_MAX, 1, PAGE), 0);
	xfer_cancel(pair.peer, 1);
	xfer_cancel(pair.peer, 2);
	assert_true(ends_wait(pair.source, pair.target, XFER_SENT, XFER_PEER_SLICES_MAX + 1, 5000));
	assert_true(end_count_status(pair.source, -ECANCELED) > XFER_PEER_SLICES_MAX / 2);
	assert_int_equal(end_count_status(pair.source, -ECANCELED) + end_count_status(pair.source, 0),
			 XFER_PEER_SLICES_MAX + 1);
	wait_ms(50);
	end_drain(pair.source);
	assert_int_equal(end_count(pair.source, XFER_SENT), XFER_PEER_SLICES_MAX + 1);
	pair_free(&pair);
}

/* A loop that does not poll holds the senders back, and loses nothing. */
static void test_slow_loop(void **state)
{
	enum { SLICES = 4090, ROUNDS = 2 };
	struct pair pair = pair_new(end_config(transport_of(state)), end_config(transport_of(state)),
				    (uint64_t)SLICES * PAGE);
	struct grant grants[ROUNDS];

	for (int i = 0; i < ROUNDS; i++)
		grants[i] = pair_expect(&pair, SLICES, PAGE);
	assert_int_equal(pair_send(&pair, &grants[0], 0, SLICES, PAGE), 0);
	assert_true(ends_wait(pair.source, NULL, XFER_SENT, SLICES, 10000));
	assert_int_equal(pair_send(&pair, &grants[1], 0, SLICES, PAGE), 0);
	pair.source->event_count = 0;
	assert_false(ends_wait(pair.source, NULL, XFER_SENT, SLICES, 300));
	assert_true(end_count(pair.source, XFER_SENT) < 100);
	pair.target->event_count = 0;
	assert_true(ends_wait(pair.source, pair.target, XFER_SENT, SLICES, 10000));
	assert_true(ends_wait(pair.target, NULL, XFER_LANDED_ALL, 2, 1000));
	pair_free(&pair);
}

/* Closing in the middle, on either side; no descriptor stays behind (ASan watches the memory). */
static void test_close_with_open_transfers(void **state)
{
	uint32_t before = descriptors_open();
	for (int round = 0; round < 6; round++) {
		struct pair pair = pair_new(end_config(transport_of(state)),
					    end_config(transport_of(state)), 32 * MIB);
		struct grant grant = pair_expect(&pair, 8, 4 * MIB);
		assert_int_equal(pair_send(&pair, &grant, 0, 8, 4 * MIB), 0);
		wait_ms(round % 3);
		if (round % 2) {
			end_free(pair.target);
			assert_true(ends_wait(pair.source, NULL, XFER_SENT, 8, 5000));
			end_free(pair.source);
		} else {
			end_free(pair.source);
			end_free(pair.target);
		}
	}
	assert_int_equal(descriptors_open(), before);
}

static void test_nobody_there(void **state)
{
	struct pair pair = pair_new(end_config(transport_of(state)), end_config(transport_of(state)), MIB);
	struct grant grant = pair_expect(&pair, 1, MIB);

	end_free(pair.target);
	for (uint32_t i = 1; i <= 3; i++) {
		assert_int_equal(pair_send(&pair, &grant, 0, 1, MIB), 0);
		assert_true(ends_wait(pair.source, NULL, XFER_SENT, i, 5000));
	}
	assert_int_equal(end_count_status(pair.source, -ECONNREFUSED), 3);
	assert_string_equal(xfer_peer_transport(pair.peer), "");
	xfer_peer_unref(pair.peer);
	end_free(pair.source);
}

static void test_idle_connections_close(void **state)
{
	struct xfer_config config = end_config(transport_of(state));
	struct xfer_stats stats;
	config.idle_ms = 100;
	struct pair pair = pair_new(config, end_config(transport_of(state)), MIB);
	struct grant grant = pair_expect(&pair, 2, 64 * PAGE);

	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(pair_send(&pair, &grant, i, 1, 64 * PAGE), 0);
		assert_true(ends_wait(pair.source, pair.target, XFER_SENT, i + 1, 5000));
		wait_ms(250);
		xfer_stats(pair.source->xfer, &stats);
		assert_int_equal(stats.connects, i + 1);
		assert_int_equal(stats.disconnects, i + 1);
	}
	assert_int_equal(end_count_status(pair.source, 0), 2);
	pair_free(&pair);
}

static void test_peers_are_shared(void **state)
{
	struct pair pair = pair_new(end_config(transport_of(state)), end_config(transport_of(state)), MIB);
	struct xfer_peer *again = end_peer(pair.source, pair.target);
	assert_ptr_equal(again, pair.peer);
	xfer_peer_unref(again);
	/* The last reference may go while slices are under way: they end as they do. */
	struct grant grant = pair_expect(&pair, 16, 16 * PAGE);
	assert_int_equal(pair_send(&pair, &grant, 0, 16, 16 * PAGE), 0);
	xfer_peer_unref(pair.peer);
	pair.peer = end_peer(pair.source, pair.target);
	assert_true(ends_wait(pair.source, pair.target, XFER_SENT, 16, 5000));
	assert_int_equal(end_count_status(pair.source, 0), 16);
	uint8_t nonsense[40] = { 1 };
	struct xfer_peer *peer;
	assert_int_equal(xfer_peer_ref(pair.source->xfer, nonsense, sizeof nonsense, &peer), -EINVAL);
	pair_free(&pair);
}

/* AUTO: shm between two processes of one machine; tcp where the slab cannot be mapped. */
static void test_auto(void **state)
{
	struct pair pair = pair_new(end_config(XFER_AUTO), end_config(XFER_AUTO), MIB);
	struct grant grant = pair_expect(&pair, 1, MIB);
	assert_int_equal(pair_send(&pair, &grant, 0, 1, MIB), 0);
	assert_true(ends_wait(pair.source, pair.target, XFER_SENT, 1, 5000));
	assert_string_equal(xfer_peer_transport(pair.peer), "shm");
	pair_free(&pair);

	pair = pair_new(end_config(XFER_AUTO), end_config(XFER_TCP), MIB);
	grant = pair_expect(&pair, 1, MIB);
	assert_int_equal(pair_send(&pair, &grant, 0, 1, MIB), 0);
	assert_true(ends_wait(pair.source, pair.target, XFER_SENT, 1, 5000));
	assert_string_equal(xfer_peer_transport(pair.peer), "tcp");
	pair_free(&pair);
}

/* A node of role both sends to itself. */
static void test_to_itself(void **state)
{
	struct end *end = end_new(end_config(transport_of(state)), 2 * MIB);
	struct xfer_peer *peer = end_peer(end, end);
	const struct xfer_range range = { MIB, MIB };
	const struct xfer_slice slice = { 0, 0, MIB, 0 };
	struct grant grant = end_expect(end, &range, 1, 1);

	fill_random(end->slab.base, MIB, 3);
	assert_int_equal(xfer_send(peer, grant.ticket, grant.ticket_bytes, &slice, 1, 2), 0);
	assert_true(ends_wait(end, NULL, XFER_SENT, 1, 5000));
	assert_true(ends_wait(end, NULL, XFER_LANDED_ALL, 1, 5000));
	assert_memory_equal(end->slab.base, (char *)end->slab.base + MIB, MIB);
	xfer_peer_unref(peer);
	end_free(end);
}

/* AUTO where the address names a socket that nobody answers: tcp, without a failed slice. */
static void test_auto_falls_back(void **state)
{
	struct xfer_config config = end_config(XFER_AUTO);
	char dir[] = "/tmp/baton-xfer-test-XXXXXX", path[512];
	assert_non_null(mkdtemp(dir));
	config.socket_dir = dir;
	struct pair pair = pair_new(end_config(XFER_AUTO), config, MIB);
	struct grant grant = pair_expect(&pair, 1, MIB);

	DIR *entries = opendir(dir);
	struct dirent *entry;
	uint32_t removed = 0;
	while ((entry = readdir(entries))) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
		assert_int_equal(unlink(path), 0);
		removed++;
	}
	closedir(entries);
	assert_int_equal(removed, 1);
	assert_int_equal(pair_send(&pair, &grant, 0, 1, MIB), 0);
	assert_true(ends_wait(pair.source, pair.target, XFER_SENT, 1, 5000));
	assert_int_equal(pair.source->events[0].status, 0);
	assert_string_equal(xfer_peer_transport(pair.peer), "tcp");
	pair_free(&pair);
	assert_int_equal(rmdir(dir), 0);
}

static void test_bad_configs(void **state)
{
	char error[256];
	struct xfer *xfer;
	struct xfer_slab slab;
	assert_int_equal(xfer_slab_map(MIB, &slab), 0);

	struct xfer_config config = end_config(XFER_RDMA);
	config.slab = slab;
	assert_int_equal(xfer_open(&config, &xfer, error, sizeof error), -EPROTONOSUPPORT);
	config = end_config(XFER_TCP);
	config.slab = slab;
	config.host = "0.0.0.0"; /* others cannot connect to that */
	assert_true(xfer_open(&config, &xfer, error, sizeof error) < 0);
	config.advertise = "127.0.0.1";
	assert_int_equal(xfer_open(&config, &xfer, error, sizeof error), 0);
	xfer_close(xfer);
	config = end_config(XFER_SHM);
	config.slab = slab;
	config.slab.memfd = -1;
	assert_true(xfer_open(&config, &xfer, error, sizeof error) < 0);
	xfer_slab_unmap(&slab);
}

static enum xfer_transport shm = XFER_SHM, tcp = XFER_TCP;

#define OVER_EACH(test)                                                                          \
	{ #test " shm", test, NULL, NULL, &shm }, { #test " tcp", test, NULL, NULL, &tcp }

int main(void)
{
	const struct CMUnitTest tests[] = {
		OVER_EACH(test_both_directions),
		OVER_EACH(test_concurrent_transfers),
		OVER_EACH(test_corruption),
		OVER_EACH(test_wrong_sum),
		OVER_EACH(test_dropped_connections),
		OVER_EACH(test_wrong_tickets),
		OVER_EACH(test_slot_reused),
		OVER_EACH(test_sent_twice),
		OVER_EACH(test_queue_full_and_cancel),
		OVER_EACH(test_slow_loop),
		OVER_EACH(test_close_with_open_transfers),
		OVER_EACH(test_nobody_there),
		OVER_EACH(test_idle_connections_close),
		OVER_EACH(test_peers_are_shared),
		OVER_EACH(test_to_itself),
		cmocka_unit_test(test_auto),
		cmocka_unit_test(test_auto_falls_back),
		cmocka_unit_test(test_bad_configs),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
