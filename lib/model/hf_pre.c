/* pre_tokenizer and normalizer of tokenizer.json, as patterns and flags of the vocabulary. */
#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "model/hf.h"

#define SPM_SPACE "\xe2\x96\x81" /* U+2581 */

static const char *string_of(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));
	return text ? text : "";
}

static bool is_type(const json_t *object, const char *type)
{
	return strcmp(string_of(object, "type"), type) == 0;
}

static int add_pattern(struct model *model, const char *pattern, size_t bytes)
{
	struct vocab *v = &model->vocab;
	if (v->pattern_count == VOCAB_PATTERNS_MAX)
		return model__fail(model, "tokenizer.json splits in more than %d steps",
				   VOCAB_PATTERNS_MAX);
	char *copy = model__copy(model, (struct text){ pattern, bytes });
	if (!copy)
		return -ENOMEM;
	v->patterns[v->pattern_count++] = (struct text){ copy, bytes };
	return 0;
}

static int add_text_pattern(struct model *model, const char *pattern)
{
	return add_pattern(model, pattern, strlen(pattern));
}

/* Every byte that means something in a pattern gets a backslash. */
static int add_literal(struct model *model, const json_t *text)
{
	struct buf pattern;
	const char *data = json_string_value(text);
	buf_init(&pattern, 0);
	for (size_t i = 0; i < json_string_length(text); i++) {
		if (strchr("\\^$.[|()?*+{}]-#", data[i]) || data[i] == ' ')
			buf_append_text(&pattern, "\\");
		buf_append(&pattern, &data[i], 1);
	}
	int error = pattern.failed || !pattern.bytes
			    ? -ENOMEM
			    : add_pattern(model, pattern.data, pattern.bytes);
	buf_fini(&pattern);
	return error;
}

static int add_split(struct model *model, const json_t *split)
{
	const json_t *pattern = json_object_get(split, "pattern");
	const json_t *regex = json_object_get(pattern, "Regex");
	const json_t *literal = json_object_get(pattern, "String");
	const char *behavior = string_of(split, "behavior");
	bool invert = json_is_true(json_object_get(split, "invert"));
	/* "Removed" of what does not match: with a pattern that leaves nothing out, as all of
	 * these do, that is the same as isolating what matches. */
	bool supported = invert ? strcmp(behavior, "Removed") == 0
				: strcmp(behavior, "Isolated") == 0;
	if (!supported)
		return model__fail(model, "tokenizer.json: a Split that is %.20s%s is not supported",
				   behavior, invert ? " and inverted" : "");
	if (json_is_string(regex))
		return add_pattern(model, json_string_value(regex), json_string_length(regex));
	if (json_is_string(literal) && json_string_length(literal))
		return add_literal(model, literal);
	return model__fail(model, "tokenizer.json: a Split without a pattern");
}

static int add_byte_level(struct model *model, const json_t *step)
{
	const json_t *use_regex = json_object_get(step, "use_regex");
	if (model->vocab.kind != VOCAB_BPE)
		return model__fail(model, "tokenizer.json: ByteLevel with byte_fallback");
	if (json_is_true(json_object_get(step, "add_prefix_space")))
		return model__fail(model, "tokenizer.json: add_prefix_space is not supported");
	if (use_regex && !json_is_true(use_regex))
		return 0;
	return add_text_pattern(model, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+"
				       "| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+");
}

static int add_metaspace(struct model *model, const json_t *step)
{
	struct vocab *v = &model->vocab;
	const char *scheme = string_of(step, "prepend_scheme");
	const json_t *prefix = json_object_get(step, "add_prefix_space");
	const json_t *split = json_object_get(step, "split");
	if (v->kind != VOCAB_SPM || strcmp(string_of(step, "replacement"), SPM_SPACE) != 0 ||
	    !split || json_is_true(split))
		return model__fail(model, "tokenizer.json: this Metaspace is not supported");
	if (strcmp(scheme, "first") == 0)
		v->space_prefix = SPACE_PREFIX_FIRST;
	else if (strcmp(scheme, "always") == 0 || (!scheme[0] && json_is_true(prefix)))
		v->space_prefix = SPACE_PREFIX_ALWAYS;
	return 0;
}

static int add_step(struct model *model, const json_t *step, int depth)
{
	size_t index;
	json_t *item;
	int error = 0;
	if (is_type(step, "Sequence") && depth < 4) {
		json_array_foreach(json_object_get(step, "pretokenizers"), index, item)
		{
			if ((error = add_step(model, item, depth + 1)) < 0)
				break;
		}
		return error;
	}
	if (is_type(step, "Split"))
		return add_split(model, step);
	if (is_type(step, "Digits"))
		return add_text_pattern(model,
					json_is_true(json_object_get(step, "individual_digits"))
						? "\\p{N}"
						: "\\p{N}+");
	if (is_type(step, "ByteLevel"))
		return add_byte_level(model, step);
	if (is_type(step, "Metaspace"))
		return add_metaspace(model, step);
	return model__fail(model, "tokenizer.json: the pre_tokenizer %.40s is not supported",
			   string_of(step, "type"));
}

static bool has_byte_level(const json_t *step)
{
	size_t index;
	json_t *item;
	json_array_foreach(json_object_get(step, "pretokenizers"), index, item)
	{
		if (has_byte_level(item))
			return true;
	}
	return is_type(step, "ByteLevel");
}

static int add_normalizer(struct model *model, const json_t *step, bool *replaced, int depth)
{
	struct vocab *v = &model->vocab;
	size_t index;
	json_t *item;
	int error = 0;
	if (is_type(step, "Sequence") && depth < 4) {
		json_array_foreach(json_object_get(step, "normalizers"), index, item)
		{
			if ((error = add_normalizer(model, item, replaced, depth + 1)) < 0)
				break;
		}
		return error;
	}
	if (is_type(step, "NFC")) {
		v->normalize_nfc = true;
		return 0;
	}
	if (is_type(step, "Prepend") && strcmp(string_of(step, "prepend"), SPM_SPACE) == 0) {
		v->space_prefix = SPACE_PREFIX_ALWAYS;
		return 0;
	}
	if (is_type(step, "Replace") && strcmp(string_of(step, "content"), SPM_SPACE) == 0 &&
	    strcmp(string_of(json_object_get(step, "pattern"), "String"), " ") == 0) {
		*replaced = true;
		return 0;
	}
	return model__fail(model, "tokenizer.json: the normalizer %.40s is not supported",
			   string_of(step, "type"));
}

int hf__load_pre(struct model *model, const json_t *tokenizer)
{
	struct vocab *v = &model->vocab;
	const json_t *pre = json_object_get(tokenizer, "pre_tokenizer");
	const json_t *normalizer = json_object_get(tokenizer, "normalizer");
	bool replaced = false, given = pre && !json_is_null(pre);
	int error = 0;
	v->space_prefix = SPACE_PREFIX_NONE;
	if (normalizer && !json_is_null(normalizer))
		error = add_normalizer(model, normalizer, &replaced, 0);
	if (error >= 0 && given)
		error = add_step(model, pre, 0);
	if (error < 0)
		return error;
	if (v->kind == VOCAB_BPE && !has_byte_level(pre))
		return model__fail(model, "tokenizer.json: BPE without ByteLevel or byte_fallback is "
					  "not supported");
	if (v->kind == VOCAB_BPE && replaced)
		return model__fail(model, "tokenizer.json: spaces replaced in a byte-level vocabulary");
	if (v->kind == VOCAB_SPM && (v->pattern_count || (!replaced && !given)))
		return model__fail(model, "tokenizer.json: byte_fallback without Metaspace or the "
					  "replacing of spaces is not supported");
	return 0;
}
