/*
 * tokenizer.json: BPE over bytes (the vocabulary in GPT-2's byte alphabet), or over characters
 * with U+2581 for spaces and byte tokens to fall back on. What the file asks for and this build
 * does not do is refused by name: a tokenizer that is nearly right gives quietly wrong text.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "model/hf.h"

#define TOKENS_MAX (1u << 22)

static struct text copy_text(struct model *model, const json_t *value)
{
	struct text text = { json_string_value(value), json_string_length(value) };
	return (struct text){ model__copy(model, text), text.bytes };
}

static const char *string_of(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));
	return text ? text : "";
}

static int count_tokens(struct model *model, const json_t *vocab, const json_t *added)
{
	json_int_t top = -1;
	const char *key;
	size_t index;
	json_t *item;
	json_object_foreach((json_t *)vocab, key, item)
	{
		json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
		if (id < 0 || id >= TOKENS_MAX)
			return model__fail(model, "tokenizer.json: \"%.40s\" has no usable id", key);
		top = MAX(top, id);
	}
	json_array_foreach((json_t *)added, index, item)
	{
		json_t *value = json_object_get(item, "id");
		json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
		if (id < 0 || id >= TOKENS_MAX || !json_is_string(json_object_get(item, "content")))
			return model__fail(model, "tokenizer.json: added token %zu has no usable id or "
						  "content",
					   index);
		top = MAX(top, id);
	}
	model->vocab.token_count = (uint32_t)(top + 1);
	return 0;
}

static int add_special(struct model *model, const json_t *token)
{
	struct vocab *v = &model->vocab;
	size_t id = (size_t)json_integer_value(json_object_get(token, "id"));
	v->tokens[id] = copy_text(model, json_object_get(token, "content"));
	if (!v->tokens[id].data)
		return -ENOMEM;
	bool special = json_is_true(json_object_get(token, "special"));
	v->types[id] = special ? VOCAB_CONTROL : VOCAB_USER_DEFINED;
	if (json_is_true(json_object_get(token, "single_word")))
		return model__fail(model, "tokenizer.json: added token \"%.40s\" is single_word, "
					  "which is not supported",
				   string_of(token, "content"));
	uint8_t strips =
		(json_is_true(json_object_get(token, "lstrip")) ? VOCAB_STRIP_LEFT : 0) |
		(json_is_true(json_object_get(token, "rstrip")) ? VOCAB_STRIP_RIGHT : 0);
	if (!strips)
		return 0;
	if (!v->strips)
		v->strips = model__alloc(model, v->token_count, sizeof(v->strips[0]));
	if (!v->strips)
		return -ENOMEM;
	v->strips[id] = strips;
	return 0;
}

static int load_tokens(struct model *model, const json_t *vocab, const json_t *added)
{
	struct vocab *v = &model->vocab;
	const char *key;
	size_t index;
	json_t *item;
	int error = count_tokens(model, vocab, added);
	if (error < 0)
		return error;
	v->tokens = model__alloc(model, v->token_count, sizeof(v->tokens[0]));
	v->types = model__alloc(model, v->token_count, sizeof(v->types[0]));
	if (!v->tokens || !v->types)
		return -ENOMEM;
	for (uint32_t i = 0; i < v->token_count; i++) { /* ids that the file leaves out */
		v->tokens[i] = TEXT("");
		v->types[i] = VOCAB_UNUSED;
	}
	json_object_foreach((json_t *)vocab, key, item)
	{
		size_t id = (size_t)json_integer_value(item);
		struct text text = { key, strlen(key) };
		v->tokens[id] = (struct text){ model__copy(model, text), text.bytes };
		if (!v->tokens[id].data)
			return -ENOMEM;
		unsigned byte;
		int end = 0;
		bool is_byte = v->kind == VOCAB_SPM && sscanf(key, "<0x%2X>%n", &byte, &end) == 1 &&
			       end == 6 && !key[6];
		v->types[id] = is_byte ? VOCAB_BYTE : VOCAB_NORMAL;
	}
	json_array_foreach((json_t *)added, index, item)
	{
		if ((error = add_special(model, item)) < 0)
			return error;
	}
	return 0;
}

/* "left right", or ["left", "right"] in newer files. */
static int load_merge(struct model *model, const json_t *item, struct vocab_merge *merge)
{
	if (json_is_array(item) && json_array_size(item) == 2 &&
	    json_is_string(json_array_get(item, 0)) && json_is_string(json_array_get(item, 1))) {
		merge->left = copy_text(model, json_array_get(item, 0));
		merge->right = copy_text(model, json_array_get(item, 1));
		return merge->left.data && merge->right.data ? 0 : -ENOMEM;
	}
	if (!json_is_string(item))
		return model__fail(model, "tokenizer.json: a merge is neither a text nor a pair");
	struct text text = copy_text(model, item);
	if (!text.data)
		return -ENOMEM;
	const char *space = text.bytes > 1 ? memchr(text.data + 1, ' ', text.bytes - 1) : NULL;
	if (!space)
		return model__fail(model, "tokenizer.json: a merge is not two pieces and a space");
	size_t left = (size_t)(space - text.data);
	merge->left = (struct text){ text.data, left };
	merge->right = (struct text){ space + 1, text.bytes - left - 1 };
	return 0;
}

static int load_merges(struct model *model, const json_t *merges)
{
	struct vocab *v = &model->vocab;
	size_t count = json_array_size(merges), index;
	json_t *item;
	if (!json_is_array(merges) || count > 1u << 24)
		return model__fail(model, "tokenizer.json has no usable list of merges");
	v->merges = model__alloc(model, count, sizeof(v->merges[0]));
	if (!v->merges)
		return -ENOMEM;
	json_array_foreach((json_t *)merges, index, item)
	{
		int error = load_merge(model, item, &v->merges[index]);
		if (error < 0)
			return error;
	}
	v->merge_count = (uint32_t)count;
	return 0;
}

static int32_t find_token(const struct vocab *v, const char *text)
{
	for (uint32_t i = 0; text[0] && i < v->token_count; i++) {
		if (text_is(v->tokens[i], text))
			return (int32_t)i;
	}
	return -1;
}

static int load_bpe(struct model *model, const json_t *tokenizer)
{
	struct vocab *v = &model->vocab;
	const json_t *bpe = json_object_get(tokenizer, "model");
	const char *type = string_of(bpe, "type");
	int error;
	/* Old files leave the type out; only BPE has merges. */
	if (type[0] ? strcmp(type, "BPE") != 0 : !json_object_get(bpe, "merges"))
		return model__fail(model, "tokenizer.json: the model is \"%.40s\"; BPE is supported",
				   type);
	static const char *const unsupported[] = { "continuing_subword_prefix",
						   "end_of_word_suffix" };
	for (size_t i = 0; i < ARRAY_COUNT(unsupported); i++) {
		if (string_of(bpe, unsupported[i])[0])
			return model__fail(model, "tokenizer.json: %s is not supported",
					   unsupported[i]);
	}
	if (json_number_value(json_object_get(bpe, "dropout")) != 0)
		return model__fail(model, "tokenizer.json: dropout is for training only");
	v->kind = json_is_true(json_object_get(bpe, "byte_fallback")) ? VOCAB_SPM : VOCAB_BPE;
	v->ignore_merges = json_is_true(json_object_get(bpe, "ignore_merges"));
	if ((error = load_tokens(model, json_object_get(bpe, "vocab"),
				 json_object_get(tokenizer, "added_tokens"))) < 0 ||
	    (error = load_merges(model, json_object_get(bpe, "merges"))) < 0)
		return error;
	v->unknown_id = find_token(v, string_of(bpe, "unk_token"));
	return 0;
}

/* The token that a post-processor puts in front, or "". */
static const char *leading_token(const json_t *post)
{
	const json_t *processors = json_object_get(post, "processors");
	size_t index;
	json_t *item;
	json_array_foreach((json_t *)processors, index, item)
	{
		const char *found = leading_token(item);
		if (found[0])
			return found;
	}
	const json_t *first = json_array_get(json_object_get(post, "single"), 0);
	return string_of(json_object_get(first, "SpecialToken"), "id");
}

/* "bos_token" is a text or an object with one. */
static const char *named_token(const json_t *settings, const char *key)
{
	const json_t *value = json_object_get(settings, key);
	return json_is_string(value) ? json_string_value(value) : string_of(value, "content");
}

static void load_specials(struct model *model, const json_t *tokenizer, const json_t *settings)
{
	struct model_config *c = &model->config;
	const struct vocab *v = &model->vocab;
	const json_t *add = json_object_get(settings, "add_bos_token");
	int32_t lead = find_token(v, leading_token(json_object_get(tokenizer, "post_processor")));
	c->bos_id = find_token(v, named_token(settings, "bos_token"));
	if (c->bos_id < 0)
		c->bos_id = lead;
	c->add_bos = json_is_boolean(add) ? json_is_true(add) : lead >= 0;
	c->add_eos = json_is_true(json_object_get(settings, "add_eos_token"));
	model__add_eos(model, find_token(v, named_token(settings, "eos_token")));
}

int hf__load_tokenizer(struct model *model, const char *folder, const json_t *settings)
{
	json_t *tokenizer;
	int error = hf__read_json(model, folder, "tokenizer.json", true, &tokenizer);
	if (error >= 0)
		error = load_bpe(model, tokenizer);
	if (error >= 0)
		error = hf__load_pre(model, tokenizer);
	if (error >= 0)
		load_specials(model, tokenizer, settings);
	json_decref(tokenizer);
	return error;
}
