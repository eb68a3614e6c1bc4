/* The index against a slow twin that keeps every block in a plain array and looks at all of them. */
#include "base/test_util.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/rand.h"
#include "pool/ssd_index.h"

#define KEYS 64u
#define BLOCKS 40u
#define STEPS 60000u

struct twin {
	bool known, present, doomed;
	uint32_t parent, pins; /* parent: a key, or KEYS */
	uint64_t stamp;
};

static struct kv_key key_of(uint32_t number)
{
	/* Few different first bytes: buckets are shared. */
	struct kv_key key = { { (uint8_t)(number % 4) } };
	key.bytes[15] = (uint8_t)number;
	return key;
}

static uint32_t twin_children(const struct twin twins[KEYS], uint32_t number)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < KEYS; i++)
		count += twins[i].known && twins[i].parent == number;
	return count;
}

static uint32_t twin_coldest(const struct twin twins[KEYS])
{
	uint32_t coldest = KEYS;
	for (uint32_t i = 0; i < KEYS; i++) {
		const struct twin *twin = &twins[i];
		if (!twin->present || twin->doomed || twin->pins || twin_children(twins, i))
			continue;
		if (coldest == KEYS || twin->stamp < twins[coldest].stamp)
			coldest = i;
	}
	return coldest;
}

static void twin_remove(struct twin twins[KEYS], uint32_t number)
{
	uint32_t parent = twins[number].parent;
	if (parent < KEYS && twins[parent].known)
		twins[parent].stamp = MAX(twins[parent].stamp, twins[number].stamp);
	twins[number] = (struct twin){ .parent = KEYS };
}

static void test_against_twin(void **state)
{
	struct ssd__index index;
	struct twin twins[KEYS];
	uint64_t random = 3, tick = 1;
	uint32_t known = 0, evictions = 0;

	for (uint32_t i = 0; i < KEYS; i++)
		twins[i] = (struct twin){ .parent = KEYS };
	assert_int_equal(ssd__index_init(&index, BLOCKS), 0);
	for (uint32_t step = 0; step < STEPS; step++) {
		uint32_t number = (uint32_t)(rand_next(&random) % KEYS);
		struct kv_key key = key_of(number);
		uint32_t entry = ssd__index_find(&index, &key);
		struct twin *twin = &twins[number];

		assert_int_equal(ssd__index_have(&index, &key) != SSD_NONE, twin->present && !twin->doomed);
		switch (rand_next(&random) % 8) {
		case 0:
		case 1:
		case 2: /* parents are half the number: a tree; its root's parent is never there */
			if (twin->known || known == BLOCKS)
				break;
			*twin = (struct twin){ .known = true, .present = rand_next(&random) % 2,
					       .parent = number / 2, .stamp = tick };
			if (!number)
				twin->parent = KEYS;
			struct kv_key parent = key_of(number ? number / 2 : KEYS + 1);
			ssd__index_add(&index, &key, rand_next(&random) % 8 || number ? &parent : NULL,
				       twin->present ? ENTRY_PRESENT : ENTRY_WRITING, tick++);
			known++;
			break;
		case 3:
			if (!twin->known)
				break;
			if (!twin->present) {
				ssd__index_written(&index, entry);
				twin->present = true;
			} else {
				ssd__index_touch(&index, entry, tick);
				twin->stamp = tick++;
			}
			break;
		case 4:
			if (!twin->present)
				break;
			ssd__index_pin(&index, entry);
			twin->pins++;
			break;
		case 5:
			if (!twin->pins)
				break;
			ssd__index_unpin(&index, entry);
			twin->pins--;
			break;
		case 6:
			if (!twin->known || rand_next(&random) % 4)
				break;
			if (twin->pins) {
				ssd__index_doom(&index, entry);
				twin->doomed = true;
			} else {
				ssd__index_remove(&index, entry);
				twin_remove(twins, number);
				known--;
			}
			break;
		case 7: {
			uint32_t coldest = ssd__index_coldest(&index), want = twin_coldest(twins);
			assert_int_equal(coldest == SSD_NONE, want == KEYS);
			if (want == KEYS || known < BLOCKS / 2)
				break;
			key = key_of(want);
			assert_memory_equal(&index.entries[coldest].key, &key, sizeof key);
			ssd__index_remove(&index, coldest);
			twin_remove(twins, want);
			known--;
			evictions++;
			break;
		}
		}
		if (step % 16 == 0)
			ssd__index_check(&index);
	}
	assert_true(evictions > STEPS / 100);
	ssd__index_fini(&index);
}

static void test_own_parent(void **state)
{
	struct ssd__index index;
	struct kv_key key = key_of(1), other = key_of(2);

	assert_int_equal(ssd__index_init(&index, 4), 0);
	uint32_t entry = ssd__index_add(&index, &key, &key, ENTRY_PRESENT, 1);
	assert_int_equal(ssd__index_coldest(&index), entry);
	ssd__index_remove(&index, entry);
	/* Two that call each other their parent: neither leaves, nothing breaks. */
	entry = ssd__index_add(&index, &key, &other, ENTRY_PRESENT, 1);
	uint32_t second = ssd__index_add(&index, &other, &key, ENTRY_PRESENT, 2);
	assert_int_equal(ssd__index_coldest(&index), SSD_NONE);
	ssd__index_check(&index);
	ssd__index_remove(&index, entry);
	ssd__index_check(&index);
	ssd__index_remove(&index, second);
	ssd__index_check(&index);
	ssd__index_fini(&index);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_against_twin),
		cmocka_unit_test(test_own_parent),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
