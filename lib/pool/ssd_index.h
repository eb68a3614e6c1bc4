/*
 * What the SSD tier holds, and what leaves next. Pure; one entry per block.
 *
 * Entries know their parent and count their children. A parent that is not here but has children
 * that are stands as an ABSENT entry, so that blocks may come in any order. Only leaves stand in
 * the heap of what may be evicted, the one unused for longest on top. A parent is used whenever its
 * child is: it takes over the removed child's stamp when that is later, and so a cold chain leaves
 * from its end, before anything warmer.
 *
 * Invariants (ssd__index_check)
 *   N1  The heap holds exactly the PRESENT entries without children and pins that are not doomed.
 *   N2  children is the number of WRITING and PRESENT entries whose parent it is.
 *   N3  An ABSENT entry has children; so there are at most as many as others.
 */
#ifndef BATON_POOL_SSD_INDEX_H
#define BATON_POOL_SSD_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "kv/key.h"

#define SSD_NONE UINT32_MAX

enum ssd__state { ENTRY_FREE, ENTRY_ABSENT, ENTRY_WRITING, ENTRY_PRESENT };

struct ssd__slot {
	uint32_t segment, slot;
};

struct ssd__entry {
	struct kv_key key;
	uint64_t stamp; /* of the last use */
	struct ssd__slot place;
	uint32_t parent, children;
	uint32_t next; /* in its bucket, or in the free list */
	uint32_t heap_at;
	uint32_t pins;
	uint8_t state;
	bool doomed; /* dropped, but still read */
};

struct ssd__index {
	struct ssd__entry *entries;
	uint32_t *buckets, *heap;
	uint32_t capacity, bucket_mask, heap_count;
	uint32_t free_head, used_count; /* entries [used_count, capacity) were never used */
	uint32_t present_count;
};

/* Room for @block_count blocks. Return: 0 or -ENOMEM. */
int ssd__index_init(struct ssd__index *index, uint32_t block_count);
void ssd__index_fini(struct ssd__index *index);

/* SSD_NONE when there is no entry; one that is found may be ABSENT. */
uint32_t ssd__index_find(const struct ssd__index *index, const struct kv_key *key);
/* The PRESENT, not doomed block of this key, or SSD_NONE. */
uint32_t ssd__index_have(const struct ssd__index *index, const struct kv_key *key);
/* A new entry, WRITING or PRESENT. The key must be unknown or ABSENT. @parent may be NULL. */
uint32_t ssd__index_add(struct ssd__index *index, const struct kv_key *key,
			const struct kv_key *parent, enum ssd__state state, uint64_t stamp);
void ssd__index_written(struct ssd__index *index, uint32_t entry); /* WRITING -> PRESENT */
void ssd__index_remove(struct ssd__index *index, uint32_t entry);  /* no pins */
void ssd__index_touch(struct ssd__index *index, uint32_t entry, uint64_t stamp);
void ssd__index_pin(struct ssd__index *index, uint32_t entry);
void ssd__index_unpin(struct ssd__index *index, uint32_t entry);
void ssd__index_doom(struct ssd__index *index, uint32_t entry);
uint32_t ssd__index_coldest(const struct ssd__index *index); /* what leaves next, or SSD_NONE */
void ssd__index_check(const struct ssd__index *index);

#endif
