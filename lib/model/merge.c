/*
 * Merging: neighbours join, best pair first, until no pair is left.
 *
 * Items form a linked list. A heap holds (rank, position) of every pair that once was a
 * candidate; an entry is stale when the pair that starts there now has another rank. Each merge
 * removes an item and adds at most two pairs, so the time is O(n log n) for any input, also for
 * megabytes of one letter, where scanning for the best pair would be quadratic. Short pieces,
 * which is nearly all of them, are scanned: the same order without the heap's cost.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "model/tokenizer_private.h"
#include "model/utf8.h"

#define END SYMBOL_NONE
#define SCAN_ITEMS_MAX 24

int token_ids_push(struct token_ids *ids, uint32_t id)
{
	if (ids->count == ids->capacity) {
		uint32_t capacity = ids->capacity ? ids->capacity * 2 : 64;
		if (capacity < ids->capacity)
			return -ENOMEM;
		uint32_t *v = realloc(ids->v, capacity * sizeof(*v));
		if (!v)
			return -ENOMEM;
		ids->v = v;
		ids->capacity = capacity;
	}
	ids->v[ids->count++] = id;
	return 0;
}

static int reserve_items(struct scratch *s, size_t count)
{
	if (count >= END)
		return -E2BIG;
	if (count <= s->item_capacity)
		return 0;
	size_t capacity = MAX(count, s->item_capacity * 2);
	struct merge_item *items = realloc(s->items, capacity * sizeof(*items));
	if (!items)
		return -ENOMEM;
	s->items = items;
	s->item_capacity = capacity;
	return 0;
}

static int heap_push(struct scratch *s, uint64_t key)
{
	if (s->heap_count == s->heap_capacity) {
		size_t capacity = s->heap_capacity ? s->heap_capacity * 2 : 256;
		uint64_t *heap = realloc(s->heap, capacity * sizeof(*heap));
		if (!heap)
			return -ENOMEM;
		s->heap = heap;
		s->heap_capacity = capacity;
	}
	size_t at = s->heap_count++;
	while (at > 0 && s->heap[(at - 1) / 2] > key) {
		s->heap[at] = s->heap[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	s->heap[at] = key;
	return 0;
}

static uint64_t heap_pop(struct scratch *s)
{
	uint64_t top = s->heap[0], key = s->heap[--s->heap_count];
	size_t at = 0;
	for (size_t child = 1; child < s->heap_count; child = 2 * at + 1) {
		if (child + 1 < s->heap_count && s->heap[child + 1] < s->heap[child])
			child++;
		if (s->heap[child] >= key)
			break;
		s->heap[at] = s->heap[child];
		at = child;
	}
	if (s->heap_count)
		s->heap[at] = key;
	return top;
}

/* Sets the rank of the pair that starts at @left. @text: SPM's, NULL: BPE. */
static void rank_pair(const struct tokenizer *t, struct merge_item *items, uint32_t left,
		      const char *text)
{
	struct merge_item *a = &items[left];
	a->rank = END;
	if (a->next == END)
		return;
	const struct merge_item *b = &items[a->next];
	if (text) {
		size_t bytes = (size_t)a->bytes + b->bytes;
		if (bytes > t->text_bytes_max)
			return;
		uint32_t id = text_map_get(&t->texts, (struct text){ text + a->start, bytes });
		if (id != SYMBOL_NONE)
			a->rank = t->ranks[id];
		return;
	}
	uint64_t value;
	if (map_get(&t->pairs, (uint64_t)a->symbol << 32 | b->symbol, &value)) {
		a->rank = (uint32_t)(value >> 32);
		a->result = (uint32_t)value;
	}
}

/* Joins @left with its neighbour. The ranks of the pairs around are new afterwards. */
static void join(const struct tokenizer *t, struct merge_item *items, uint32_t left,
		 const char *text)
{
	struct merge_item *a = &items[left], *b = &items[a->next];
	a->symbol = a->result;
	a->bytes += b->bytes;
	b->rank = END;
	a->next = b->next;
	if (a->next != END)
		items[a->next].previous = left;
	rank_pair(t, items, left, text);
	if (a->previous != END)
		rank_pair(t, items, a->previous, text);
}

static void merge_scan(const struct tokenizer *t, struct merge_item *items, const char *text)
{
	for (;;) {
		uint32_t best = END;
		for (uint32_t i = 0; i != END; i = items[i].next) {
			if (items[i].rank != END && (best == END || items[i].rank < items[best].rank))
				best = i;
		}
		if (best == END)
			return;
		join(t, items, best, text);
	}
}

static int heap_push_pair(struct scratch *s, uint32_t left)
{
	if (left == END || s->items[left].rank == END)
		return 0;
	return heap_push(s, (uint64_t)s->items[left].rank << 32 | left);
}

static int merge_heap(const struct tokenizer *t, struct scratch *s, uint32_t count, const char *text)
{
	struct merge_item *items = s->items;
	int error = 0;
	s->heap_count = 0;
	for (uint32_t i = 0; i < count && error >= 0; i++)
		error = heap_push_pair(s, i);
	while (s->heap_count && error >= 0) {
		uint64_t top = heap_pop(s);
		uint32_t left = (uint32_t)top;
		/* A joined item has no rank; another pair starting here has another one. */
		if (items[left].rank != (uint32_t)(top >> 32))
			continue;
		join(t, items, left, text);
		error = heap_push_pair(s, left);
		if (error >= 0)
			error = heap_push_pair(s, items[left].previous);
	}
	return error;
}

static int merge_all(const struct tokenizer *t, struct scratch *s, uint32_t count, const char *text)
{
	for (uint32_t i = 0; i < count; i++) {
		s->items[i].previous = i ? i - 1 : END;
		s->items[i].next = i + 1 < count ? i + 1 : END;
	}
	for (uint32_t i = 0; i < count; i++)
		rank_pair(t, s->items, i, text);
	if (count > SCAN_ITEMS_MAX)
		return merge_heap(t, s, count, text);
	merge_scan(t, s->items, text);
	return 0;
}

/* A symbol that is no token falls apart into bytes; a byte without a token is dropped, as the
 * reference implementations do. */
static int push_symbol(const struct tokenizer *t, struct scratch *s, uint32_t symbol)
{
	if (t->symbol_ids[symbol] != SYMBOL_NONE)
		return token_ids_push(s->ids, t->symbol_ids[symbol]);
	if (symbol < 256)
		return 0;
	struct text text = t->symbol_texts[symbol];
	for (size_t i = 0; i < text.bytes;) {
		size_t bytes = utf8_bytes(text.data[i]);
		uint32_t byte = tokenizer__alphabet_byte(text.data + i, MIN(bytes, text.bytes - i));
		if (byte < 256 && t->symbol_ids[byte] != SYMBOL_NONE) {
			int error = token_ids_push(s->ids, t->symbol_ids[byte]);
			if (error < 0)
				return error;
		}
		i += bytes;
	}
	return 0;
}

int merge__bpe(const struct tokenizer *t, struct scratch *s, struct text piece)
{
	if (t->vocab->ignore_merges && piece.bytes <= t->text_bytes_max) {
		uint32_t id = text_map_get(&t->texts, piece);
		if (id != SYMBOL_NONE)
			return token_ids_push(s->ids, id);
	}
	int error = reserve_items(s, piece.bytes);
	if (error < 0)
		return error;
	for (size_t i = 0; i < piece.bytes; i++)
		s->items[i] = (struct merge_item){ .symbol = (uint8_t)piece.data[i], .bytes = 1 };
	if ((error = merge_all(t, s, (uint32_t)piece.bytes, NULL)) < 0)
		return error;
	for (uint32_t i = 0; i != END; i = s->items[i].next) {
		if ((error = push_symbol(t, s, s->items[i].symbol)) < 0)
			return error;
	}
	return 0;
}

static int push_spm(const struct tokenizer *t, struct scratch *s, struct text text)
{
	uint32_t id = text.bytes <= t->text_bytes_max ? text_map_get(&t->texts, text) : SYMBOL_NONE;
	if (id != SYMBOL_NONE)
		return token_ids_push(s->ids, id);
	int error = 0;
	for (size_t i = 0; i < text.bytes && error >= 0; i++) {
		id = t->byte_ids[(uint8_t)text.data[i]];
		if (id == SYMBOL_NONE && t->vocab->unknown_id >= 0)
			return token_ids_push(s->ids, (uint32_t)t->vocab->unknown_id);
		if (id != SYMBOL_NONE)
			error = token_ids_push(s->ids, id);
	}
	return error;
}

int merge__spm(const struct tokenizer *t, struct scratch *s, struct text text)
{
	uint32_t count = 0;
	if (!text.bytes)
		return 0;
	if (text.bytes >= END)
		return -E2BIG;
	int error = reserve_items(s, text.bytes);
	if (error < 0)
		return error;
	for (size_t at = 0; at < text.bytes; count++) {
		struct text character = { text.data + at, utf8_bytes(text.data[at]) };
		s->items[count] = (struct merge_item){ .start = (uint32_t)at,
						       .bytes = (uint32_t)character.bytes };
		if (!t->ranks)
			s->items[count].symbol = text_map_get(&t->symbols, character);
		at += character.bytes;
	}
	/* Files with scores find a pair by its text, files with merges by its symbols. */
	if ((error = merge_all(t, s, count, t->ranks ? text.data : NULL)) < 0)
		return error;
	for (uint32_t i = 0; i != END; i = s->items[i].next) {
		const struct merge_item *item = &s->items[i];
		if ((error = push_spm(t, s, (struct text){ text.data + item->start, item->bytes })) <
		    0)
			return error;
	}
	return 0;
}
