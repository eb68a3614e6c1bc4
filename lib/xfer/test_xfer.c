/* One body of tests over every stream transport. */
#include "xfer/test_support.h"

static enum xfer_transport transport_of(void **state)
{
	return *(enum xfer_transport *)*state;
}

static const char *const names[] = { [XFER_SHM] = "shm", [XFER_TCP] = "tcp" };

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
	const uint64_t half = 64 * MIB;
	struct end *a = end_new(end_config(transport_of(state)), 2 * half);
	struct end *b = end_new(end_config(transport_of(state)), 2 * half);
	struct xfer_peer *to_b = end_peer(a, b), *to_a = end_peer(b, a);

	for (uint32_t round = 0; round < 3; round++) {
		fill_random(a->slab.base, half, 10 + round);
		fill_random(b->slab.base, half, 20 + round);
		struct mixed out = mixed_new(0, half, round, round == 1, a->slab.base);
		struct mixed back = mixed_new(0, half, round + 7, round == 1, b->slab.base);
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

static enum xfer_transport shm = XFER_SHM, tcp = XFER_TCP;

#define OVER_EACH(test)                                                                          \
	{ #test " shm", test, NULL, NULL, &shm }, { #test " tcp", test, NULL, NULL, &tcp }

int main(void)
{
	const struct CMUnitTest tests[] = {
		OVER_EACH(test_both_directions),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
