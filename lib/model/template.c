/* The public functions: compile, render, and render to ids with the origin of every byte kept. */
#include "model/template.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "model/template_private.h"
#include "model/tokenizer_private.h"
#include "model/utf8.h"

#define CHUNK_BYTES ((size_t)32 << 10)
/* A tree takes some 40 times the bytes of its source at worst ("{{a}}" over and over). */
#define TREE_BYTES_MAX ((size_t)64 << 20)

int chat_template_compile(const char *source, struct chat_template **ret_template, char *ret_error,
			  size_t error_bytes)
{
	struct chat_template *t = calloc(1, sizeof(*t));
	struct compiler c = { .t = t, .error = ret_error, .error_bytes = error_bytes };
	if (error_bytes)
		ret_error[0] = 0;
	if (!t)
		return -ENOMEM;
	memory_init(&t->memory, CHUNK_BYTES, TREE_BYTES_MAX);
	size_t bytes = strlen(source);
	if (bytes > TEMPLATE_SOURCE_BYTES_MAX)
		(void)template__compile_fail(&c, 1, "%zu bytes, more than %zu", bytes,
					     TEMPLATE_SOURCE_BYTES_MAX);
	else if (!utf8_valid(source, bytes))
		(void)template__compile_fail(&c, 1, "not UTF-8");
	else if (!template__intern(t, "loop", 4, true) || template__lex(&c, source) < 0 ||
		 template__parse(&c) < 0)
		c.result = c.result ? c.result : -ENOMEM;
	free(c.tokens);
	if (c.result) {
		if (error_bytes && !ret_error[0])
			snprintf(ret_error, error_bytes, "chat template: out of memory");
		chat_template_free(t);
		return c.result;
	}
	*ret_template = t;
	return 0;
}

void chat_template_free(struct chat_template *t)
{
	if (!t)
		return;
	memory_fini(&t->memory);
	free(t);
}

int template__fail(struct render *r, const char *format, ...)
{
	if (r->error_bytes && !r->error[0]) {
		char text[400];
		va_list args;
		va_start(args, format);
		vsnprintf(text, sizeof(text), format, args);
		va_end(args);
		snprintf(r->error, r->error_bytes, "chat template, line %u: %s", r->line, text);
	}
	return -EINVAL;
}

int template__no_memory(struct render *r)
{
	(void)template__fail(r, "the messages need more memory than is allowed");
	return -E2BIG;
}

int template__charge(struct render *r, uint64_t steps)
{
	r->steps += steps;
	if (r->steps <= TEMPLATE_STEPS_MAX)
		return 0;
	(void)template__fail(r, "the messages need more steps than are allowed");
	return -E2BIG;
}

/* What the server itself puts in; anything else may come from the request. */
static bool is_own_variable(const char *name)
{
	static const char *const names[] = { "bos_token", "eos_token", "pad_token", "unk_token",
					     "sep_token", "cls_token", "mask_token" };
	for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
		if (strcmp(name, names[i]) == 0)
			return true;
	}
	return false;
}

static int bind_variables(struct render *r, const json_t *variables)
{
	const char *key;
	json_t *item;
	if (!json_is_object(variables))
		return template__fail(r, "the variables must be an object");
	json_object_foreach((json_t *)variables, key, item)
	{
		/* A name that the template never says need not be there. */
		const char *name = template__intern((struct chat_template *)r->t, key, strlen(key),
						    false);
		struct value value;
		if (!name)
			continue;
		int error = template__from_json(r, item, !is_own_variable(key), 0, &value);
		if (error < 0 || (error = template__bind(r, name, value)) < 0)
			return error;
	}
	return 0;
}

static int render(const struct chat_template *t, const json_t *variables, struct buf *out,
		  struct buf *origin, char *ret_error, size_t error_bytes)
{
	struct frame frame = { 0 };
	enum flow flow = FLOW_NEXT;
	struct render r = { .t = t,
			    .frame = &frame,
			    .out = out,
			    .origin = origin,
			    .line = 1,
			    .error = ret_error,
			    .error_bytes = error_bytes };
	if (error_bytes)
		ret_error[0] = 0;
	memory_init(&r.memory, CHUNK_BYTES, TEMPLATE_MEMORY_BYTES_MAX);
	int error = bind_variables(&r, variables);
	if (error >= 0)
		error = template__exec(&r, t->body, &flow);
	memory_fini(&r.memory);
	return error;
}

int chat_template_render(const struct chat_template *t, const json_t *variables, struct buf *out,
			 char *ret_error, size_t error_bytes)
{
	return render(t, variables, out, NULL, ret_error, error_bytes);
}

int chat_template_tokenize(const struct chat_template *t, const struct tokenizer *tokenizer,
			   const json_t *variables, struct token_ids *ids, char *ret_error,
			   size_t error_bytes)
{
	struct buf out, origin;
	buf_init(&out, TEMPLATE_OUTPUT_BYTES_MAX);
	buf_init(&origin, TEMPLATE_OUTPUT_BYTES_MAX);
	int error = render(t, variables, &out, &origin, ret_error, error_bytes);
	if (error >= 0 && out.bytes) {
		CHECK(origin.bytes == out.bytes);
		struct text text = { out.data, out.bytes };
		/* Origins become trust in place: own bytes are trusted. */
		for (size_t i = 0; i < origin.bytes; i++)
			origin.data[i] = !origin.data[i];
		error = tokenizer__encode(tokenizer, text, (const uint8_t *)origin.data,
					  TOKENIZE_SPECIAL, ids);
		if (error < 0 && error_bytes)
			snprintf(ret_error, error_bytes, "the prompt cannot be tokenized");
	}
	buf_fini(&out);
	buf_fini(&origin);
	return error;
}
