#include "base/test_util.h"

#include <pthread.h>
#include <sched.h>

#include "base/ring.h"

#define ITEM_COUNT 300000

static void test_bounds(void **state)
{
	struct ring ring;
	int items[4];

	assert_int_equal(ring_init(&ring, 4), 0);
	for (int round = 0; round < 10; round++) {
		assert_null(ring_pop(&ring));
		for (int i = 0; i < 4; i++)
			assert_true(ring_push(&ring, &items[i]));
		assert_false(ring_push(&ring, &items[0]));
		assert_int_equal(ring_count(&ring), 4);
		for (int i = 0; i < 4; i++)
			assert_ptr_equal(ring_pop(&ring), &items[i]);
	}
	ring_fini(&ring);
	assert_dies(ring_init(&ring, 3));
}

static void *produce(void *context)
{
	struct ring *ring = context;
	for (uintptr_t i = 1; i <= ITEM_COUNT;)
		if (ring_push(ring, (void *)i))
			i++;
		else
			sched_yield();
	return NULL;
}

/* Everything arrives once and in order, whatever the two threads' pace. */
static void test_two_threads(void **state)
{
	struct ring ring;
	pthread_t producer;

	assert_int_equal(ring_init(&ring, 64), 0);
	assert_int_equal(pthread_create(&producer, NULL, produce, &ring), 0);
	for (uintptr_t expected = 1; expected <= ITEM_COUNT;) {
		void *item = ring_pop(&ring);
		if (!item) {
			sched_yield();
			continue;
		}
		assert_int_equal((uintptr_t)item, expected);
		expected++;
	}
	assert_null(ring_pop(&ring));
	assert_int_equal(pthread_join(producer, NULL), 0);
	ring_fini(&ring);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bounds),
		cmocka_unit_test(test_two_threads),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
