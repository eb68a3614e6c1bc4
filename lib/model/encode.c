/* tokenize(): bytes to characters, characters to stretches between special tokens, stretches to
 * pre-tokens and merges. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "model/nfc.h"
#include "model/tokenizer_private.h"
#include "model/utf8.h"

#define SPM_SPACE "\xe2\x96\x81" /* U+2581 */

/* Patterns backtrack at most along a run of one class, so this is far from what honest text
 * needs; a hostile pattern (tokenizer.json) ends with -E2BIG instead of hanging. */
#define MATCH_LIMIT_BASE (1u << 20)
#define MATCH_LIMIT_PER_BYTE 16

struct whole {
	uint32_t id; /* SYMBOL_NONE: no match */
	size_t bytes;
};

/* The longest special token at @at. Control tokens count only when @flags says so and all their
 * bytes are trusted. */
static struct whole match_whole(const struct tokenizer *t, struct text text, size_t at,
				const uint8_t *trusted, int flags)
{
	struct whole best = { SYMBOL_NONE, 0 };
	bool control = flags & TOKENIZE_SPECIAL;
	uint32_t node = 0;
	for (size_t i = at; i < text.bytes; i++) {
		uint64_t next;
		if (!map_get(&t->trie, (uint64_t)node << 8 | (uint8_t)text.data[i], &next))
			break;
		node = (uint32_t)next;
		if (trusted && !trusted[i])
			control = false;
		uint32_t id = t->trie_ids[node];
		if (id != SYMBOL_NONE && (control || t->vocab->types[id] == VOCAB_USER_DEFINED))
			best = (struct whole){ id, i + 1 - at };
	}
	return best;
}

static int encode_spm(const struct tokenizer *t, struct scratch *s, struct text text, bool first)
{
	enum space_prefix prefix = t->vocab->space_prefix;
	struct buf spaced;
	buf_init(&spaced, 0);
	if (prefix == SPACE_PREFIX_ALWAYS || (prefix == SPACE_PREFIX_FIRST && first))
		buf_append_text(&spaced, SPM_SPACE);
	for (size_t i = 0; i < text.bytes;) {
		const char *space = memchr(text.data + i, ' ', text.bytes - i);
		size_t run = space ? (size_t)(space - text.data) - i : text.bytes - i;
		buf_append(&spaced, text.data + i, run);
		i += run;
		if (space) {
			buf_append_text(&spaced, SPM_SPACE);
			i++;
		}
	}
	int error = spaced.failed ? -ENOMEM
				  : merge__spm(t, s, (struct text){ spaced.data, spaced.bytes });
	buf_fini(&spaced);
	return error;
}

static bool is_ascii(struct text text)
{
	for (size_t i = 0; i < text.bytes; i++) {
		if ((uint8_t)text.data[i] >= 0x80)
			return false;
	}
	return true;
}

static int encode_normal(const struct tokenizer *t, struct scratch *s, struct text text, bool first)
{
	switch (t->vocab->kind) {
	case VOCAB_BPE:
		return pre__split(t, s, 0, text);
	case VOCAB_SPM:
		return encode_spm(t, s, text, first);
	default:
		return 0;
	}
}

static int encode_stretch(const struct tokenizer *t, struct scratch *s, struct text text, bool first)
{
	if (!text.bytes)
		return 0;
	if (!t->vocab->normalize_nfc || is_ascii(text))
		return encode_normal(t, s, text, first);
	struct buf normal;
	buf_init(&normal, 0);
	int error = nfc_append(text.data, text.bytes, &normal);
	if (error >= 0)
		error = encode_normal(t, s, (struct text){ normal.data, normal.bytes }, first);
	buf_fini(&normal);
	return error;
}

static size_t spaces_before(struct text text, size_t start, size_t end)
{
	size_t at = end;
	while (at > start) {
		size_t character = at - 1;
		uint32_t value;
		while (character > start && ((uint8_t)text.data[character] & 0xc0) == 0x80)
			character--;
		if (utf8_decode(text.data + character, at - character, &value) < 0 ||
		    !utf8_is_space(value, false))
			break;
		at = character;
	}
	return at;
}

static size_t spaces_after(struct text text, size_t at)
{
	while (at < text.bytes) {
		uint32_t value;
		int length = utf8_decode(text.data + at, text.bytes - at, &value);
		if (length < 0 || !utf8_is_space(value, false))
			break;
		at += (size_t)length;
	}
	return at;
}

static int encode_valid(const struct tokenizer *t, struct scratch *s, struct text text,
			const uint8_t *trusted, int flags)
{
	size_t done = 0;
	int error = 0;
	for (size_t at = 0; at < text.bytes && error >= 0;) {
		uint8_t first = (uint8_t)text.data[at];
		if (!(t->trie_first[first / 64] >> (first % 64) & 1)) {
			at++;
			continue;
		}
		struct whole whole = match_whole(t, text, at, trusted, flags);
		if (whole.id == SYMBOL_NONE) {
			at++;
			continue;
		}
		uint8_t strips = t->vocab->strips ? t->vocab->strips[whole.id] : 0;
		size_t end = strips & VOCAB_STRIP_LEFT ? spaces_before(text, done, at) : at;
		struct text stretch = { text.data + done, end - done };
		error = encode_stretch(t, s, stretch, done == 0);
		if (error >= 0)
			error = token_ids_push(s->ids, whole.id);
		at += whole.bytes;
		if (strips & VOCAB_STRIP_RIGHT)
			at = spaces_after(text, at);
		done = at;
	}
	if (error < 0)
		return error;
	struct text rest = { text.data + done, text.bytes - done };
	return encode_stretch(t, s, rest, done == 0);
}

static int scratch_init(struct scratch *s, size_t bytes, struct token_ids *ids)
{
	*s = (struct scratch){ .ids = ids };
	s->match = pcre2_match_data_create(1, NULL);
	s->match_context = pcre2_match_context_create(NULL);
	if (!s->match || !s->match_context)
		return -ENOMEM;
	uint64_t limit = MATCH_LIMIT_BASE + MATCH_LIMIT_PER_BYTE * (uint64_t)bytes;
	pcre2_set_match_limit(s->match_context, (uint32_t)MIN(limit, (uint64_t)UINT32_MAX));
	return 0;
}

static void scratch_fini(struct scratch *s)
{
	free(s->items);
	free(s->heap);
	pcre2_match_data_free(s->match);
	pcre2_match_context_free(s->match_context);
}

int tokenizer__encode(const struct tokenizer *t, struct text text, const uint8_t *trusted,
		      int flags, struct token_ids *ids)
{
	struct scratch s;
	struct buf replaced;
	uint32_t count = ids->count;
	buf_init(&replaced, 0);
	int error = scratch_init(&s, text.bytes, ids);
	if (error >= 0 && (flags & TOKENIZE_ADD_BOS) && t->config->add_bos)
		error = token_ids_push(ids, (uint32_t)t->config->bos_id);
	if (error >= 0 && !utf8_valid(text.data, text.bytes)) {
		CHECK(!trusted); /* templates render valid text */
		utf8_replace(text.data, text.bytes, &replaced);
		text = (struct text){ replaced.data, replaced.bytes };
		if (replaced.failed)
			error = -ENOMEM;
	}
	if (error >= 0)
		error = encode_valid(t, &s, text, trusted, flags);
	if (error < 0)
		ids->count = count;
	buf_fini(&replaced);
	scratch_fini(&s);
	return error;
}

int tokenize(const struct tokenizer *t, const char *text, size_t bytes, int flags,
	     struct token_ids *ids)
{
	return tokenizer__encode(t, (struct text){ text, bytes }, NULL, flags, ids);
}
