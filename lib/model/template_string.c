/* Texts of templates: parts of texts share their bytes; what is built keeps its origins. */
#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "model/template_private.h"
#include "model/utf8.h"

const uint8_t template__foreign[1] = { 1 };

bool string_equal(struct string a, struct string b)
{
	return a.bytes == b.bytes && (!a.bytes || memcmp(a.data, b.data, a.bytes) == 0);
}

bool string_is(struct string a, const char *text)
{
	return string_equal(a, template__own(text));
}

struct string template__own(const char *text)
{
	return (struct string){ text, strlen(text), NULL };
}

struct string string_part(struct string s, size_t at, size_t bytes)
{
	bool mixed = s.origin && s.origin != template__foreign;
	return (struct string){ s.data + at, bytes, mixed ? s.origin + at : s.origin };
}

size_t string_characters(struct string s)
{
	size_t count = 0;
	for (size_t i = 0; i < s.bytes; i++)
		count += ((uint8_t)s.data[i] & 0xc0) != 0x80;
	return count;
}

size_t string_offset(struct string s, size_t character)
{
	size_t at = 0;
	for (; character && at < s.bytes; character--)
		at += utf8_bytes(s.data[at]);
	return MIN(at, s.bytes);
}

size_t string_find(struct string s, struct string needle, size_t from)
{
	if (from > s.bytes)
		return SIZE_MAX;
	if (!needle.bytes)
		return from;
	const char *found = memmem(s.data + from, s.bytes - from, needle.data, needle.bytes);
	return found ? (size_t)(found - s.data) : SIZE_MAX;
}

static bool in_set(struct string set, const char *text, size_t bytes)
{
	if (set.data)
		return memmem(set.data, set.bytes, text, bytes) != NULL;
	uint32_t character;
	return utf8_decode(text, bytes, &character) > 0 && utf8_is_space(character, true);
}

struct string string_strip(struct string s, struct string set, int sides)
{
	size_t start = 0, end = s.bytes;
	while ((sides & STRIP_LEFT) && start < end) {
		size_t bytes = utf8_bytes(s.data[start]);
		if (!in_set(set, s.data + start, bytes))
			break;
		start += bytes;
	}
	while ((sides & STRIP_RIGHT) && end > start) {
		size_t at = end - 1;
		while (at > start && ((uint8_t)s.data[at] & 0xc0) == 0x80)
			at--;
		if (!in_set(set, s.data + at, end - at))
			break;
		end = at;
	}
	return string_part(s, start, end - start);
}

void builder_init(struct string_builder *b, struct render *r)
{
	b->r = r;
	buf_init(&b->text, TEMPLATE_OUTPUT_BYTES_MAX);
	buf_init(&b->origin, TEMPLATE_OUTPUT_BYTES_MAX);
}

static void add_origin(struct buf *origin, struct string s)
{
	if (s.origin && s.origin != template__foreign) {
		buf_append(origin, s.origin, s.bytes);
		return;
	}
	char *room = buf_reserve(origin, s.bytes);
	if (!room)
		return;
	memset(room, s.origin ? 1 : 0, s.bytes);
	origin->bytes += s.bytes;
}

void builder_add(struct string_builder *b, struct string s)
{
	buf_append(&b->text, s.data, s.bytes);
	add_origin(&b->origin, s);
}

int builder_finish(struct string_builder *b, struct string *ret)
{
	size_t bytes = b->text.bytes;
	int error = template__charge(b->r, 1 + bytes / 64);
	if (error >= 0 && (b->text.failed || b->origin.failed))
		error = template__no_memory(b->r);
	if (error >= 0) {
		char *text = memory_copy(&b->r->memory, b->text.data, bytes);
		const char *first = b->origin.data;
		bool uniform = !bytes || !memcmp(first, first + 1, bytes - 1);
		const uint8_t *origin = bytes && uniform && first[0] ? template__foreign : NULL;
		if (!uniform)
			origin = (const uint8_t *)memory_copy(&b->r->memory, first, bytes);
		if (!text || (!uniform && !origin))
			error = template__no_memory(b->r);
		else
			*ret = (struct string){ text, bytes, origin };
	}
	buf_fini(&b->text);
	buf_fini(&b->origin);
	return error;
}

int template__emit(struct render *r, struct string string)
{
	int error = template__charge(r, 1 + string.bytes / 64);
	if (error < 0)
		return error;
	if (r->out->bytes + string.bytes > TEMPLATE_OUTPUT_BYTES_MAX)
		return template__no_memory(r);
	buf_append(r->out, string.data, string.bytes);
	if (r->origin)
		add_origin(r->origin, string);
	if (r->out->failed || (r->origin && r->origin->failed))
		return template__no_memory(r);
	return 0;
}
