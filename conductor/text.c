#include "conductor/text.h"

#include <string.h>

size_t text_utf8_step(const unsigned char *text, size_t bytes, bool *ret_valid,
		      bool *ret_unfinished)
{
	unsigned char lead = text[0];
	size_t need;
	unsigned char low = 0x80, high = 0xbf; /* bounds of the second byte */
	*ret_valid = *ret_unfinished = false;
	if (lead < 0x80) {
		*ret_valid = true;
		return 1;
	}
	if (lead >= 0xc2 && lead <= 0xdf) {
		need = 2;
	} else if (lead >= 0xe0 && lead <= 0xef) {
		need = 3;
		low = lead == 0xe0 ? 0xa0 : 0x80;
		high = lead == 0xed ? 0x9f : 0xbf;
	} else if (lead >= 0xf0 && lead <= 0xf4) {
		need = 4;
		low = lead == 0xf0 ? 0x90 : 0x80;
		high = lead == 0xf4 ? 0x8f : 0xbf;
	} else {
		return 1;
	}
	size_t at = 1;
	for (; at < need && at < bytes; at++) {
		if (text[at] < low || text[at] > high)
			return at;
		low = 0x80;
		high = 0xbf;
	}
	*ret_valid = at == need;
	*ret_unfinished = at < need;
	return at;
}

size_t text_utf8_unfinished(const char *text, size_t bytes)
{
	for (size_t back = 1; back <= 3 && back <= bytes; back++) {
		unsigned char c = (unsigned char)text[bytes - back];
		if ((c & 0xc0) == 0x80)
			continue;
		bool valid, unfinished;
		size_t taken = text_utf8_step((const unsigned char *)text + bytes - back, back,
					      &valid, &unfinished);
		return unfinished && taken == back ? back : 0;
	}
	return 0;
}

size_t text_utf8_count(const char *text, size_t bytes)
{
	size_t count = 0;
	for (size_t at = 0; at < bytes; count++) {
		bool valid, unfinished;
		at += text_utf8_step((const unsigned char *)text + at, bytes - at, &valid,
				     &unfinished);
	}
	return count;
}

static void escape_ascii(struct buf *out, unsigned char c)
{
	switch (c) {
	case '"': buf_append(out, "\\\"", 2); break;
	case '\\': buf_append(out, "\\\\", 2); break;
	case '\n': buf_append(out, "\\n", 2); break;
	case '\r': buf_append(out, "\\r", 2); break;
	case '\t': buf_append(out, "\\t", 2); break;
	default: buf_printf(out, "\\u%04x", c);
	}
}

void text_json(struct buf *out, const char *text, size_t bytes)
{
	const unsigned char *p = (const unsigned char *)text;
	size_t plain = 0; /* where the run of bytes that need nothing began */
	size_t at = 0;
	buf_append(out, "\"", 1);
	while (at < bytes) {
		bool valid, unfinished;
		size_t step = text_utf8_step(p + at, bytes - at, &valid, &unfinished);
		if (valid && p[at] >= 0x20 && p[at] != '"' && p[at] != '\\' && p[at] != 0x7f) {
			at += step;
			continue;
		}
		buf_append(out, text + plain, at - plain);
		if (valid)
			escape_ascii(out, p[at]);
		else
			buf_append(out, "\xef\xbf\xbd", 3);
		at += step;
		plain = at;
	}
	buf_append(out, text + plain, at - plain);
	buf_append(out, "\"", 1);
}

void text_json_cstr(struct buf *out, const char *text)
{
	text_json(out, text, strlen(text));
}
