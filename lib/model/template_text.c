/* Values as text: as Python prints them, and as JSON the way the tojson filter of chat templates
 * does it (json.dumps with ensure_ascii=False). */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "model/template_private.h"
#include "model/utf8.h"

struct writer {
	struct render *r;
	struct string_builder out;
	bool json, sort;
	int indent; /* JSON: spaces a level, -1: all on one line */
};

static int write_value(struct writer *w, const struct value *v, int level);

static void write_own(struct writer *w, const char *text)
{
	builder_add(&w->out, template__own(text));
}

/* Shortest digits that read back as the same number, in Python's form. */
static void format_real(double value, char *ret, size_t bytes)
{
	if (isnan(value) || isinf(value)) {
		snprintf(ret, bytes, "%s", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
		return;
	}
	int precision = 1;
	do {
		snprintf(ret, bytes, "%.*e", precision - 1, value);
	} while (strtod(ret, NULL) != value && precision++ < 17);
	int exponent = atoi(strchr(ret, 'e') + 1);
	if (exponent >= -4 && exponent < 16) {
		int decimals = MAX(precision - 1 - exponent, 1);
		snprintf(ret, bytes, "%.*f", decimals, value);
		return;
	}
	/* 1e+20 has no point in Python either, and two digits of exponent as here. */
	snprintf(ret, bytes, "%.*e", precision - 1, value);
}

static void write_escaped(struct writer *w, struct string s)
{
	char quote = '"';
	if (!w->json)
		quote = memchr(s.data, '\'', s.bytes) && !memchr(s.data, '"', s.bytes) ? '"' : '\'';
	char edge[2] = { quote, 0 };
	write_own(w, edge);
	for (size_t i = 0; i < s.bytes;) {
		size_t bytes = utf8_bytes(s.data[i]);
		unsigned char c = (unsigned char)s.data[i];
		char escaped[8] = "";
		const char *known = strchr("\nn\rr\tt\\\\\bb\ff", c);
		bool special = c == '\n' || c == '\r' || c == '\t' || c == '\\' ||
			       (w->json && (c == '\b' || c == '\f'));
		if (special)
			snprintf(escaped, sizeof(escaped), "\\%c", c == '\\' ? c : known[1]);
		else if (c == (unsigned char)quote)
			snprintf(escaped, sizeof(escaped), "\\%c", c);
		else if (c < 0x20 || (c == 0x7f && !w->json))
			snprintf(escaped, sizeof(escaped), w->json ? "\\u%04x" : "\\x%02x", c);
		struct string part = string_part(s, i, bytes);
		if (escaped[0]) {
			/* The escape has the origin of what it stands for. */
			bool foreign = s.origin && (s.origin == template__foreign || s.origin[i]);
			part = template__own(escaped);
			part.origin = foreign ? template__foreign : NULL;
			builder_add(&w->out, part);
			i += bytes;
			continue;
		}
		/* Runs without escapes go in one piece. */
		size_t end = i + bytes;
		while (end < s.bytes && (unsigned char)s.data[end] >= 0x20 && s.data[end] != '\\' &&
		       s.data[end] != '\'' && s.data[end] != '"' && s.data[end] != 0x7f)
			end++;
		builder_add(&w->out, string_part(s, i, end - i));
		i = end;
	}
	write_own(w, edge);
}

static void write_break(struct writer *w, int level)
{
	if (w->indent < 0)
		return;
	write_own(w, "\n");
	for (int i = 0; i < level * w->indent; i++)
		write_own(w, " ");
}

static int write_list(struct writer *w, const struct list *list, int level)
{
	bool tuple = list->tuple && !w->json;
	write_own(w, tuple ? "(" : "[");
	for (size_t i = 0; i < list->count; i++) {
		if (i)
			write_own(w, w->indent < 0 ? ", " : ",");
		write_break(w, level + 1);
		int error = write_value(w, &list->items[i], level + 1);
		if (error < 0)
			return error;
	}
	if (list->count)
		write_break(w, level);
	write_own(w, tuple && list->count == 1 ? ",)" : tuple ? ")" : "]");
	return 0;
}

static int compare_entries(const void *a, const void *b)
{
	struct string x = (*(const struct dict_entry *const *)a)->key;
	struct string y = (*(const struct dict_entry *const *)b)->key;
	size_t common = MIN(x.bytes, y.bytes);
	int order = common ? memcmp(x.data, y.data, common) : 0;
	return order ? order : x.bytes < y.bytes ? -1 : x.bytes > y.bytes;
}

static int write_dict(struct writer *w, const struct dict *dict, int level)
{
	const struct dict_entry **order =
		memory_alloc(&w->r->memory, dict->count, sizeof(*order));
	if (!order)
		return template__no_memory(w->r);
	for (size_t i = 0; i < dict->count; i++)
		order[i] = &dict->entries[i];
	if (w->sort && dict->count)
		qsort(order, dict->count, sizeof(order[0]), compare_entries);
	write_own(w, "{");
	for (size_t i = 0; i < dict->count; i++) {
		if (i)
			write_own(w, w->indent < 0 ? ", " : ",");
		write_break(w, level + 1);
		write_escaped(w, order[i]->key);
		write_own(w, ": ");
		int error = write_value(w, &order[i]->value, level + 1);
		if (error < 0)
			return error;
	}
	if (dict->count)
		write_break(w, level);
	write_own(w, "}");
	return 0;
}

static int write_scalar(struct writer *w, const struct value *v)
{
	char text[64];
	switch (v->kind) {
	case VALUE_NONE:
		write_own(w, w->json ? "null" : "None");
		return 0;
	case VALUE_BOOL:
		write_own(w, w->json ? v->boolean ? "true" : "false" : v->boolean ? "True" : "False");
		return 0;
	case VALUE_INT:
		snprintf(text, sizeof(text), "%lld", (long long)v->integer);
		write_own(w, text);
		return 0;
	case VALUE_FLOAT:
		format_real(v->real, text, sizeof(text));
		write_own(w, text);
		return 0;
	case VALUE_UNDEFINED:
		if (w->json)
			return template__fail(w->r, "'%s' is undefined", v->name ? v->name : "a value");
		write_own(w, "Undefined");
		return 0;
	default:
		if (w->json)
			return template__fail(w->r, "a function cannot be written as JSON");
		write_own(w, v->kind == VALUE_LOOP ? "<loop>" : "<function>");
		return 0;
	}
}

static int write_value(struct writer *w, const struct value *v, int level)
{
	int error = template__charge(w->r, 1);
	if (error < 0)
		return error;
	if (w->out.text.failed)
		return template__no_memory(w->r);
	if (level > TEMPLATE_JSON_DEPTH_MAX)
		return template__fail(w->r, "a value is nested too deeply to be written");
	if (v->kind == VALUE_STRING)
		write_escaped(w, v->string);
	else if (v->kind == VALUE_LIST)
		return write_list(w, v->list, level);
	else if (v->kind == VALUE_DICT)
		return write_dict(w, v->dict, level);
	else
		return write_scalar(w, v);
	return 0;
}

static int write_all(struct writer *w, const struct value *v, struct string *ret)
{
	builder_init(&w->out, w->r);
	int error = write_value(w, v, 0);
	if (error >= 0)
		return builder_finish(&w->out, ret);
	buf_fini(&w->out.text);
	buf_fini(&w->out.origin);
	return error;
}

int template__text(struct render *r, const struct value *v, struct string *ret)
{
	if (v->kind == VALUE_STRING) {
		*ret = v->string;
		return 0;
	}
	if (v->kind == VALUE_UNDEFINED) {
		*ret = OWN("");
		return 0;
	}
	struct writer w = { .r = r, .indent = -1 };
	return write_all(&w, v, ret);
}

int template__to_json(struct render *r, const struct value *v, int indent, bool sort,
		      struct value *ret)
{
	struct writer w = { .r = r, .json = true, .indent = indent, .sort = sort };
	struct string text;
	int error = write_all(&w, v, &text);
	if (error >= 0)
		*ret = template__string(text);
	return error;
}
