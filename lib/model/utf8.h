/* UTF-8 as the tokenizer and the templates need it. */
#ifndef BATON_MODEL_UTF8_H
#define BATON_MODEL_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* Decodes the character at @text[0] into @ret. Return: its bytes; or, negated, the length of the
 * maximal invalid part (1..3), as Unicode's "substitution of maximal subparts" has it. */
int utf8_decode(const char *text, size_t bytes, uint32_t *ret);
/* Writes 1..4 bytes. Return: how many. */
int utf8_encode(uint32_t character, char ret[4]);
bool utf8_valid(const char *text, size_t bytes);
/* Appends @text with each maximal invalid part as U+FFFD. */
void utf8_replace(const char *text, size_t bytes, struct buf *out);
/* Bytes of the character whose first byte is @lead, in valid text. */
static inline size_t utf8_bytes(char lead)
{
	unsigned char c = (unsigned char)lead;
	return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}
/* Unicode's White_Space, and with @python also U+001C..U+001F, which str.strip() strips. */
bool utf8_is_space(uint32_t character, bool python);

#endif
