#include "conductor/stop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "conductor/text.h"

static void borders(const char *text, uint32_t bytes, uint32_t fail[])
{
	uint32_t length = 0;
	fail[0] = 0;
	if (bytes)
		fail[1] = 0;
	for (uint32_t i = 1; i < bytes; i++) {
		while (length && text[i] != text[length])
			length = fail[length];
		if (text[i] == text[length])
			length++;
		fail[i + 1] = length;
	}
}

int stop_set_init(struct stop_set *set, const struct stop_text texts[], uint32_t count)
{
	size_t total = 0;
	*set = (struct stop_set){ 0 };
	if (count > STOP_TEXTS_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < count; i++) {
		if (!texts[i].bytes || texts[i].bytes > STOP_BYTES_MAX)
			return -EINVAL;
		total += texts[i].bytes;
	}
	if (total > STOP_BYTES_MAX)
		return -EINVAL;
	if (!count)
		return 0;
	set->texts = calloc(count, sizeof *set->texts);
	set->bytes = malloc(total);
	set->fails = malloc((total + count) * sizeof *set->fails);
	if (!set->texts || !set->bytes || !set->fails) {
		stop_set_fini(set);
		return -ENOMEM;
	}
	char *bytes = set->bytes;
	uint32_t *fails = set->fails;
	for (uint32_t i = 0; i < count; i++) {
		memcpy(bytes, texts[i].text, texts[i].bytes);
		borders(bytes, texts[i].bytes, fails);
		set->texts[i] = (struct stop_text){ bytes, texts[i].bytes, fails };
		bytes += texts[i].bytes;
		fails += texts[i].bytes + 1;
	}
	set->count = count;
	return 0;
}

void stop_set_fini(struct stop_set *set)
{
	free(set->texts);
	free(set->bytes);
	free(set->fails);
	*set = (struct stop_set){ 0 };
}

int stop_state_init(struct stop_state *state, const struct stop_set *set)
{
	*state = (struct stop_state){ 0 };
	if (!set->count)
		return 0;
	state->at = calloc(set->count, sizeof *state->at);
	return state->at ? 0 : -ENOMEM;
}

void stop_state_fini(struct stop_state *state)
{
	free(state->at);
	state->at = NULL;
}

/* Moves one automaton over the piece. Return: the longest tail it could still grow from. */
static uint32_t run_one(const struct stop_text *stop, struct stop_state *state, uint32_t which,
			const char *piece, size_t bytes, bool armed)
{
	uint32_t at = state->at[which];
	for (size_t i = 0; i < bytes; i++) {
		while (at && (at == stop->bytes || stop->text[at] != piece[i]))
			at = stop->fail[at];
		if (stop->text[at] == piece[i])
			at++;
		if (at != stop->bytes || !armed)
			continue;
		uint64_t end = state->total + i + 1, start = end - stop->bytes;
		if (!state->matched || start < state->cut) {
			state->matched = true;
			state->cut = start;
			state->cut_end = end;
			state->which = which;
		}
	}
	state->at[which] = at;
	/* Before min_tokens a whole match counts for nothing: only its border can still grow. */
	return at == stop->bytes ? stop->fail[at] : at;
}

static void remember(struct stop_state *state, const char *piece, size_t bytes)
{
	char joined[8];
	size_t take = MIN(bytes, sizeof state->recent);
	memcpy(joined, state->recent, state->recent_bytes);
	memcpy(joined + state->recent_bytes, piece + bytes - take, take);
	size_t all = state->recent_bytes + take, keep = MIN(all, sizeof state->recent);
	memcpy(state->recent, joined + all - keep, keep);
	state->recent_bytes = (uint32_t)keep;
}

bool stop_feed(const struct stop_set *set, struct stop_state *state, const char *piece,
	       size_t bytes, bool armed)
{
	uint64_t held = 0;
	if (state->matched)
		return true;
	if (!bytes)
		return false;
	for (uint32_t i = 0; i < set->count; i++) {
		uint32_t tail = run_one(&set->texts[i], state, i, piece, bytes, armed);
		held = MAX(held, (uint64_t)tail);
	}
	remember(state, piece, bytes);
	state->total += bytes;
	uint64_t unfinished = text_utf8_unfinished(state->recent, state->recent_bytes);
	state->safe = state->matched ? state->cut : state->total - MAX(held, unfinished);
	return state->matched;
}
