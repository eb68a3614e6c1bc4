#include "pool/ssd_index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

/* ---- the heap ---- */

static bool colder(const struct ssd__index *index, uint32_t a, uint32_t b)
{
	return index->entries[a].stamp < index->entries[b].stamp;
}

static void heap_set(struct ssd__index *index, uint32_t at, uint32_t entry)
{
	index->heap[at] = entry;
	index->entries[entry].heap_at = at;
}

static void heap_rise(struct ssd__index *index, uint32_t at, uint32_t entry)
{
	for (; at; at = (at - 1) / 2) {
		uint32_t above = index->heap[(at - 1) / 2];
		if (!colder(index, entry, above))
			break;
		heap_set(index, at, above);
	}
	heap_set(index, at, entry);
}

static void heap_sink(struct ssd__index *index, uint32_t at, uint32_t entry)
{
	for (;;) {
		uint32_t child = 2 * at + 1;
		if (child >= index->heap_count)
			break;
		if (child + 1 < index->heap_count &&
		    colder(index, index->heap[child + 1], index->heap[child]))
			child++;
		if (!colder(index, index->heap[child], entry))
			break;
		heap_set(index, at, index->heap[child]);
		at = child;
	}
	heap_set(index, at, entry);
}

static void heap_place(struct ssd__index *index, uint32_t at, uint32_t entry)
{
	if (at && colder(index, entry, index->heap[(at - 1) / 2]))
		heap_rise(index, at, entry);
	else
		heap_sink(index, at, entry);
}

static bool evictable(const struct ssd__entry *entry)
{
	return entry->state == ENTRY_PRESENT && !entry->children && !entry->pins && !entry->doomed;
}

/* Puts the entry into the heap, takes it out, or moves it within, as it now is. */
static void settle(struct ssd__index *index, uint32_t at)
{
	struct ssd__entry *entry = &index->entries[at];

	if (evictable(entry)) {
		if (entry->heap_at == SSD_NONE)
			heap_rise(index, index->heap_count++, at);
		else
			heap_place(index, entry->heap_at, at);
	} else if (entry->heap_at != SSD_NONE) {
		uint32_t hole = entry->heap_at;
		uint32_t last = index->heap[--index->heap_count];
		entry->heap_at = SSD_NONE;
		if (last != at)
			heap_place(index, hole, last);
	}
}

/* ---- entries ---- */

int ssd__index_init(struct ssd__index *index, uint32_t block_count)
{
	uint32_t buckets = 8;

	memset(index, 0, sizeof *index);
	CHECK(block_count < SSD_NONE / 2);
	index->capacity = 2 * block_count; /* N3 */
	while (buckets < block_count)
		buckets *= 2;
	index->bucket_mask = buckets - 1;
	index->free_head = SSD_NONE;
	/* Pages of what is never used are never touched: the memory follows the blocks. */
	index->entries = calloc(index->capacity, sizeof *index->entries);
	index->heap = calloc(block_count, sizeof *index->heap);
	index->buckets = malloc(buckets * sizeof *index->buckets);
	if (!index->entries || !index->heap || !index->buckets) {
		ssd__index_fini(index);
		return -ENOMEM;
	}
	memset(index->buckets, 0xff, buckets * sizeof *index->buckets);
	return 0;
}

void ssd__index_fini(struct ssd__index *index)
{
	free(index->entries);
	free(index->heap);
	free(index->buckets);
	index->entries = NULL;
	index->heap = index->buckets = NULL;
}

static uint32_t *bucket(const struct ssd__index *index, const struct kv_key *key)
{
	return &index->buckets[kv_key_hash(key) & index->bucket_mask];
}

uint32_t ssd__index_find(const struct ssd__index *index, const struct kv_key *key)
{
	uint32_t at = *bucket(index, key);
	while (at != SSD_NONE && !kv_key_equal(&index->entries[at].key, key))
		at = index->entries[at].next;
	return at;
}

uint32_t ssd__index_have(const struct ssd__index *index, const struct kv_key *key)
{
	uint32_t at = ssd__index_find(index, key);
	if (at == SSD_NONE || index->entries[at].state != ENTRY_PRESENT || index->entries[at].doomed)
		return SSD_NONE;
	return at;
}

static uint32_t entry_new(struct ssd__index *index, const struct kv_key *key)
{
	uint32_t at = index->free_head;
	if (at != SSD_NONE) {
		index->free_head = index->entries[at].next;
	} else {
		CHECK(index->used_count < index->capacity);
		at = index->used_count++;
	}
	uint32_t *head = bucket(index, key);
	index->entries[at] = (struct ssd__entry){ .key = *key, .parent = SSD_NONE, .next = *head,
						  .heap_at = SSD_NONE, .state = ENTRY_ABSENT };
	*head = at;
	return at;
}

static void entry_free(struct ssd__index *index, uint32_t at)
{
	uint32_t *link = bucket(index, &index->entries[at].key);
	while (*link != at)
		link = &index->entries[*link].next;
	*link = index->entries[at].next;
	index->entries[at].state = ENTRY_FREE;
	index->entries[at].next = index->free_head;
	index->free_head = at;
}

uint32_t ssd__index_add(struct ssd__index *index, const struct kv_key *key,
			const struct kv_key *parent, enum ssd__state state, uint64_t stamp)
{
	uint32_t at = ssd__index_find(index, key);

	if (at == SSD_NONE)
		at = entry_new(index, key);
	struct ssd__entry *entry = &index->entries[at];
	CHECK(entry->state == ENTRY_ABSENT && entry->parent == SSD_NONE);
	entry->state = state;
	entry->stamp = stamp;
	index->present_count += state == ENTRY_PRESENT;
	/* Headers are bytes from outside: nobody is its own parent. A longer ring would merely stay. */
	if (parent && !kv_key_equal(parent, key)) {
		uint32_t above = ssd__index_find(index, parent);
		if (above == SSD_NONE)
			above = entry_new(index, parent);
		entry->parent = above;
		index->entries[above].children++;
		settle(index, above);
	}
	settle(index, at);
	return at;
}

void ssd__index_written(struct ssd__index *index, uint32_t at)
{
	CHECK(index->entries[at].state == ENTRY_WRITING);
	index->entries[at].state = ENTRY_PRESENT;
	index->present_count++;
	settle(index, at);
}

static void parent_leave(struct ssd__index *index, struct ssd__entry *entry)
{
	struct ssd__entry *parent = &index->entries[entry->parent];

	CHECK(parent->children);
	parent->children--;
	if (parent->state == ENTRY_ABSENT) {
		if (!parent->children)
			entry_free(index, entry->parent);
	} else {
		parent->stamp = MAX(parent->stamp, entry->stamp);
		settle(index, entry->parent);
	}
	entry->parent = SSD_NONE;
}

void ssd__index_remove(struct ssd__index *index, uint32_t at)
{
	struct ssd__entry *entry = &index->entries[at];

	CHECK(!entry->pins);
	CHECK(entry->state == ENTRY_WRITING || entry->state == ENTRY_PRESENT);
	index->present_count -= entry->state == ENTRY_PRESENT;
	entry->state = ENTRY_ABSENT;
	entry->doomed = false;
	settle(index, at);
	if (entry->parent != SSD_NONE)
		parent_leave(index, entry);
	if (!entry->children)
		entry_free(index, at);
}

void ssd__index_touch(struct ssd__index *index, uint32_t at, uint64_t stamp)
{
	index->entries[at].stamp = stamp;
	settle(index, at);
}

void ssd__index_pin(struct ssd__index *index, uint32_t at)
{
	CHECK(index->entries[at].state == ENTRY_PRESENT);
	index->entries[at].pins++;
	settle(index, at);
}

void ssd__index_unpin(struct ssd__index *index, uint32_t at)
{
	CHECK(index->entries[at].pins);
	index->entries[at].pins--;
	settle(index, at);
}

void ssd__index_doom(struct ssd__index *index, uint32_t at)
{
	CHECK(index->entries[at].state == ENTRY_PRESENT);
	index->entries[at].doomed = true;
	settle(index, at);
}

uint32_t ssd__index_coldest(const struct ssd__index *index)
{
	return index->heap_count ? index->heap[0] : SSD_NONE;
}

void ssd__index_check(const struct ssd__index *index)
{
	uint32_t present = 0, evictables = 0;
	uint32_t *children = calloc(index->used_count + 1, sizeof *children);

	CHECK(children);
	for (uint32_t i = 0; i < index->used_count; i++) {
		const struct ssd__entry *entry = &index->entries[i];
		if (entry->state == ENTRY_FREE)
			continue;
		CHECK(ssd__index_find(index, &entry->key) == i);
		if (entry->parent != SSD_NONE) {
			CHECK(entry->state != ENTRY_ABSENT);
			children[entry->parent]++;
		}
		present += entry->state == ENTRY_PRESENT;
		evictables += evictable(entry);
		CHECK(evictable(entry) == (entry->heap_at != SSD_NONE)); /* N1 */
	}
	CHECK(present == index->present_count && evictables == index->heap_count);
	for (uint32_t i = 0; i < index->used_count; i++) {
		const struct ssd__entry *entry = &index->entries[i];
		CHECK(entry->state == ENTRY_FREE || entry->children == children[i]); /* N2 */
		CHECK(entry->state != ENTRY_ABSENT || entry->children);		     /* N3 */
	}
	for (uint32_t i = 0; i < index->heap_count; i++) {
		CHECK(index->entries[index->heap[i]].heap_at == i);
		CHECK(!i || !colder(index, index->heap[i], index->heap[(i - 1) / 2]));
	}
	free(children);
}
