/*
 * Pre-tokenizers: what a model's BPE never merges across. A vocabulary has a list of patterns;
 * each isolates its matches within the pieces that the one before left, and what lies between
 * two matches is a piece too.
 *
 * Patterns are written for other regex engines, whose \s is Unicode's White_Space. PCRE2's also
 * takes U+180E, so \s and \S are spelt out before compiling.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "model/tokenizer_private.h"
#include "model/utf8.h"

#define SPACE_CLASS "\\p{Z}\\x{9}-\\x{d}\\x{85}"

#define GPT2_PATTERN                                                                             \
	"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define CL100K_PATTERN(digits)                                                                   \
	"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits               \
	"| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define WORD_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define WORD_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K_PATTERN(contraction, digits)                                                       \
	"[^\\r\\n\\p{L}\\p{N}]?" WORD_UPPER "*" WORD_LOWER "+" contraction                       \
	"|[^\\r\\n\\p{L}\\p{N}]?" WORD_UPPER "+" WORD_LOWER "*" contraction "|\\p{N}" digits     \
	"| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

struct pre {
	const char *names; /* GGUF's tokenizer.ggml.pre, each between spaces */
	bool ignore_merges, add_bos;
	const char *patterns[VOCAB_PATTERNS_MAX];
};

static const struct pre pres[] = {
	{ " llama-bpe llama3 llama-v3 falcon3 pixtral ", true, true, { CL100K_PATTERN("{1,3}") } },
	{ " smaug-bpe dbrx ", false, false, { CL100K_PATTERN("{1,3}") } },
	{ " qwen2 deepseek-r1-qwen stablelm2 megrez ", false, false, { CL100K_PATTERN("") } },
	{ " smollm starcoder refact command-r codeshell exaone minerva-7b ",
	  false,
	  false,
	  { "\\p{N}", GPT2_PATTERN } },
	{ " gpt-2 gpt2 phi-2 mpt olmo jais trillion roberta-bpe gigachat jina-es jina-de "
	  "jina-v2-es jina-v2-de ",
	  false,
	  false,
	  { GPT2_PATTERN } },
	{ " tekken ", true, true, { O200K_PATTERN("", "") } },
	{ " gpt-4o llama4 ",
	  false,
	  false,
	  { O200K_PATTERN("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "{1,3}") } },
	{ " falcon ",
	  false,
	  false,
	  { "[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2_PATTERN, "[0-9][0-9][0-9]" } },
	{ " deepseek-coder ",
	  false,
	  false,
	  { "[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}"
	    "\\x{ac00}-\\x{d7ff}]+", "\\p{N}" } },
	{ " deepseek-v3 ",
	  false,
	  false,
	  { "\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
	    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"
	    "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" } },
	{ " default ",
	  false,
	  false,
	  { "[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2_PATTERN, "\\p{N}+", "[0-9][0-9][0-9]" } },
};

int vocab__set_pre(struct vocab *vocab, struct text name)
{
	char wanted[64];
	if (!name.bytes) /* files older than the key */
		name = TEXT("default");
	if (name.bytes > 32 || memchr(name.data, ' ', name.bytes))
		return -EINVAL;
	snprintf(wanted, sizeof(wanted), " %.*s ", (int)name.bytes, name.data);
	for (size_t i = 0; i < ARRAY_COUNT(pres); i++) {
		if (!strstr(pres[i].names, wanted))
			continue;
		for (size_t k = 0; k < VOCAB_PATTERNS_MAX && pres[i].patterns[k]; k++) {
			const char *pattern = pres[i].patterns[k];
			vocab->patterns[k] = (struct text){ pattern, strlen(pattern) };
			vocab->pattern_count = (uint32_t)k + 1;
		}
		vocab->ignore_merges = pres[i].ignore_merges;
		vocab->default_add_bos = pres[i].add_bos;
		return 0;
	}
	return -EINVAL;
}

/* Spells out \s and \S, in and outside of classes. A negated \S within a class has no short
 * spelling; it keeps PCRE2's meaning. */
static void spell_spaces(struct text pattern, struct buf *out)
{
	bool in_class = false;
	for (size_t i = 0; i < pattern.bytes; i++) {
		char c = pattern.data[i];
		if (c == '\\' && i + 1 < pattern.bytes) {
			char escaped = pattern.data[++i];
			if (escaped == 's' && in_class)
				buf_append_text(out, SPACE_CLASS);
			else if (escaped == 's')
				buf_append_text(out, "[" SPACE_CLASS "]");
			else if (escaped == 'S' && !in_class)
				buf_append_text(out, "[^" SPACE_CLASS "]");
			else
				buf_append(out, &pattern.data[i - 1], 2);
			continue;
		}
		if (c == '[' && !in_class) {
			in_class = true;
			/* A ] straight after the opening is a member. */
			buf_append(out, &c, 1);
			if (i + 1 < pattern.bytes && pattern.data[i + 1] == '^')
				buf_append(out, &pattern.data[++i], 1);
			if (i + 1 < pattern.bytes && pattern.data[i + 1] == ']')
				buf_append(out, &pattern.data[++i], 1);
			continue;
		}
		if (c == ']')
			in_class = false;
		buf_append(out, &c, 1);
	}
}

static int compile_pattern(struct model *model, struct text pattern, pcre2_code **ret)
{
	struct buf spelt;
	buf_init(&spelt, 1 << 20);
	spell_spaces(pattern, &spelt);
	if (spelt.failed) {
		buf_fini(&spelt);
		return -ENOMEM;
	}
	int code;
	PCRE2_SIZE at;
	*ret = pcre2_compile((PCRE2_SPTR)(spelt.data ? spelt.data : ""), spelt.bytes,
			     PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
	buf_fini(&spelt);
	if (!*ret) {
		PCRE2_UCHAR text[120];
		pcre2_get_error_message(code, text, sizeof(text));
		return model__fail(model, "a pre-tokenizer pattern does not compile: %s at byte %zu",
				   (const char *)text, (size_t)at);
	}
	/* Optional speed: where executable memory is forbidden the interpreter does the same. */
	(void)pcre2_jit_compile(*ret, PCRE2_JIT_COMPLETE);
	return 0;
}

int pre__compile(struct model *model, struct tokenizer *t)
{
	for (uint32_t i = 0; i < model->vocab.pattern_count; i++) {
		int error = compile_pattern(model, model->vocab.patterns[i], &t->patterns[i]);
		if (error < 0)
			return error;
		t->pattern_count++;
	}
	return 0;
}

static int match(const pcre2_code *code, struct scratch *s, struct text text, size_t from)
{
	int result = pcre2_match(code, (PCRE2_SPTR)text.data, text.bytes, from, PCRE2_NO_UTF_CHECK,
				 s->match, s->match_context);
	if (result == PCRE2_ERROR_JIT_STACKLIMIT)
		result = pcre2_match(code, (PCRE2_SPTR)text.data, text.bytes, from,
				     PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->match, s->match_context);
	return result;
}

int pre__split(const struct tokenizer *t, struct scratch *s, uint32_t level, struct text text)
{
	if (!text.bytes)
		return 0;
	if (level == t->pattern_count)
		return merge__bpe(t, s, text);
	size_t done = 0, from = 0;
	while (from < text.bytes) {
		int result = match(t->patterns[level], s, text, from);
		if (result == PCRE2_ERROR_NOMATCH)
			break;
		if (result < 0)
			return result == PCRE2_ERROR_NOMEMORY ? -ENOMEM : -E2BIG;
		/* The levels below use the same match data, so the bounds are copied. */
		const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(s->match);
		size_t start = bounds[0], end = bounds[1];
		if (end <= start || start < from) { /* an empty match isolates nothing */
			from += utf8_bytes(text.data[from]);
			continue;
		}
		struct text gap = { text.data + done, start - done };
		struct text piece = { text.data + start, end - start };
		int error = pre__split(t, s, level + 1, gap);
		if (error < 0 || (error = pre__split(t, s, level + 1, piece)) < 0)
			return error;
		done = from = end;
	}
	struct text rest = { text.data + done, text.bytes - done };
	return pre__split(t, s, level + 1, rest);
}
