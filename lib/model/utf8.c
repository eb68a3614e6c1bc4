#include "model/utf8.h"

int utf8_decode(const char *text, size_t bytes, uint32_t *ret)
{
	const unsigned char *s = (const unsigned char *)text;
	if (s[0] < 0x80) {
		*ret = s[0];
		return 1;
	}
	if (s[0] < 0xc2 || s[0] > 0xf4)
		return -1;
	int length = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
	/* The second byte's range keeps out overlong forms, surrogates and beyond U+10FFFF. */
	unsigned char low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
	unsigned char high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
	uint32_t character = s[0] & (0x7fu >> length);
	for (int i = 1; i < length; i++) {
		if ((size_t)i >= bytes || s[i] < low || s[i] > high)
			return -i;
		character = character << 6 | (s[i] & 0x3f);
		low = 0x80;
		high = 0xbf;
	}
	*ret = character;
	return length;
}

int utf8_encode(uint32_t c, char ret[4])
{
	if (c < 0x80) {
		ret[0] = (char)c;
		return 1;
	}
	if (c < 0x800) {
		ret[0] = (char)(0xc0 | c >> 6);
		ret[1] = (char)(0x80 | (c & 0x3f));
		return 2;
	}
	if (c < 0x10000) {
		ret[0] = (char)(0xe0 | c >> 12);
		ret[1] = (char)(0x80 | (c >> 6 & 0x3f));
		ret[2] = (char)(0x80 | (c & 0x3f));
		return 3;
	}
	ret[0] = (char)(0xf0 | c >> 18);
	ret[1] = (char)(0x80 | (c >> 12 & 0x3f));
	ret[2] = (char)(0x80 | (c >> 6 & 0x3f));
	ret[3] = (char)(0x80 | (c & 0x3f));
	return 4;
}

/* Offset of the first byte that is not part of a character; @bytes when there is none. */
static size_t valid_prefix(const char *text, size_t bytes)
{
	size_t at = 0;
	while (at < bytes) {
		uint32_t character;
		int length = utf8_decode(text + at, bytes - at, &character);
		if (length < 0)
			break;
		at += (size_t)length;
	}
	return at;
}

bool utf8_valid(const char *text, size_t bytes)
{
	return valid_prefix(text, bytes) == bytes;
}

void utf8_replace(const char *text, size_t bytes, struct buf *out)
{
	while (bytes) {
		size_t valid = valid_prefix(text, bytes);
		buf_append(out, text, valid);
		text += valid;
		bytes -= valid;
		if (!bytes)
			break;
		uint32_t character;
		size_t invalid = (size_t)-utf8_decode(text, bytes, &character);
		buf_append(out, "\xef\xbf\xbd", 3);
		text += invalid;
		bytes -= invalid;
	}
}

bool utf8_is_space(uint32_t c, bool python)
{
	if (c < 0x80)
		return c == ' ' || (c >= 9 && c <= 13) || (python && c >= 0x1c && c <= 0x1f);
	return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
	       c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}
