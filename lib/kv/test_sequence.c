/*
 * Sequences over one arena against a slow twin that keeps whole texts: random prompts with common
 * beginnings are matched, covered, committed, grown, forked and dropped. "Memory" holds the
 * tokens themselves, so a page table can be read back and compared with the text.
 */
#include "base/test_util.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "base/rand.h"
#include "kv/sequence.h"

#define BLOCKS 30
#define BLOCK_TOKENS 4
#define SEQUENCES 6
#define TEXT_MAX 48

struct twin {
	bool live;
	uint32_t text[TEXT_MAX], count;
};

struct test {
	struct kv_node node;
	struct kv_sequence sequences[SEQUENCES];
	struct twin twins[SEQUENCES];
	uint32_t memory[BLOCKS][BLOCK_TOKENS];
	struct kv_key root;
	uint64_t random, matched, copied, full;
};

static uint32_t below(struct test *t, uint32_t bound)
{
	return (uint32_t)(rand_next(&t->random) >> 20) % bound;
}

static void poison(void *context, kv_block_id block)
{
	memset(((struct test *)context)->memory[block.v], 0xdd, sizeof(uint32_t) * BLOCK_TOKENS);
}

static void write_text(struct test *t, const struct kv_sequence *s, const struct twin *twin,
		       uint32_t from)
{
	for (uint32_t i = from; i < twin->count; i++) {
		kv_block_id block = s->blocks[i / BLOCK_TOKENS];
		assert_int_equal(kv_pool_block(&t->node.pool, block)->refs, 1);
		assert_false(kv_node_committed(&t->node, block));
		t->memory[block.v][i % BLOCK_TOKENS] = twin->text[i];
	}
}

/* The truth about a key: whether some present entry names this very prefix. */
static bool twin_knows(const struct test *t, const uint32_t text[], uint32_t blocks)
{
	struct kv_key key = t->root;
	for (uint32_t b = 0; b < blocks; b++)
		kv_key_next(&key, text + b * BLOCK_TOKENS, BLOCK_TOKENS, &key);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		const struct kv_entry *entry = &t->node.index.entries[i];
		if (entry->present && kv_key_equal(&entry->key, &key))
			return true;
	}
	return false;
}

static void check_all(struct test *t)
{
	uint32_t refs[BLOCKS] = { 0 };

	kv_node_check(&t->node);
	for (uint32_t i = 0; i < SEQUENCES; i++) {
		const struct kv_sequence *s = &t->sequences[i];
		kv_sequence_check(s, &t->node);
		for (uint32_t b = 0; b < s->block_count; b++)
			refs[s->blocks[b].v]++;
		if (!t->twins[i].live)
			continue;
		assert_int_equal(s->token_count, t->twins[i].count);
		for (uint32_t at = 0; at < t->twins[i].count; at++) {
			kv_block_id block = s->blocks[at / BLOCK_TOKENS];
			assert_int_equal(t->memory[block.v][at % BLOCK_TOKENS],
					 t->twins[i].text[at]);
		}
	}
	for (uint32_t b = 0; b < BLOCKS; b++)
		assert_int_equal(refs[b], t->node.pool.blocks[b].refs);
}

static void begin(struct test *t, uint32_t i)
{
	struct kv_sequence *s = &t->sequences[i];
	struct twin *twin = &t->twins[i];
	uint32_t leave = below(t, 2), common = below(t, TEXT_MAX), known = 0;

	twin->count = 1 + below(t, 30);
	for (uint32_t at = 0; at < twin->count; at++)
		twin->text[at] = at < common ? at * 3 : 1000 + below(t, 50);
	kv_sequence_start(s, &t->root, twin->text, twin->count);
	while ((known + 1) * BLOCK_TOKENS + leave <= twin->count &&
	       twin_knows(t, twin->text, known + 1))
		known++;
	uint32_t matched = kv_sequence_match(s, &t->node, leave);
	assert_int_equal(matched, known);
	if (leave)
		assert_true(matched * BLOCK_TOKENS < twin->count); /* something is left to run */
	t->matched += matched;
	uint32_t missing = kv_blocks_for(twin->count, BLOCK_TOKENS) - matched;
	uint32_t available = kv_node_available(&t->node);
	int taken = kv_sequence_cover(s, &t->node, KV_USED);
	/* Exactly what is available can be had: every cached block can be evicted. */
	assert_int_equal(taken, missing <= available ? (int)missing : -ENOSPC);
	if (taken < 0) {
		assert_int_equal(kv_node_available(&t->node), available);
		kv_sequence_drop(s, &t->node);
		t->full++;
		return;
	}
	twin->live = true;
	write_text(t, s, twin, matched * BLOCK_TOKENS);
	kv_sequence_commit(s, &t->node, twin->count);
}

static void grow(struct test *t, uint32_t i)
{
	struct kv_sequence *s = &t->sequences[i];
	struct twin *twin = &t->twins[i];
	struct kv_copy copy;

	if (twin->count == TEXT_MAX)
		return;
	bool takes = kv_sequence_grow_takes(s, &t->node);
	int r = kv_sequence_grow(s, &t->node, &copy);
	if (r < 0) {
		assert_true(takes);
		assert_int_equal(kv_node_available(&t->node), 0);
		return;
	}
	if (r == 1) {
		memcpy(t->memory[copy.target.v], t->memory[copy.source.v], sizeof t->memory[0]);
		t->copied++;
	}
	twin->text[twin->count++] = 2000 + below(t, 3);
	kv_sequence_append(s, twin->text[twin->count - 1]);
	write_text(t, s, twin, twin->count - 1);
	kv_sequence_commit(s, &t->node, twin->count);
}

static void step(struct test *t)
{
	uint32_t i = below(t, SEQUENCES), j = below(t, SEQUENCES);

	if (!t->twins[i].live)
		return begin(t, i);
	switch (below(t, 8)) {
	case 0:
		kv_sequence_drop(&t->sequences[i], &t->node);
		t->twins[i].live = false;
		return;
	case 1:
		if (t->twins[j].live)
			return;
		kv_sequence_fork(&t->sequences[j], &t->sequences[i], &t->node);
		t->twins[j] = t->twins[i];
		return;
	case 2:
		if (t->twins[j].live)
			return;
		kv_sequence_move(&t->sequences[j], &t->sequences[i]);
		t->twins[j] = t->twins[i];
		t->twins[i].live = false;
		return;
	default:
		return grow(t, i);
	}
}

static void test_twin(void **state)
{
	static struct test t;

	for (uint64_t seed = 1; seed <= 20; seed++) {
		memset(&t, 0, sizeof t);
		t.random = seed;
		memset(&t.root, (int)seed, sizeof t.root);
		assert_int_equal(kv_node_init(&t.node, BLOCKS, BLOCK_TOKENS), 0);
		t.node.pool.poison = poison;
		t.node.pool.poison_context = &t;
		for (uint32_t i = 0; i < SEQUENCES; i++)
			assert_int_equal(kv_sequence_init(&t.sequences[i], TEXT_MAX / BLOCK_TOKENS,
							  BLOCK_TOKENS),
					 0);
		for (int n = 0; n < 3000; n++) {
			step(&t);
			check_all(&t);
		}
		assert_true(t.matched > 0 && t.copied > 0 && t.full > 0 && t.node.evictions > 0);
		for (uint32_t i = 0; i < SEQUENCES; i++) {
			kv_sequence_drop(&t.sequences[i], &t.node);
			kv_sequence_fini(&t.sequences[i]);
		}
		assert_true(kv_node_idle(&t.node));
		kv_node_fini(&t.node);
	}
}

/* Reserved blocks: landed ones are used; a transfer taken back leaves them quarantined, and the
 * cached prefix is free of them at once. */
static void test_quarantine(void **state)
{
	struct kv_node node;
	struct kv_sequence first, second;
	struct kv_key root = { { 1 } };
	uint32_t text[11] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 };

	assert_int_equal(kv_node_init(&node, 8, 4), 0);
	assert_int_equal(kv_sequence_init(&first, 8, 4), 0);
	assert_int_equal(kv_sequence_init(&second, 8, 4), 0);
	kv_sequence_start(&first, &root, text, 11);
	assert_int_equal(kv_sequence_cover(&first, &node, KV_RESERVED), 3);
	assert_int_equal(node.pool.counts[KV_RESERVED], 3);
	kv_sequence_land(&first, &node);
	kv_sequence_commit(&first, &node, 11);
	kv_sequence_drop(&first, &node);
	assert_int_equal(node.pool.counts[KV_CACHED], 2);

	text[5] = 99; /* shares the first block only */
	kv_sequence_start(&second, &root, text, 11);
	assert_int_equal(kv_sequence_match(&second, &node, 0), 1);
	assert_int_equal(kv_sequence_cover(&second, &node, KV_RESERVED), 2);
	assert_int_equal(node.pool.counts[KV_USED], 1);
	kv_sequence_quarantine(&second, &node);
	assert_int_equal(node.pool.counts[KV_QUARANTINED], 2);
	assert_int_equal(node.pool.counts[KV_USED], 0);
	assert_int_equal(node.pool.counts[KV_CACHED], 2);
	kv_node_check(&node);
	kv_sequence_unquarantine(&second, &node);
	assert_true(kv_node_idle(&node));
	kv_node_check(&node);
	kv_sequence_fini(&first);
	kv_sequence_fini(&second);
	kv_node_fini(&node);
}

/* The oldest leaf goes first, and never a parent before its child. */
static void test_eviction_order(void **state)
{
	struct kv_node node;
	struct kv_sequence s[2];
	struct kv_key root = { { 1 } };
	uint32_t a[13], b[9];
	kv_block_id block;

	for (uint32_t i = 0; i < 13; i++)
		a[i] = i;
	for (uint32_t i = 0; i < 9; i++)
		b[i] = 100 + i;
	assert_int_equal(kv_node_init(&node, 7, 4), 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(kv_sequence_init(&s[i], 8, 4), 0);
		kv_sequence_start(&s[i], &root, i ? b : a, i ? 8 : 12);
		assert_true(kv_sequence_cover(&s[i], &node, KV_USED) > 0);
		kv_sequence_commit(&s[i], &node, i ? 8 : 12);
		kv_sequence_drop(&s[i], &node);
	}
	assert_int_equal(node.pool.counts[KV_CACHED], 5);
	/* a again, but only its first block: now b is older than a's head. */
	kv_sequence_start(&s[0], &root, a, 5);
	assert_int_equal(kv_sequence_match(&s[0], &node, 1), 1);
	kv_sequence_drop(&s[0], &node);

	const uint32_t left_a[] = { 3, 3, 2, 1, 1, 1, 0 }, left_b[] = { 2, 2, 2, 2, 1, 0, 0 };
	for (int i = 0; i < 7; i++) {
		assert_int_equal(kv_node_take(&node, KV_USED, &block), 0);
		kv_sequence_start(&s[0], &root, a, 12);
		assert_int_equal(kv_index_match(&node.index, s[0].keys, 3, s[0].blocks), left_a[i]);
		kv_sequence_start(&s[1], &root, b, 8);
		assert_int_equal(kv_index_match(&node.index, s[1].keys, 2, s[1].blocks), left_b[i]);
		kv_node_check(&node);
	}
	assert_int_equal(kv_node_take(&node, KV_USED, &block), -ENOSPC);
	kv_sequence_fini(&s[0]);
	kv_sequence_fini(&s[1]);
	kv_node_fini(&node);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_twin),
		cmocka_unit_test(test_quarantine),
		cmocka_unit_test(test_eviction_order),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
