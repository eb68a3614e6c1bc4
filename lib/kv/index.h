/*
 * Prefix index: block key -> block, and the order in which cached blocks are evicted. One entry
 * per block of the arena, so its memory is bounded by the arena.
 *
 * Entries form trees along the prefixes: each knows its parent and counts its children. Only a
 * leaf may be removed, so a parent never goes before its child (a child whose parent is gone
 * could not be found). Cached blocks stand in a list, the one unused for longest first. Whoever
 * references a block references its parent too (kv_sequence_commit) and lets go of the child
 * first, so the oldest is always a leaf and every cached block can be had by evicting in order.
 *
 * Invariants (kv_index_check)
 *   I1  The map holds exactly the entries that are present, each under its own key.
 *   I2  A present entry's parent is present, and children counts are exact.
 *   I3  A listed entry's children are listed, older than it.
 */
#ifndef BATON_KV_INDEX_H
#define BATON_KV_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "base/map.h"
#include "kv/key.h"
#include "kv/shape.h"

struct kv_entry {
	struct kv_key key;
	uint32_t parent; /* block, or KV_BLOCK_NONE at the root */
	uint32_t children;
	uint32_t older, newer; /* in the order of eviction, while listed */
	bool present, listed;
};

struct kv_index {
	struct kv_entry *entries; /* [block_count] */
	uint32_t block_count, present_count;
	struct map map; /* first 8 bytes of the key -> block */
	uint32_t oldest, newest;
};

int kv_index_init(struct kv_index *index, uint32_t block_count); /* 0 or -ENOMEM */
void kv_index_fini(struct kv_index *index);

bool kv_index_find(const struct kv_index *index, const struct kv_key *key, kv_block_id *ret_block);

/**
 * kv_index_match() - longest cached prefix of a prompt
 * @keys:        of the prompt's complete blocks
 * @block_limit: at most so many
 * @ret_blocks:  [block_limit] filled from the front; not referenced yet
 *
 * Return: blocks matched, 0 is a miss.
 */
uint32_t kv_index_match(const struct kv_index *index, const struct kv_key keys[],
			uint32_t block_limit, kv_block_id ret_blocks[]);

/* Makes @block known as @key, after @parent (NULL: it is a first block). Return: 0; -EEXIST when
 * another block has the key; -ENOENT when the parent is not known any more. */
int kv_index_insert(struct kv_index *index, kv_block_id block, const struct kv_key *parent,
		    const struct kv_key *key);
void kv_index_remove(struct kv_index *index, kv_block_id block); /* a leaf, not listed */

void kv_index_list(struct kv_index *index, kv_block_id block);   /* unreferenced now: newest */
void kv_index_unlist(struct kv_index *index, kv_block_id block); /* referenced again, or going */
/* The one unused for longest; a leaf (I3). */
bool kv_index_victim(const struct kv_index *index, kv_block_id *ret_block);

void kv_index_check(const struct kv_index *index);

#endif
