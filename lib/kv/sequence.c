#include "kv/sequence.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

int kv_sequence_init(struct kv_sequence *s, uint32_t blocks_max, uint32_t block_tokens)
{
	*s = (struct kv_sequence){ .blocks_max = blocks_max, .block_tokens = block_tokens };
	s->blocks = calloc(blocks_max, sizeof *s->blocks);
	s->keys = calloc(blocks_max, sizeof *s->keys);
	s->tail = calloc(block_tokens, sizeof *s->tail);
	if (!s->blocks || !s->keys || !s->tail) {
		kv_sequence_fini(s);
		return -ENOMEM;
	}
	return 0;
}

void kv_sequence_fini(struct kv_sequence *s)
{
	free(s->blocks);
	free(s->keys);
	free(s->tail);
	*s = (struct kv_sequence){ 0 };
}

void kv_sequence_append(struct kv_sequence *s, uint32_t token)
{
	uint32_t block = s->token_count / s->block_tokens, place = s->token_count % s->block_tokens;

	CHECK(block < s->blocks_max);
	s->tail[place] = token;
	s->token_count++;
	if (place + 1 == s->block_tokens)
		kv_key_next(block ? &s->keys[block - 1] : &s->root, s->tail, s->block_tokens,
			    &s->keys[block]);
}

void kv_sequence_start(struct kv_sequence *s, const struct kv_key *root, const uint32_t tokens[],
		       uint32_t token_count)
{
	CHECK(s->block_count == 0);
	s->root = *root;
	s->token_count = s->committed = 0;
	for (uint32_t i = 0; i < token_count; i++)
		kv_sequence_append(s, tokens[i]);
}

uint32_t kv_sequence_match(struct kv_sequence *s, struct kv_node *node, uint32_t leave_tokens)
{
	CHECK(s->block_count == 0);
	if (s->token_count <= leave_tokens)
		return 0;
	uint32_t limit = (s->token_count - leave_tokens) / s->block_tokens;
	s->block_count = kv_index_match(&node->index, s->keys, limit, s->blocks);
	for (uint32_t i = 0; i < s->block_count; i++)
		kv_node_ref(node, s->blocks[i]);
	s->committed = s->block_count;
	return s->block_count;
}

int kv_sequence_cover(struct kv_sequence *s, struct kv_node *node, enum kv_block_state state)
{
	uint32_t first = s->block_count, wanted = kv_blocks_for(s->token_count, s->block_tokens);

	CHECK(wanted <= s->blocks_max);
	while (s->block_count < wanted) {
		if (kv_node_take(node, state, &s->blocks[s->block_count]) < 0)
			goto give_back;
		s->block_count++;
	}
	return (int)(s->block_count - first);

give_back:
	while (s->block_count > first) {
		kv_block_id block = s->blocks[--s->block_count];
		if (state == KV_USED)
			kv_node_unref(node, block);
		else
			kv_pool_free(&node->pool, block);
	}
	return -ENOSPC;
}

bool kv_sequence_grow_takes(const struct kv_sequence *s, const struct kv_node *node)
{
	uint32_t block = s->token_count / s->block_tokens;
	return block == s->block_count || kv_pool_block(&node->pool, s->blocks[block])->refs > 1;
}

int kv_sequence_grow(struct kv_sequence *s, struct kv_node *node, struct kv_copy *ret_copy)
{
	uint32_t block = s->token_count / s->block_tokens;
	kv_block_id fresh;

	CHECK(block < s->blocks_max);
	CHECK(block <= s->block_count);
	if (!kv_sequence_grow_takes(s, node))
		return 0;
	if (kv_node_take(node, KV_USED, &fresh) < 0)
		return -ENOSPC;
	if (block == s->block_count) {
		s->blocks[s->block_count++] = fresh;
		return 0;
	}
	/* The copy is made before anything is written, and until then another sequence still
	 * has a reference to the source. */
	*ret_copy = (struct kv_copy){ .source = s->blocks[block], .target = fresh };
	kv_node_unref(node, s->blocks[block]);
	s->blocks[block] = fresh;
	return 1;
}

void kv_sequence_commit(struct kv_sequence *s, struct kv_node *node, uint32_t computed_tokens)
{
	CHECK(computed_tokens <= s->token_count);
	for (; s->committed < computed_tokens / s->block_tokens; s->committed++) {
		uint32_t i = s->committed;
		/* When another sequence made the same prefix known first, what follows here stays
		 * unknown: its parent in the index would be a block that this sequence does not
		 * hold, and could be evicted before its child (index invariant I3). */
		if (i == 0)
			kv_node_commit(node, s->blocks[i], NULL, &s->keys[i]);
		else if (kv_node_committed(node, s->blocks[i - 1]))
			kv_node_commit(node, s->blocks[i], &s->keys[i - 1], &s->keys[i]);
	}
}

void kv_sequence_fork(struct kv_sequence *target, const struct kv_sequence *source,
		      struct kv_node *node)
{
	CHECK(target->block_count == 0);
	CHECK(source->block_count <= target->blocks_max);
	CHECK(source->block_tokens == target->block_tokens);
	for (uint32_t i = 0; i < source->block_count; i++) {
		kv_node_ref(node, source->blocks[i]);
		target->blocks[i] = source->blocks[i];
	}
	memcpy(target->keys, source->keys,
	       source->token_count / source->block_tokens * sizeof *target->keys);
	memcpy(target->tail, source->tail, source->block_tokens * sizeof *target->tail);
	target->root = source->root;
	target->block_count = source->block_count;
	target->token_count = source->token_count;
	target->committed = source->committed;
}

void kv_sequence_move(struct kv_sequence *target, struct kv_sequence *source)
{
	CHECK(target->block_count == 0);
	CHECK(target->blocks_max == source->blocks_max &&
	      target->block_tokens == source->block_tokens);
	struct kv_sequence held = *target;
	*target = *source;
	*source = held;
	source->token_count = source->committed = 0;
}

void kv_sequence_land(struct kv_sequence *s, struct kv_node *node)
{
	for (uint32_t i = 0; i < s->block_count; i++) {
		if (kv_pool_block(&node->pool, s->blocks[i])->state == KV_RESERVED)
			kv_pool_land(&node->pool, s->blocks[i]);
	}
}

/* The RESERVED blocks move to the front and stay; the referenced prefix goes now. */
void kv_sequence_quarantine(struct kv_sequence *s, struct kv_node *node)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < s->block_count; i++) {
		if (kv_pool_block(&node->pool, s->blocks[i])->state == KV_RESERVED)
			kv_pool_quarantine(&node->pool, s->blocks[i]);
	}
	for (uint32_t i = s->block_count; i-- > 0;) {
		if (kv_pool_block(&node->pool, s->blocks[i])->state == KV_USED)
			kv_node_unref(node, s->blocks[i]);
		else
			kept++;
	}
	memmove(s->blocks, &s->blocks[s->block_count - kept], kept * sizeof *s->blocks);
	s->block_count = kept;
	s->token_count = s->committed = 0;
}

void kv_sequence_unquarantine(struct kv_sequence *s, struct kv_node *node)
{
	for (uint32_t i = s->block_count; i-- > 0;) {
		CHECK(kv_pool_block(&node->pool, s->blocks[i])->state == KV_QUARANTINED);
		kv_pool_free(&node->pool, s->blocks[i]);
	}
	s->block_count = 0;
}

void kv_sequence_drop(struct kv_sequence *s, struct kv_node *node)
{
	for (uint32_t i = s->block_count; i-- > 0;) {
		if (kv_pool_block(&node->pool, s->blocks[i])->state == KV_RESERVED)
			kv_pool_free(&node->pool, s->blocks[i]); /* nothing was ever granted */
		else
			kv_node_unref(node, s->blocks[i]);
	}
	s->block_count = s->committed = 0;
}

void kv_sequence_check(const struct kv_sequence *s, const struct kv_node *node)
{
	CHECK(s->block_count <= s->blocks_max);
	CHECK(s->committed <= s->block_count || s->block_count == 0);
	CHECK(s->token_count <= s->blocks_max * s->block_tokens);
	for (uint32_t i = 0; i < s->block_count; i++) {
		const struct kv_block *block = kv_pool_block(&node->pool, s->blocks[i]);
		CHECK(block->state == KV_USED || block->state == KV_RESERVED ||
		      block->state == KV_QUARANTINED);
		/* Beyond the named complete blocks a block is private until forked, never known. */
		if (i >= s->token_count / s->block_tokens)
			CHECK(!block->committed);
	}
	if (s->token_count > 0 && s->token_count % s->block_tokens == 0) {
		uint32_t last = s->token_count / s->block_tokens - 1;
		struct kv_key key;
		kv_key_next(last ? &s->keys[last - 1] : &s->root, s->tail, s->block_tokens, &key);
		CHECK(kv_key_equal(&key, &s->keys[last]));
	}
}
