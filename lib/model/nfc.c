/*
 * Normalization Form C: every character is taken apart as far as it goes, runs of combining marks
 * are put in the order of their classes, then what can be joined is joined. Hangul syllables are
 * computed, the rest comes from nfc_table.h. Source: Unicode Standard Annex #15, chapter 3.11.
 */
#include "model/nfc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "model/utf8.h"

struct nfc_run {
	uint32_t first, last;
	uint8_t order; /* canonical combining class */
};

struct nfc_pair {
	uint32_t whole, a, b; /* b 0: a stands alone */
};

struct nfc_join {
	uint32_t a, b, whole;
};

#include "model/nfc_table.h"

#define HANGUL 0xac00u
#define HANGUL_L 0x1100u
#define HANGUL_V 0x1161u
#define HANGUL_T 0x11a7u
#define HANGUL_L_COUNT 19u
#define HANGUL_V_COUNT 21u
#define HANGUL_T_COUNT 28u
#define HANGUL_COUNT (HANGUL_L_COUNT * HANGUL_V_COUNT * HANGUL_T_COUNT)

struct nfc {
	uint32_t *v;
	uint8_t *order;
	size_t count;
};

static uint8_t order_of(uint32_t c)
{
	size_t low = 0, high = ARRAY_COUNT(nfc_runs);
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (c > nfc_runs[middle].last)
			low = middle + 1;
		else
			high = middle;
	}
	return low < ARRAY_COUNT(nfc_runs) && c >= nfc_runs[low].first ? nfc_runs[low].order : 0;
}

static const struct nfc_pair *pair_of(uint32_t c)
{
	size_t low = 0, high = ARRAY_COUNT(nfc_pairs);
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (c > nfc_pairs[middle].whole)
			low = middle + 1;
		else
			high = middle;
	}
	return low < ARRAY_COUNT(nfc_pairs) && nfc_pairs[low].whole == c ? &nfc_pairs[low] : NULL;
}

static void push(struct nfc *n, uint32_t c)
{
	n->v[n->count] = c;
	n->order[n->count++] = order_of(c);
}

/* A chain of pairs is at most four long: its first parts are taken apart in turn. */
static void take_apart(struct nfc *n, uint32_t c)
{
	if (c >= HANGUL && c < HANGUL + HANGUL_COUNT) {
		uint32_t index = c - HANGUL, tail = index % HANGUL_T_COUNT;
		push(n, HANGUL_L + index / (HANGUL_V_COUNT * HANGUL_T_COUNT));
		push(n, HANGUL_V + index % (HANGUL_V_COUNT * HANGUL_T_COUNT) / HANGUL_T_COUNT);
		if (tail)
			push(n, HANGUL_T + tail);
		return;
	}
	uint32_t tails[4];
	size_t count = 0;
	for (const struct nfc_pair *pair; count < ARRAY_COUNT(tails) && (pair = pair_of(c));) {
		c = pair->a;
		if (pair->b)
			tails[count++] = pair->b;
	}
	push(n, c);
	while (count)
		push(n, tails[--count]);
}

static int compare_order(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

/* Stable by class, within each run of marks. Long runs are sorted, so that a text of nothing but
 * marks stays cheap. */
static int put_in_order(struct nfc *n)
{
	for (size_t start = 0, end; start < n->count; start = end) {
		for (end = start + 1; end < n->count && n->order[start] && n->order[end];)
			end++;
		size_t count = end - start;
		if (count < 2)
			continue;
		/* class, place in the run, character; a text has less than 2^32 characters */
		struct {
			uint64_t key;
			uint64_t character;
		} *items = malloc(count * sizeof(*items));
		if (!items)
			return -ENOMEM;
		for (size_t i = 0; i < count; i++) {
			items[i].key = (uint64_t)n->order[start + i] << 32 | i;
			items[i].character = n->v[start + i];
		}
		qsort(items, count, sizeof(*items), compare_order);
		for (size_t i = 0; i < count; i++) {
			n->v[start + i] = (uint32_t)items[i].character;
			n->order[start + i] = (uint8_t)(items[i].key >> 32);
		}
		free(items);
	}
	return 0;
}

/* Two characters as one; 0: they do not join. */
static uint32_t join(uint32_t a, uint32_t b)
{
	if (a >= HANGUL_L && a < HANGUL_L + HANGUL_L_COUNT && b >= HANGUL_V &&
	    b < HANGUL_V + HANGUL_V_COUNT)
		return HANGUL + ((a - HANGUL_L) * HANGUL_V_COUNT + (b - HANGUL_V)) * HANGUL_T_COUNT;
	if (a >= HANGUL && a < HANGUL + HANGUL_COUNT && (a - HANGUL) % HANGUL_T_COUNT == 0 &&
	    b > HANGUL_T && b < HANGUL_T + HANGUL_T_COUNT)
		return a + (b - HANGUL_T);
	size_t low = 0, high = ARRAY_COUNT(nfc_joins);
	while (low < high) {
		size_t middle = (low + high) / 2;
		const struct nfc_join *at = &nfc_joins[middle];
		if (a > at->a || (a == at->a && b > at->b))
			low = middle + 1;
		else
			high = middle;
	}
	bool found = low < ARRAY_COUNT(nfc_joins) && nfc_joins[low].a == a && nfc_joins[low].b == b;
	return found ? nfc_joins[low].whole : 0;
}

static void put_together(struct nfc *n)
{
	size_t to = 0, starter = SIZE_MAX;
	for (size_t i = 0; i < n->count; i++) {
		uint32_t c = n->v[i];
		uint8_t order = n->order[i];
		/* Blocked when something of its class or a starter stands between. */
		bool blocked = starter == SIZE_MAX ||
			       (to - 1 > starter && (n->order[to - 1] >= order || !order));
		uint32_t joined = blocked ? 0 : join(n->v[starter], c);
		if (joined) {
			n->v[starter] = joined;
			continue;
		}
		if (!order)
			starter = to;
		n->v[to] = c;
		n->order[to++] = order;
	}
	n->count = to;
}

int nfc_append(const char *text, size_t bytes, struct buf *out)
{
	/* Two bytes become at most three characters, three bytes at most four. */
	struct nfc n = { .v = malloc((2 * bytes + 4) * sizeof(*n.v)),
			 .order = malloc(2 * bytes + 4) };
	int error = n.v && n.order ? 0 : -ENOMEM;
	for (size_t at = 0; at < bytes && error >= 0;) {
		uint32_t character;
		int length = utf8_decode(text + at, bytes - at, &character);
		CHECK(length > 0);
		take_apart(&n, character);
		at += (size_t)length;
	}
	if (error >= 0)
		error = put_in_order(&n);
	if (error >= 0)
		put_together(&n);
	for (size_t i = 0; i < n.count && error >= 0; i++) {
		char encoded[4];
		buf_append(out, encoded, (size_t)utf8_encode(n.v[i], encoded));
	}
	free(n.v);
	free(n.order);
	return error < 0 || out->failed ? -ENOMEM : 0;
}
