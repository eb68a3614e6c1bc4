/*
 * Stop strings and the text that may leave.
 *
 * After every token: if any stop string occurs in the text so far, the text is cut at the
 * smallest start of any occurrence, and the choice is over. Otherwise the longest tail that is a
 * proper prefix of a stop string is held back, and any unfinished UTF-8 sequence; `safe` is how
 * many bytes may be out. At the end the held tail goes out.
 *
 * One Knuth-Morris-Pratt automaton per stop string, so a byte costs O(stop strings), amortised,
 * whatever the strings are, and no text is kept here.
 */
#ifndef BATON_CONDUCTOR_STOP_H
#define BATON_CONDUCTOR_STOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STOP_TEXTS_MAX 1024
#define STOP_BYTES_MAX (64u << 10) /* of all texts together */

struct stop_text {
	const char *text; /* into the set's own memory */
	uint32_t bytes;
	const uint32_t *fail; /* [bytes + 1] longest proper border of the first i bytes */
};

struct stop_set { /* one per request */
	struct stop_text *texts;
	uint32_t count;
	char *bytes;
	uint32_t *fails;
};

struct stop_state { /* one per choice */
	uint32_t *at; /* [count] bytes of each stop string that the tail matches */
	uint64_t total, safe; /* bytes of raw text */
	char recent[4];       /* the last bytes, for UTF-8 */
	uint32_t recent_bytes;
	bool matched;
	uint64_t cut, cut_end; /* where the match begins and ends */
	uint32_t which;
};

/* @texts: [count], each of 1 byte or more; copied. Return: 0, -EINVAL past the bounds, -ENOMEM. */
int stop_set_init(struct stop_set *set, const struct stop_text texts[], uint32_t count);
void stop_set_fini(struct stop_set *set);
int stop_state_init(struct stop_state *state, const struct stop_set *set);
void stop_state_fini(struct stop_state *state);

/* One token's bytes. @armed: matches count (false before min_tokens). Return: matched. */
bool stop_feed(const struct stop_set *set, struct stop_state *state, const char *piece,
	       size_t bytes, bool armed);

#endif
