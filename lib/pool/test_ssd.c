/* Round trips, restarts, eviction, bounds: over io_uring and over threads. */
#include "pool/test_ssd_support.h"

static bool with_threads(void **state)
{
	return *state != NULL;
}

static void test_round_trip(void **state)
{
	struct box box;
	box_new(&box, with_threads(state));
	box_open(&box);
	assert_int_equal(box_get(&box, 1), -ENOENT);
	for (uint64_t i = 1; i <= 20; i++)
		assert_int_equal(box_put(&box, i, i - 1), 0);
	for (uint64_t i = 20; i; i--)
		assert_int_equal(box_get(&box, i), 0);
	assert_int_equal(box_put(&box, 7, 6), -EEXIST);
	struct ssd_stats stats = box_stats(&box);
	assert_int_equal(stats.blocks, 20);
	assert_int_equal(stats.puts, 20);
	assert_int_equal(stats.get_bytes, 20 * BLOCK);
	assert_int_equal(stats.misses, 1);
	ssd_check(box.ssd);
	box_free(&box);
}

static void test_slices(void **state)
{
	struct box box;
	uint8_t want[BLOCK];
	struct kv_key key = key_of(5);

	box_new(&box, with_threads(state));
	box_open(&box);
	assert_int_equal(box_put(&box, 5, 0), 0);
	block_fill(5, want);
	uint8_t *target = box_buffer(&box, 3);
	memset(target, 1, BLOCK);
	assert_int_equal(ssd_get(box.ssd, &key, 1, 1, target, 9), 0);
	box_wait(&box, SSD_GET);
	assert_int_equal(box.status, 0);
	assert_memory_equal(target, want + PAGE, 2 * PAGE);
	assert_int_equal(target[2 * PAGE], 1);
	assert_int_equal(ssd_get(box.ssd, &key, 1, 3, target, 9), -EINVAL);
	assert_int_equal(ssd_get(box.ssd, &key, 3, 1, target, 9), -EINVAL);
	assert_int_equal(ssd_get(box.ssd, &key, 0, 0, target, 9), -EINVAL);
	assert_int_equal(ssd_get(box.ssd, &key, 0, 1, target + 512, 9), -EINVAL);
	box_free(&box);
}

static void test_drop_and_pin(void **state)
{
	struct box box;
	struct kv_key key = key_of(1), other = key_of(2);

	box_new(&box, with_threads(state));
	box_open(&box);
	assert_int_equal(box_put(&box, 1, 0), 0);
	assert_int_equal(box_put(&box, 2, 1), 0);
	assert_true(ssd_drop(box.ssd, &other));
	assert_false(ssd_drop(box.ssd, &other));
	assert_int_equal(box_get(&box, 2), -ENOENT);
	/* Dropped while it is read: the reader still gets it. */
	assert_true(ssd_pin(box.ssd, &key));
	assert_int_equal(ssd_get(box.ssd, &key, 0, 3, box_buffer(&box, 4), 0), 0);
	assert_true(ssd_drop(box.ssd, &key));
	assert_false(box_has(&box, 1));
	box_wait(&box, SSD_GET);
	assert_int_equal(box.status, 0);
	ssd_unpin(box.ssd, &key);
	assert_int_equal(box_put(&box, 1, 0), 0);
	assert_int_equal(box_get(&box, 1), 0);
	/* A drop is for good. */
	assert_true(ssd_drop(box.ssd, &key));
	box_close(&box);
	box_open(&box);
	assert_int_equal(box.count[SSD_ADOPTED], 0);
	box_free(&box);
}

static void test_restart(void **state)
{
	struct box box;

	box_new(&box, with_threads(state));
	box_open(&box);
	for (uint64_t i = 1; i <= 30; i++)
		assert_int_equal(box_put(&box, i, i - 1), 0);
	for (int round = 0; round < 3; round++) {
		box_close(&box);
		box_open(&box);
		assert_int_equal(box.count[SSD_ADOPTED], 30);
		for (uint64_t i = 1; i <= 30; i++) {
			struct kv_key key = key_of(i);
			assert_memory_equal(&box.adopted[i - 1], &key, sizeof key);
			assert_int_equal(box_get(&box, i), 0);
		}
		ssd_check(box.ssd);
	}
	assert_int_equal(box_stats(&box).headers_damaged, 0);
	box_free(&box);
}

/* The bound holds while far more is put than fits, and the coldest chain leaves from its end. */
static void test_bound_and_order(void **state)
{
	struct box box;
	box_new(&box, with_threads(state));
	box.config.bytes = 3 * (PAGE + 8 * SLOT) + PAGE + 2 * SLOT + 100;
	box_open(&box);
	/* 26 slots: chains of 6, blocks 10c+1..10c+6. */
	for (uint64_t chain = 0; chain < 4; chain++)
		for (uint64_t i = 1; i <= 6; i++)
			assert_int_equal(box_put(&box, 10 * chain + i, i > 1 ? 10 * chain + i - 1 : 0), 0);
	assert_int_equal(box.count[SSD_EVICTED], 0);
	struct kv_key first = key_of(6);
	ssd_touch(box.ssd, &first); /* warms all of chain 0 */
	for (uint64_t i = 100; i < 112; i++) {
		assert_int_equal(box_put(&box, i, i > 100 ? i - 1 : 0), 0);
		ssd_check(box.ssd);
		assert_true(folder_bytes(box.path) <= box.config.bytes);
	}
	static const uint64_t order[10] = { 16, 15, 14, 13, 12, 11, 26, 25, 24, 23 };
	assert_int_equal(box.count[SSD_EVICTED], 10);
	for (int i = 0; i < 10; i++) {
		struct kv_key key = key_of(order[i]);
		assert_memory_equal(&box.evicted[i], &key, sizeof key);
	}
	for (uint64_t i = 1; i <= 6; i++)
		assert_int_equal(box_get(&box, i), 0);
	/* Ten times the space goes through it. */
	for (uint64_t i = 1000; i < 1260; i++)
		assert_int_equal(box_put(&box, i, 0), 0);
	assert_true(folder_bytes(box.path) <= box.config.bytes);
	assert_int_equal(box_stats(&box).blocks, 26);
	for (uint64_t i = 1234; i < 1260; i++)
		assert_int_equal(box_get(&box, i), 0);
	box_close(&box);
	box_open(&box);
	assert_int_equal(box.count[SSD_ADOPTED], 26);
	assert_int_equal(box_get(&box, 1259), 0);
	box_free(&box);
}

static void test_pinned_stay(void **state)
{
	struct box box;
	box_new(&box, with_threads(state));
	box.config.bytes = PAGE + 3 * SLOT;
	box_open(&box);
	struct kv_key keys[3] = { key_of(1), key_of(2), key_of(3) };
	for (uint64_t i = 1; i <= 3; i++)
		assert_int_equal(box_put(&box, i, 0), 0);
	for (int i = 0; i < 3; i++)
		assert_true(ssd_pin(box.ssd, &keys[i]));
	assert_int_equal(box_put(&box, 4, 0), -EBUSY);
	ssd_unpin(box.ssd, &keys[1]);
	assert_int_equal(box_put(&box, 4, 0), 0);
	assert_true(box_has(&box, 1) && !box_has(&box, 2) && box_has(&box, 3));
	/* A block never takes its own ancestor's place. */
	assert_int_equal(box_put(&box, 5, 4), -EBUSY);
	assert_int_equal(box_stats(&box).puts_busy, 2);
	ssd_unpin(box.ssd, &keys[0]);
	assert_int_equal(box_put(&box, 5, 4), 0);
	assert_true(box_has(&box, 4));
	ssd_unpin(box.ssd, &keys[2]);
	box_free(&box);
}

static void test_other_bound(void **state)
{
	struct box box;
	box_new(&box, with_threads(state));
	box_open(&box);
	for (uint64_t i = 1; i <= 40; i++)
		assert_int_equal(box_put(&box, i, 0), 0);
	box_close(&box);
	box.config.bytes = 2 * (PAGE + 8 * SLOT) + 17;
	box_open(&box);
	assert_int_equal(box.count[SSD_ADOPTED], 16);
	assert_true(folder_bytes(box.path) <= box.config.bytes);
	for (uint64_t i = 25; i <= 40; i++)
		assert_int_equal(box_get(&box, i), 0);
	box_close(&box);
	/* Other sizes of segments live side by side. */
	box.config.bytes = 1 << 20;
	box.config.segment_bytes = PAGE + 5 * SLOT;
	box_open(&box);
	assert_int_equal(box.count[SSD_ADOPTED], 16);
	for (uint64_t i = 50; i < 70; i++)
		assert_int_equal(box_put(&box, i, 0), 0);
	box_close(&box);
	box_open(&box);
	assert_int_equal(box.count[SSD_ADOPTED], 36);
	for (uint64_t i = 50; i < 70; i++)
		assert_int_equal(box_get(&box, i), 0);
	box_free(&box);
}

static void test_other_format(void **state)
{
	static const uint32_t other_slices[2] = { 2 * PAGE, 2 * PAGE };
	struct box box;
	uint64_t sums[3] = { 0 };
	struct kv_key key = key_of(77);

	box_new(&box, with_threads(state));
	box.config.bytes = 12 * (PAGE + 8 * SLOT);
	box_open(&box);
	for (uint64_t i = 1; i <= 8; i++)
		assert_int_equal(box_put(&box, i, 0), 0);
	uint64_t before = box_stats(&box).segments;
	box_close(&box);
	/* Nothing of the one format is seen by the others, whatever differs. */
	struct ssd_config own = box.config;
	box.config.kv_format[31] ^= 1;
	box_open(&box);
	assert_int_equal(box.count[SSD_ADOPTED], 0);
	assert_int_equal(box_stats(&box).segments_foreign, before);
	assert_int_equal(box_get(&box, 1), -ENOENT);
	assert_int_equal(box_put(&box, 1, 0), 0);
	box_close(&box);
	box.config = own;
	box.config.slice_bytes = other_slices;
	box.config.slice_count = 2;
	box_open(&box);
	assert_int_equal(box.count[SSD_ADOPTED], 0);
	assert_true(box_stats(&box).segments_foreign > before);
	/* They give way when there is no room. */
	for (uint64_t i = 0; i < 110; i++) {
		key = key_of(500 + i);
		int error;
		struct ssd_event event;
		while ((error = ssd_put(box.ssd, &key, NULL, sums, box.buffers, 0)) == -EAGAIN)
			assert_true(box_event(&box, &event));
		assert_int_equal(error, 0);
		box_wait(&box, SSD_PUT);
		assert_true(folder_bytes(box.path) <= box.config.bytes);
	}
	assert_int_equal(box_stats(&box).segments_foreign, 0);
	box_close(&box);
	box.config = own;
	box_open(&box);
	assert_int_equal(box.count[SSD_ADOPTED], 0);
	box_free(&box);
}

static void test_lock(void **state)
{
	struct box box;
	struct ssd *second;
	char error[256];

	box_new(&box, with_threads(state));
	box_open(&box);
	assert_int_equal(ssd_open(&box.config, &second, error, sizeof error), -EBUSY);
	assert_non_null(strstr(error, "another process"));
	box_close(&box);
	box_open(&box);
	box_free(&box);
}

static void test_config(void **state)
{
	struct box box;
	struct ssd *ssd;
	char error[256];
	static const uint32_t odd[1] = { 100 };

	box_new(&box, with_threads(state));
	struct ssd_config config = box.config;
	config.slice_bytes = odd;
	config.slice_count = 1;
	assert_int_equal(ssd_open(&config, &ssd, error, sizeof error), -EINVAL);
	config = box.config;
	config.bytes = BLOCK + PAGE;
	assert_int_equal(ssd_open(&config, &ssd, error, sizeof error), -EINVAL);
	config = box.config;
	config.path = "/nowhere/at/all";
	assert_int_equal(ssd_open(&config, &ssd, error, sizeof error), -ENOENT);
	config = box.config;
	config.queue_depth = SSD_QUEUE_DEPTH_MAX + 1;
	assert_int_equal(ssd_open(&config, &ssd, error, sizeof error), -EINVAL);
	box_free(&box);
}

/* A slow disk: the queue's bound holds, puts leave room for gets, and everything ends once. */
static void test_back_pressure(void **state)
{
	struct box box;
	uint64_t sums[3];
	uint32_t again = 0, puts = 0, gets = 0;

	box_new(&box, with_threads(state));
	box.config.queue_depth = 8;
	box.config.faults.delay_us = 500;
	box_open(&box);
	assert_int_equal(box_put(&box, 1, 0), 0);
	struct kv_key known = key_of(1);
	for (uint32_t i = 0; i < 64; i++) {
		struct kv_key key = key_of(100 + i);
		block_fill(100 + i, box_buffer(&box, 10 + i));
		block_sums(box_buffer(&box, 10 + i), sums);
		int error = ssd_put(box.ssd, &key, NULL, sums, box_buffer(&box, 10 + i), i);
		if (!error)
			puts++;
		else
			assert_int_equal(error, -EAGAIN);
		again += error == -EAGAIN;
		assert_true(box_stats(&box).puts_open <= 6);
	}
	assert_true(again && puts);
	for (uint32_t i = 0; i < 8; i++)
		gets += !ssd_get(box.ssd, &known, 0, 3, box_buffer(&box, 100 + i), i);
	assert_true(gets >= 2);
	box.count[SSD_PUT] = box.count[SSD_GET] = 0;
	while (box.count[SSD_PUT] < puts || box.count[SSD_GET] < gets) {
		struct ssd_event event;
		assert_true(box_event(&box, &event));
		assert_int_equal(event.status, 0);
	}
	struct ssd_stats stats = box_stats(&box);
	assert_int_equal(stats.puts_open + stats.gets_open, 0);
	assert_true(stats.open_max_seen <= 8);
	assert_int_equal(stats.puts_again, again);
	for (uint32_t i = 0; i < puts; i++)
		assert_int_equal(box_get(&box, 100 + i), 0);
	box_free(&box);
}

/* Everything at once, out of a registered arena, with transfers that move only parts. */
static void test_storm(void **state)
{
	struct box box;
	uint64_t random = 7, open = 0;
	static uint64_t numbers[BUFFERS];
	static bool busy[BUFFERS];

	box_new(&box, with_threads(state));
	box.config.arena = box.buffers;
	box.config.arena_bytes = BUFFERS * BLOCK;
	box.config.bytes = 40 * SLOT;
	box.config.faults.short_every = 3;
	memset(busy, 0, sizeof busy);
	box_open(&box);
	if (box_stats(&box).uring && geteuid() == 0)
		assert_true(box_stats(&box).arena_registered);
	for (uint32_t step = 0; step < 4000 || open; step++) {
		uint32_t at = (uint32_t)(rand_next(&random) % BUFFERS);
		if (step < 4000 && !busy[at]) {
			uint64_t number = rand_next(&random) % 60 + 1;
			struct kv_key key = key_of(number), parent = key_of(number / 2);
			uint64_t sums[3];
			int error;
			numbers[at] = number;
			if (rand_next(&random) % 2) {
				block_fill(number, box_buffer(&box, at));
				block_sums(box_buffer(&box, at), sums);
				error = ssd_put(box.ssd, &key, number > 1 ? &parent : NULL, sums,
						box_buffer(&box, at), at);
			} else if (rand_next(&random) % 16) {
				error = ssd_get(box.ssd, &key, 0, 3, box_buffer(&box, at), at);
			} else {
				error = ssd_drop(box.ssd, &key);
			}
			busy[at] = !error;
			if (error == 1 || error == 0)
				busy[at] = error == 0 && box_stats(&box).puts_open + box_stats(&box).gets_open > open;
			open = box_stats(&box).puts_open + box_stats(&box).gets_open;
			assert_true(open <= 16);
		}
		struct ssd_event event;
		while (ssd_poll(box.ssd, &event)) {
			if (event.kind != SSD_PUT && event.kind != SSD_GET)
				continue;
			uint8_t want[BLOCK];
			assert_int_equal(event.status, 0);
			assert_true(busy[event.user]);
			busy[event.user] = false;
			block_fill(numbers[event.user], want);
			assert_memory_equal(box_buffer(&box, (uint32_t)event.user), want, BLOCK);
		}
		open = box_stats(&box).puts_open + box_stats(&box).gets_open;
		if (step % 64 == 0)
			ssd_check(box.ssd);
	}
	assert_true(folder_bytes(box.path) <= box.config.bytes);
	assert_int_equal(box_stats(&box).corrupt, 0);
	box_free(&box);
}

/* Closing in the middle of a scan or of I/O loses nothing that was there. */
static void test_close_early(void **state)
{
	struct box box;
	char error[256];

	box_new(&box, with_threads(state));
	box_open(&box);
	for (uint64_t i = 1; i <= 30; i++)
		assert_int_equal(box_put(&box, i, 0), 0);
	box_close(&box);
	for (int i = 0; i < 20; i++) {
		assert_int_equal(ssd_open(&box.config, &box.ssd, error, sizeof error), 0);
		if (i % 4)
			usleep((unsigned)i * 50);
		box_close(&box);
	}
	box_open(&box);
	assert_int_equal(box.count[SSD_ADOPTED], 30);
	for (uint32_t i = 0; i < 8; i++) {
		struct kv_key key = key_of(1 + i);
		assert_int_equal(ssd_get(box.ssd, &key, 0, 3, box_buffer(&box, 10 + i), i), 0);
	}
	box_free(&box);
}

/* The same bodies with an engine each; state says which. */
#define BOTH(body) { #body " io_uring", body, NULL, NULL, NULL }, { #body " threads", body, NULL, NULL, (void *)1 }

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(test_round_trip),	BOTH(test_slices),	BOTH(test_drop_and_pin),
		BOTH(test_restart),	BOTH(test_bound_and_order), BOTH(test_pinned_stay),
		BOTH(test_other_bound), BOTH(test_other_format), BOTH(test_lock),
		BOTH(test_config),	BOTH(test_back_pressure), BOTH(test_storm),
		BOTH(test_close_early),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
