#include "base/test_util.h"

#include <errno.h>
#include <stdbool.h>

#include "base/check.h"
#include "base/map.h"
#include "base/rand.h"

#define KEY_COUNT 97
#define CAPACITY 60

/* The slow twin: a flat array indexed by which key it is. */
struct twin {
	bool present[KEY_COUNT];
	uint64_t values[KEY_COUNT];
	uint32_t count;
};

static uint64_t key_of(uint32_t index)
{
	/* Close together, far apart, and the extremes. */
	if (index == 0)
		return UINT64_MAX;
	return index % 2 ? index : (uint64_t)index << 40;
}

static void check_all(const struct map *map, const struct twin *twin)
{
	assert_int_equal(map->count, twin->count);
	for (uint32_t i = 0; i < KEY_COUNT; i++) {
		uint64_t value;
		assert_int_equal(map_get(map, key_of(i), &value), twin->present[i]);
		if (twin->present[i])
			assert_true(value == twin->values[i]);
	}
}

static void step(struct map *map, struct twin *twin, uint64_t random)
{
	uint32_t i = (uint32_t)(random >> 8) % KEY_COUNT;

	if (random % 5 < 3) {
		int expected = twin->present[i] ? -EEXIST : twin->count == CAPACITY ? -ENOSPC : 0;
		assert_int_equal(map_put(map, key_of(i), random), expected);
		if (expected)
			return;
		twin->present[i] = true;
		twin->values[i] = random;
		twin->count++;
	} else {
		assert_int_equal(map_remove(map, key_of(i)), twin->present[i]);
		twin->count -= twin->present[i];
		twin->present[i] = false;
	}
}

static void test_twin(void **state)
{
	struct map map;
	struct twin twin = { 0 };
	uint64_t seed = 42;

	assert_int_equal(map_init(&map, CAPACITY), 0);
	for (int i = 0; i < 20000; i++) {
		step(&map, &twin, rand_next(&seed));
		if (i % 16 == 0)
			check_all(&map, &twin);
	}
	map_fini(&map);
}

static void test_missing_leaves_value(void **state)
{
	struct map map;
	uint64_t value = 7;

	assert_int_equal(map_init(&map, 1), 0);
	assert_false(map_get(&map, 1, &value));
	assert_int_equal(value, 7);
	assert_int_equal(map_put(&map, 1, 2), 0);
	assert_int_equal(map_put(&map, 1, 3), -EEXIST);
	assert_int_equal(map_put(&map, 2, 3), -ENOSPC);
	assert_true(map_get(&map, 1, &value));
	assert_int_equal(value, 2);
	map_fini(&map);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_twin),
		cmocka_unit_test(test_missing_leaves_value),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
