#include "base/test_util.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "base/rand.h"
#include "kv/pool.h"

#define BLOCKS 23

/* The slow twin: what each block is, spelled out. */
struct twin {
	enum kv_block_state states[BLOCKS];
	uint32_t refs[BLOCKS], lives[BLOCKS];
	bool committed[BLOCKS];
	uint32_t poisoned[BLOCKS];
};

static void poison(void *context, kv_block_id block)
{
	((struct twin *)context)->poisoned[block.v]++;
}

static void compare(const struct kv_pool *pool, const struct twin *twin)
{
	uint32_t counts[KV_STATE_COUNT] = { 0 };

	kv_pool_check(pool);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		const struct kv_block *block = kv_pool_block(pool, (kv_block_id){ i });
		assert_int_equal(block->state, twin->states[i]);
		assert_int_equal(block->refs, twin->refs[i]);
		assert_int_equal(block->committed, twin->committed[i]);
		assert_int_equal(block->generation, twin->lives[i]);
		assert_int_equal(twin->poisoned[i], twin->lives[i]);
		counts[twin->states[i]]++;
	}
	assert_memory_equal(counts, pool->counts, sizeof counts);
}

static void twin_free(struct twin *twin, uint32_t i)
{
	twin->states[i] = KV_FREE;
	twin->committed[i] = false;
	twin->lives[i]++;
}

static void take(struct kv_pool *pool, struct twin *twin, enum kv_block_state wanted)
{
	kv_block_id block;
	int r = kv_pool_take(pool, wanted, &block);
	if (pool->counts[KV_FREE] == 0 && r < 0) {
		assert_int_equal(r, -ENOSPC);
		for (uint32_t i = 0; i < BLOCKS; i++)
			assert_int_not_equal(twin->states[i], KV_FREE);
		return;
	}
	assert_int_equal(r, 0);
	assert_int_equal(twin->states[block.v], KV_FREE);
	twin->states[block.v] = wanted;
	twin->refs[block.v] = wanted == KV_USED;
}

static void step(struct kv_pool *pool, struct twin *twin, uint64_t *random)
{
	uint32_t i = (uint32_t)(rand_next(random) % BLOCKS);
	kv_block_id block = { i };

	switch (rand_next(random) % 3) {
	case 0:
		return take(pool, twin, rand_next(random) % 3 ? KV_USED : KV_RESERVED);
	case 1: /* onward */
		switch (twin->states[i]) {
		case KV_RESERVED:
			kv_pool_land(pool, block);
			twin->states[i] = KV_USED;
			twin->refs[i] = 1;
			return;
		case KV_USED:
			if (!twin->committed[i] && rand_next(random) % 2) {
				kv_pool_commit(pool, block);
				twin->committed[i] = true;
				return;
			}
			__attribute__((fallthrough));
		case KV_CACHED:
			kv_pool_ref(pool, block);
			twin->states[i] = KV_USED;
			twin->refs[i]++;
			return;
		default:
			return;
		}
	default: /* back */
		switch (twin->states[i]) {
		case KV_RESERVED:
			kv_pool_quarantine(pool, block);
			twin->states[i] = KV_QUARANTINED;
			return;
		case KV_USED:
			(void)kv_pool_unref(pool, block);
			if (--twin->refs[i])
				return;
			if (twin->committed[i])
				twin->states[i] = KV_CACHED;
			else
				twin_free(twin, i);
			return;
		case KV_CACHED:
		case KV_QUARANTINED:
			kv_pool_free(pool, block);
			twin_free(twin, i);
			return;
		default:
			return;
		}
	}
}

static void test_twin(void **state)
{
	for (uint64_t seed = 1; seed <= 5; seed++) {
		struct kv_pool pool;
		struct twin twin = { 0 };
		uint64_t random = seed;

		assert_int_equal(kv_pool_init(&pool, BLOCKS), 0);
		pool.poison = poison;
		pool.poison_context = &twin;
		for (int i = 0; i < 5000; i++) {
			step(&pool, &twin, &random);
			compare(&pool, &twin);
		}
		kv_pool_fini(&pool);
	}
}

static void test_mistakes_die(void **state)
{
	struct kv_pool pool;
	kv_block_id used, reserved;

	assert_int_equal(kv_pool_init(&pool, 4), 0);
	assert_int_equal(kv_pool_take(&pool, KV_USED, &used), 0);
	assert_int_equal(kv_pool_take(&pool, KV_RESERVED, &reserved), 0);
	assert_dies(kv_pool_free(&pool, used));
	assert_dies(kv_pool_unref(&pool, reserved));
	assert_dies(kv_pool_land(&pool, used));
	assert_dies(
		(kv_pool_unref(&pool, used), kv_pool_unref(&pool, used))); /* a double release */
	assert_dies(kv_pool_ref(&pool, (kv_block_id){ 4 }));
	kv_pool_fini(&pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_twin),
		cmocka_unit_test(test_mistakes_die),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
