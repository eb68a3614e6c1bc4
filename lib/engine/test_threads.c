/* The pool: every item is done once, over short and long jobs, with threads that slept between. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "engine/cpu/threads.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define ITEMS 1000

struct job {
	struct work work;
	atomic_uint done[ITEMS];
	atomic_uint entered;
};

static void job_run(void *context, uint32_t thread)
{
	struct job *job = context;
	uint32_t first, end;
	(void)thread;
	atomic_fetch_add(&job->entered, 1);
	while (work_take(&job->work, &first, &end))
		for (uint32_t i = first; i < end; i++)
			atomic_fetch_add(&job->done[i], 1);
}

static void sleep_us(long us)
{
	nanosleep(&(struct timespec){ 0, us * 1000 }, NULL);
}

static void test_each_item_once(void **state)
{
	static struct job job;
	(void)state;
	for (uint32_t threads = 1; threads <= 5; threads++) {
		struct pool *pool;
		assert_int_equal(pool_new(threads, &pool), 0);
		assert_int_equal(pool_thread_count(pool), threads);
		for (uint32_t round = 0; round < 300; round++) {
			uint32_t count = round % 7 ? round * 3 : ITEMS;
			memset(&job, 0, sizeof job);
			work_init(&job.work, count, threads);
			if (round % 50 == 0)
				sleep_us(200); /* long enough for the workers to fall asleep */
			pool_run(pool, job_run, &job);
			assert_int_equal(job.entered, threads);
			for (uint32_t i = 0; i < ITEMS; i++)
				assert_int_equal(job.done[i], i < count);
		}
		pool_free(pool);
	}
}

static void slow_worker(void *context, uint32_t thread)
{
	atomic_uint *sum = context;
	if (thread)
		sleep_us(300); /* the caller gives up spinning and sleeps */
	atomic_fetch_add(sum, 1);
}

static void test_caller_sleeps(void **state)
{
	struct pool *pool;
	atomic_uint sum = 0;
	(void)state;
	assert_int_equal(pool_new(3, &pool), 0);
	for (int i = 0; i < 100; i++)
		pool_run(pool, slow_worker, &sum);
	assert_int_equal(sum, 300);
	pool_free(pool);
	pool_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_item_once),
		cmocka_unit_test(test_caller_sleeps),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
