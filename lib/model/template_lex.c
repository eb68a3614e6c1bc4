/*
 * Template source to tokens. Texts between tags lose white space here: trim_blocks drops the
 * first newline after a block tag or comment, lstrip_blocks the blanks before one that stands
 * first on its line, and - on either side of a tag drops all white space there, + nothing.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "model/template_private.h"
#include "model/utf8.h"

struct lexer {
	struct compiler *c;
	const char *source, *at, *end;
	const char *line_start; /* up to here lines are counted */
	uint32_t line;
	size_t capacity;
};

static uint32_t line_of(struct lexer *l, const char *at)
{
	for (; l->line_start < at; l->line_start++)
		l->line += *l->line_start == '\n';
	return l->line;
}

static struct token *push(struct lexer *l, enum token_kind kind, const char *at)
{
	struct compiler *c = l->c;
	if (c->token_count == l->capacity) {
		size_t capacity = l->capacity ? l->capacity * 2 : 256;
		struct token *tokens = realloc(c->tokens, capacity * sizeof(tokens[0]));
		if (!tokens) {
			c->result = -ENOMEM;
			return NULL;
		}
		c->tokens = tokens;
		l->capacity = capacity;
	}
	struct token *token = &c->tokens[c->token_count++];
	*token = (struct token){ .kind = kind, .line = line_of(l, at) };
	return token;
}

static bool push_text(struct lexer *l, enum token_kind kind, const char *at, const char *end)
{
	struct token *token = push(l, kind, at);
	if (token)
		token->text = (struct string){ at, (size_t)(end - at), NULL };
	return token != NULL;
}

static bool is_blank(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

static const char *skip_blanks(const struct lexer *l, const char *at)
{
	while (at < l->end && is_blank(*at))
		at++;
	return at;
}

/* The end of a text before a tag that opens at @tag with the sign @sign. */
static const char *text_end(const struct lexer *l, const char *text, const char *tag, char sign,
			    bool output)
{
	const char *end = tag;
	if (sign == '-') {
		while (end > text && is_blank(end[-1]))
			end--;
		return end;
	}
	if (sign == '+' || output)
		return end;
	while (end > text && (end[-1] == ' ' || end[-1] == '\t'))
		end--;
	bool starts_line = end == l->source || end[-1] == '\n';
	return starts_line ? end : tag;
}

/* Where the text goes on behind a tag that closes at @at (behind its last brace). */
static const char *text_begin(const struct lexer *l, const char *at, char sign, bool output)
{
	if (sign == '-')
		return skip_blanks(l, at);
	if (sign != '+' && !output && at < l->end && *at == '\n')
		return at + 1;
	return at;
}

/* Matches "{%[-+]? *NAME *[-+]?%}" at @at. Return: its end or NULL; the signs. */
static const char *match_bare_tag(const struct lexer *l, const char *at, const char *name,
				  char *ret_before, char *ret_after)
{
	*ret_before = *ret_after = 0;
	if (l->end - at < 4 || at[0] != '{' || at[1] != '%')
		return NULL;
	at += 2;
	if (*at == '-' || *at == '+')
		*ret_before = *at++;
	at = skip_blanks(l, at);
	size_t bytes = strlen(name);
	if ((size_t)(l->end - at) < bytes || memcmp(at, name, bytes) != 0)
		return NULL;
	at = skip_blanks(l, at + bytes);
	if (at < l->end && (*at == '-' || *at == '+'))
		*ret_after = *at++;
	return l->end - at >= 2 && at[0] == '%' && at[1] == '}' ? at + 2 : NULL;
}

/* {% raw %} at l->at: its text up to {% endraw %} stands as it is. Return: whether it was one. */
static bool lex_raw(struct lexer *l)
{
	char before, after, end_before, end_after;
	const char *text = match_bare_tag(l, l->at, "raw", &before, &after);
	if (!text)
		return false;
	text = text_begin(l, text, after, false);
	for (const char *at = text; at < l->end; at++) {
		const char *end = match_bare_tag(l, at, "endraw", &end_before, &end_after);
		if (!end)
			continue;
		(void)push_text(l, TOKEN_TEXT, text, text_end(l, text, at, end_before, false));
		l->at = text_begin(l, end, end_after, false);
		return true;
	}
	l->c->result = template__compile_fail(l->c, line_of(l, l->at), "raw without endraw");
	return true;
}

static bool lex_comment(struct lexer *l)
{
	const char *end = l->at + 2;
	while (l->end - end >= 2 && !(end[0] == '#' && end[1] == '}'))
		end++;
	if (l->end - end < 2) {
		l->c->result = template__compile_fail(l->c, line_of(l, l->at),
						      "a comment does not end");
		return false;
	}
	char sign = end > l->at + 2 && (end[-1] == '-' || end[-1] == '+') ? end[-1] : 0;
	l->at = text_begin(l, end + 2, sign, false);
	return true;
}

static bool lex_number(struct lexer *l)
{
	const char *start = l->at;
	char digits[64];
	size_t count = 0;
	bool real = false;
	while (l->at < l->end && count < sizeof(digits) - 1) {
		char c = *l->at;
		bool exponent = (c == 'e' || c == 'E') && l->end - l->at > 1 &&
				(isdigit((unsigned char)l->at[1]) ||
				 ((l->at[1] == '-' || l->at[1] == '+') && l->end - l->at > 2 &&
				  isdigit((unsigned char)l->at[2])));
		bool point = c == '.' && !real && l->end - l->at > 1 &&
			     isdigit((unsigned char)l->at[1]);
		if (!isdigit((unsigned char)c) && c != '_' && !point && !exponent)
			break;
		if (point || exponent)
			real = true;
		if (c != '_')
			digits[count++] = c;
		l->at++;
		if (exponent && count < sizeof(digits) - 1)
			digits[count++] = *l->at++;
	}
	digits[count] = 0;
	struct token *token = push(l, real ? TOKEN_FLOAT : TOKEN_INT, start);
	if (!token)
		return false;
	errno = 0;
	if (real)
		token->real = strtod(digits, NULL);
	else
		token->integer = strtoll(digits, NULL, 10);
	if (errno == ERANGE || count == sizeof(digits) - 1)
		l->c->result = template__compile_fail(l->c, token->line, "a number is too large");
	return l->c->result == 0;
}

/* The character of \xNN, \uNNNN or \UNNNNNNNN; -1: not one. */
static int64_t unescape_hex(const char *at, const char *end, int digits)
{
	int64_t value = 0;
	if (end - at < digits)
		return -1;
	for (int i = 0; i < digits; i++) {
		if (!isxdigit((unsigned char)at[i]))
			return -1;
		char digit = (char)tolower((unsigned char)at[i]);
		value = value * 16 + (digit <= '9' ? digit - '0' : digit - 'a' + 10);
	}
	return value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff) ? -1 : value;
}

/* As Python reads a literal: an unknown escape keeps its backslash. Never grows. */
static size_t unescape(const char *at, const char *end, char *ret)
{
	static const char from[] = "ntr\\'\"abfv0", to[] = "\n\t\r\\'\"\a\b\f\v";
	char *out = ret;
	while (at < end) {
		if (*at != '\\' || end - at < 2) {
			*out++ = *at++;
			continue;
		}
		char c = at[1];
		const char *known = strchr(from, c);
		int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
		int64_t character = digits ? unescape_hex(at + 2, end, digits) : -1;
		if (c == '\n') {
			at += 2;
		} else if (known && *known) {
			*out++ = to[known - from];
			at += 2;
		} else if (character >= 0) {
			out += utf8_encode((uint32_t)character, out);
			at += 2 + digits;
		} else {
			*out++ = *at++;
			*out++ = *at++;
		}
	}
	return (size_t)(out - ret);
}

static bool lex_string(struct lexer *l)
{
	const char *start = l->at, *end = start + 1;
	while (end < l->end && *end != *start)
		end += *end == '\\' && l->end - end > 1 ? 2 : 1;
	if (end >= l->end) {
		l->c->result = template__compile_fail(l->c, line_of(l, start),
						      "a string does not end");
		return false;
	}
	struct token *token = push(l, TOKEN_STRING, start);
	char *text = memory_alloc(&l->c->t->memory, (size_t)(end - start), 1);
	if (!token || !text) {
		l->c->result = -ENOMEM;
		return false;
	}
	token->text = (struct string){ text, unescape(start + 1, end, text), NULL };
	l->at = end + 1;
	return true;
}

static bool lex_operator(struct lexer *l)
{
	static const char *const operators[] = {
		"==", "!=", "<=", ">=", "//", "**", "+", "-", "*", "/", "%", "~", "(", ")",
		"[",  "]",  "{",  "}",	",",  ".",  ":", "|", "=", "<", ">", ";",
	};
	for (size_t i = 0; i < ARRAY_COUNT(operators); i++) {
		size_t bytes = strlen(operators[i]);
		if ((size_t)(l->end - l->at) < bytes || memcmp(l->at, operators[i], bytes) != 0)
			continue;
		bool pushed = push_text(l, TOKEN_OPERATOR, l->at, l->at + bytes);
		l->at += bytes;
		return pushed;
	}
	l->c->result = template__compile_fail(l->c, line_of(l, l->at),
					      "unexpected character '%.*s'",
					      (int)MIN(utf8_bytes(*l->at), (size_t)(l->end - l->at)),
					      l->at);
	return false;
}

static bool lex_token(struct lexer *l)
{
	char c = *l->at;
	if (isdigit((unsigned char)c))
		return lex_number(l);
	if (c == '"' || c == '\'')
		return lex_string(l);
	if (isalpha((unsigned char)c) || c == '_') {
		const char *start = l->at;
		while (l->at < l->end && (isalnum((unsigned char)*l->at) || *l->at == '_'))
			l->at++;
		return push_text(l, TOKEN_NAME, start, l->at);
	}
	return lex_operator(l);
}

/* The inside of a tag, from behind its opening brace. Braces that balance are not its end. */
static bool lex_tag(struct lexer *l, bool output)
{
	int depth = 0;
	char close = output ? '}' : '%';
	uint32_t line = line_of(l, l->at);
	if (!push(l, output ? TOKEN_OUTPUT_BEGIN : TOKEN_BLOCK_BEGIN, l->at))
		return false;
	l->at += 2;
	if (l->at < l->end && (*l->at == '-' || *l->at == '+'))
		l->at++;
	for (;;) {
		l->at = skip_blanks(l, l->at);
		if (l->at >= l->end) {
			l->c->result = template__compile_fail(l->c, line, "a tag does not end");
			return false;
		}
		const char *end = l->at;
		char sign = *end == '-' || *end == '+' ? *end++ : 0;
		if (depth == 0 && l->end - end >= 2 && end[0] == close && end[1] == '}') {
			if (!push(l, output ? TOKEN_OUTPUT_END : TOKEN_BLOCK_END, l->at))
				return false;
			l->at = text_begin(l, end + 2, sign, output);
			return true;
		}
		char c = *l->at;
		depth += c == '(' || c == '[' || c == '{';
		depth -= depth > 0 && (c == ')' || c == ']' || c == '}');
		if (!lex_token(l))
			return false;
	}
}

static void lex_all(struct lexer *l)
{
	while (l->at < l->end && !l->c->result) {
		const char *tag = l->at;
		while (l->end - tag >= 2 &&
		       !(tag[0] == '{' && (tag[1] == '{' || tag[1] == '%' || tag[1] == '#')))
			tag++;
		bool found = l->end - tag >= 2;
		if (!found)
			tag = l->end;
		bool output = found && tag[1] == '{';
		char sign = found && l->end - tag > 2 ? tag[2] : 0;
		const char *end = found ? text_end(l, l->at, tag, sign, output) : tag;
		if (end > l->at && !push_text(l, TOKEN_TEXT, l->at, end))
			return;
		l->at = tag;
		if (!found)
			return;
		if (tag[1] == '#' ? !lex_comment(l)
				  : (output || !lex_raw(l)) && !lex_tag(l, output))
			return;
	}
}

/* One kind of newline, and without the one at the very end, as Jinja reads a source. */
static char *normalize(struct compiler *c, const char *source, size_t *ret_bytes)
{
	size_t bytes = strlen(source), count = 0;
	char *text = memory_alloc(&c->t->memory, bytes + 1, 1);
	if (!text)
		return NULL;
	for (size_t i = 0; i < bytes; i++) {
		if (source[i] == '\r' && source[i + 1] == '\n')
			continue;
		text[count++] = source[i] == '\r' ? '\n' : source[i];
	}
	if (count && text[count - 1] == '\n')
		count--;
	text[count] = 0;
	*ret_bytes = count;
	return text;
}

int template__lex(struct compiler *c, const char *source)
{
	size_t bytes;
	char *text = normalize(c, source, &bytes);
	if (!text)
		return -ENOMEM;
	struct lexer l = { .c = c, .source = text, .at = text, .end = text + bytes };
	l.line_start = text;
	l.line = 1;
	lex_all(&l);
	if (!c->result)
		(void)push(&l, TOKEN_END, l.end);
	return c->result;
}
