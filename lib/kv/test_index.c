/* The index alone against a slow twin: a list of (key, parent) pairs that is always scanned. */
#include "base/test_util.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "base/rand.h"
#include "kv/index.h"

#define BLOCKS 24
#define KEYS 60

struct twin {
	bool present, listed;
	uint32_t key, parent; /* parent: a key, or KEYS */
	uint64_t stamp;
};

/* The last five share their first 8 bytes with the first five; the map cannot tell them apart. */
static struct kv_key key_of(uint32_t i)
{
	struct kv_key key = { { 0 } };
	uint32_t low = i % (KEYS - 5);
	memcpy(key.bytes, &low, sizeof low);
	memcpy(key.bytes + 8, &i, sizeof i);
	return key;
}

static uint32_t twin_find(const struct twin twins[], uint32_t key)
{
	for (uint32_t b = 0; b < BLOCKS; b++) {
		if (twins[b].present && twins[b].key == key)
			return b;
	}
	return BLOCKS;
}

static bool twin_clashes(const struct twin twins[], uint32_t key)
{
	struct kv_key wanted = key_of(key);
	for (uint32_t b = 0; b < BLOCKS; b++) {
		struct kv_key has = key_of(twins[b].key);
		if (twins[b].present && kv_key_hash(&has) == kv_key_hash(&wanted))
			return true;
	}
	return false;
}

static uint32_t twin_children(const struct twin twins[], uint32_t key)
{
	uint32_t count = 0;
	for (uint32_t b = 0; b < BLOCKS; b++)
		count += twins[b].present && twins[b].parent == key;
	return count;
}

static bool children_listed(const struct twin twins[], uint32_t key)
{
	for (uint32_t b = 0; b < BLOCKS; b++) {
		if (twins[b].present && twins[b].parent == key && !twins[b].listed)
			return false;
	}
	return true;
}

static void compare(const struct kv_index *index, const struct twin twins[])
{
	kv_block_id found, victim;
	uint32_t oldest = BLOCKS;

	kv_index_check(index);
	for (uint32_t k = 0; k < KEYS; k++) {
		struct kv_key key = key_of(k);
		uint32_t expected = twin_find(twins, k);
		assert_int_equal(kv_index_find(index, &key, &found), expected < BLOCKS);
		if (expected < BLOCKS)
			assert_int_equal(found.v, expected);
	}
	for (uint32_t b = 0; b < BLOCKS; b++) {
		if (twins[b].listed && (oldest == BLOCKS || twins[b].stamp < twins[oldest].stamp))
			oldest = b;
	}
	assert_int_equal(kv_index_victim(index, &victim), oldest < BLOCKS);
	if (oldest < BLOCKS)
		assert_int_equal(victim.v, oldest);
}

static void insert(struct kv_index *index, struct twin twins[], uint32_t b, uint64_t *random)
{
	uint32_t k = (uint32_t)(rand_next(random) % KEYS),
		 p = (uint32_t)(rand_next(random) % (KEYS + 20));
	struct kv_key key = key_of(k), parent = key_of(MIN(p, KEYS - 1));
	uint32_t parent_block = p < KEYS ? twin_find(twins, p) : BLOCKS;
	int expected = 0;

	/* Who inserts a child holds its parent. */
	if (p < KEYS && parent_block < BLOCKS && twins[parent_block].listed)
		return;
	if (p < KEYS && parent_block == BLOCKS)
		expected = -ENOENT;
	else if (twin_clashes(twins, k))
		expected = -EEXIST;
	assert_int_equal(
		kv_index_insert(index, (kv_block_id){ b }, p < KEYS ? &parent : NULL, &key),
		expected);
	if (!expected)
		twins[b] = (struct twin){ true, false, k, MIN(p, KEYS), 0 };
}

static void step(struct kv_index *index, struct twin twins[], uint64_t *random, uint64_t stamp)
{
	uint32_t b = (uint32_t)(rand_next(random) % BLOCKS);
	kv_block_id block = { b };
	struct twin *twin = &twins[b];

	if (!twin->present)
		return insert(index, twins, b, random);
	if (!twin->listed && children_listed(twins, twin->key)) {
		kv_index_list(index, block);
		twin->listed = true;
		twin->stamp = stamp;
	} else if (twin->listed && twin_children(twins, twin->key) == 0) {
		kv_index_unlist(index, block);
		kv_index_remove(index, block);
		*twin = (struct twin){ 0 };
	} else if (twin->listed) {
		/* Referenced again, and so is every block before it. */
		for (;;) {
			if (twin->listed)
				kv_index_unlist(index, (kv_block_id){ (uint32_t)(twin - twins) });
			twin->listed = false;
			if (twin->parent == KEYS)
				break;
			twin = &twins[twin_find(twins, twin->parent)];
		}
	}
}

static void test_twin(void **state)
{
	for (uint64_t seed = 1; seed <= 10; seed++) {
		struct kv_index index;
		struct twin twins[BLOCKS] = { 0 };
		uint64_t random = seed;

		assert_int_equal(kv_index_init(&index, BLOCKS), 0);
		for (uint64_t i = 0; i < 3000; i++) {
			step(&index, twins, &random, i);
			compare(&index, twins);
		}
		kv_index_fini(&index);
	}
}

static void test_match(void **state)
{
	struct kv_index index;
	struct kv_key keys[4];
	kv_block_id blocks[4];

	for (uint32_t i = 0; i < 4; i++)
		keys[i] = key_of(i);
	assert_int_equal(kv_index_init(&index, 8), 0);
	assert_int_equal(kv_index_match(&index, keys, 4, blocks), 0);
	assert_int_equal(kv_index_insert(&index, (kv_block_id){ 5 }, NULL, &keys[0]), 0);
	assert_int_equal(kv_index_insert(&index, (kv_block_id){ 2 }, &keys[0], &keys[1]), 0);
	assert_int_equal(kv_index_match(&index, keys, 4, blocks), 2);
	assert_int_equal(blocks[0].v, 5);
	assert_int_equal(blocks[1].v, 2);
	assert_int_equal(kv_index_match(&index, keys, 1, blocks), 1);
	assert_int_equal(kv_index_match(&index, keys + 1, 3, blocks), 1);
	assert_dies(kv_index_remove(&index, (kv_block_id){ 5 })); /* a parent before its child */
	kv_index_fini(&index);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_twin),
		cmocka_unit_test(test_match),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
