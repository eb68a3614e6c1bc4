/* Filters of templates: value | name(arguments). */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "model/template_private.h"
#include "model/utf8.h"

#define FILTER(name)                                                                             \
	static int filter_##name(struct render *r, const struct value *v, const struct args *args, \
				 struct value *ret)

/* Runs the method of the same name on the value's text. */
static int as_method(struct render *r, const struct value *v, const char *name,
		     const struct args *args, struct value *ret)
{
	struct string text;
	int error = template__text(r, v, &text);
	if (error < 0)
		return error;
	struct value string = template__string(text);
	return template__find_method(&string, name)->call(r, &string, args, ret);
}

FILTER(trim)
{
	return as_method(r, v, "strip", args, ret);
}

FILTER(upper)
{
	return as_method(r, v, "upper", args, ret);
}

FILTER(lower)
{
	return as_method(r, v, "lower", args, ret);
}

FILTER(title)
{
	return as_method(r, v, "title", args, ret);
}

FILTER(capitalize)
{
	return as_method(r, v, "capitalize", args, ret);
}

FILTER(replace)
{
	return as_method(r, v, "replace", args, ret);
}

FILTER(length)
{
	size_t length;
	int error = template__length(r, v, &length);
	*ret = template__int((int64_t)length);
	return error;
}

FILTER(string)
{
	struct string text;
	int error = template__text(r, v, &text);
	*ret = template__string(text);
	return error;
}

FILTER(same)
{
	*ret = *v;
	return 0;
}

FILTER(default)
{
	const struct value *other = template__arg(args, 0, "default_value");
	const struct value *falsy = template__arg(args, 1, "boolean");
	bool use = v->kind == VALUE_UNDEFINED ||
		   (falsy && template__truth(falsy) && !template__truth(v));
	*ret = !use ? *v : other ? *other : template__string(OWN(""));
	return 0;
}

FILTER(tojson)
{
	int64_t indent;
	const struct value *given = template__arg(args, 0, "indent");
	const struct value *sort = template__arg(args, 8, "sort_keys");
	int error = 0;
	if (!given || given->kind == VALUE_NONE)
		indent = -1;
	else
		error = template__arg_int(r, args, 0, "indent", -1, &indent);
	if (error < 0)
		return error;
	if (indent > 16)
		return template__fail(r, "an indent of %lld is not supported", (long long)indent);
	return template__to_json(r, v, (int)MAX(indent, (int64_t)-1), sort && template__truth(sort),
				 ret);
}

/* The value itself, or the attribute that args name it by. */
static int attribute_of(struct render *r, const struct value *v, const struct value *path,
			struct value *ret)
{
	if (!path || path->kind == VALUE_NONE) {
		*ret = *v;
		return 0;
	}
	if (path->kind == VALUE_INT)
		return template__subscript(r, v, path, ret);
	if (path->kind != VALUE_STRING)
		return template__fail(r, "an attribute must be a text or a number");
	return template__attribute_path(r, v, path->string, ret);
}

FILTER(join)
{
	const struct value *separator = template__arg(args, 0, "d");
	const struct value *path = template__arg(args, 1, "attribute");
	const struct list *items;
	struct string between = OWN(""), joined;
	struct string_builder b;
	int error = template__items(r, v, &items);
	if (error >= 0 && separator)
		error = template__text(r, separator, &between);
	if (error < 0)
		return error;
	builder_init(&b, r);
	for (size_t i = 0; i < items->count && error >= 0; i++) {
		struct value item;
		struct string text;
		if ((error = template__charge(r, 1)) < 0 ||
		    (error = attribute_of(r, &items->items[i], path, &item)) < 0 ||
		    (error = template__text(r, &item, &text)) < 0)
			break;
		if (i)
			builder_add(&b, between);
		builder_add(&b, text);
	}
	if (error < 0) {
		buf_fini(&b.text);
		buf_fini(&b.origin);
		return error;
	}
	error = builder_finish(&b, &joined);
	*ret = template__string(joined);
	return error;
}

static int edge(struct render *r, const struct value *v, bool last, struct value *ret)
{
	const struct list *items;
	int error = template__items(r, v, &items);
	if (error < 0)
		return error;
	*ret = items->count ? items->items[last ? items->count - 1 : 0] : template__undefined(NULL);
	return 0;
}

FILTER(first)
{
	return edge(r, v, false, ret);
}

FILTER(last)
{
	return edge(r, v, true, ret);
}

FILTER(list)
{
	const struct list *items;
	int error = template__items(r, v, &items);
	if (error < 0 || (error = template__list_new(r, items->count, ret)) < 0)
		return error;
	if (items->count)
		memcpy(ret->list->items, items->items, items->count * sizeof(items->items[0]));
	return 0;
}

FILTER(items)
{
	if (v->kind == VALUE_UNDEFINED)
		return template__list_new(r, 0, ret);
	if (v->kind != VALUE_DICT)
		return template__fail(r, "only a mapping has items");
	return template__find_method(v, "items")->call(r, v, args, ret);
}

FILTER(reverse)
{
	if (v->kind == VALUE_STRING || v->kind == VALUE_LIST)
		return template__slice(r, v, NULL, NULL, -1, ret);
	const struct list *items;
	int error = template__items(r, v, &items);
	if (error < 0)
		return error;
	struct value list = { .kind = VALUE_LIST, .list = (struct list *)items };
	return template__slice(r, &list, NULL, NULL, -1, ret);
}

FILTER(abs)
{
	if (v->kind == VALUE_FLOAT)
		*ret = (struct value){ .kind = VALUE_FLOAT, .real = fabs(v->real) };
	else if (v->kind == VALUE_INT && v->integer != INT64_MIN)
		*ret = template__int(v->integer < 0 ? -v->integer : v->integer);
	else
		return template__fail(r, "abs needs a number");
	return 0;
}

static bool to_real(const struct value *v, double *ret)
{
	if (v->kind == VALUE_FLOAT)
		*ret = v->real;
	else if (v->kind == VALUE_INT)
		*ret = (double)v->integer;
	else if (v->kind == VALUE_BOOL)
		*ret = v->boolean;
	else if (v->kind == VALUE_STRING && v->string.bytes < 64) {
		char text[64], *end;
		struct string s = string_strip(v->string, (struct string){ 0 }, STRIP_LEFT | STRIP_RIGHT);
		if (s.bytes)
			memcpy(text, s.data, s.bytes);
		text[s.bytes] = 0;
		*ret = strtod(text, &end);
		return s.bytes && *end == 0;
	} else
		return false;
	return true;
}

FILTER(float)
{
	double real;
	const struct value *initial = template__arg(args, 0, "default");
	*ret = (struct value){ .kind = VALUE_FLOAT, .real = 0 };
	if (to_real(v, &real))
		ret->real = real;
	else if (initial)
		*ret = *initial;
	return 0;
}

FILTER(int)
{
	double real;
	const struct value *initial = template__arg(args, 0, "default");
	*ret = v->kind == VALUE_INT ? *v : initial ? *initial : template__int(0);
	if (v->kind != VALUE_INT && to_real(v, &real) && fabs(real) < 9e18)
		*ret = template__int((int64_t)real);
	return 0;
}

FILTER(round)
{
	int64_t digits;
	double real;
	int error = template__arg_int(r, args, 0, "precision", 0, &digits);
	if (error < 0)
		return error;
	if (!to_real(v, &real) || v->kind == VALUE_STRING || digits < 0 || digits > 15)
		return template__fail(r, "round needs a number");
	double scale = pow(10, (double)digits);
	*ret = (struct value){ .kind = VALUE_FLOAT, .real = rint(real * scale) / scale };
	return 0;
}

FILTER(escape)
{
	struct string text, escaped;
	struct string_builder b;
	int error = template__text(r, v, &text);
	if (error < 0)
		return error;
	builder_init(&b, r);
	for (size_t i = 0; i < text.bytes; i++) {
		char c = text.data[i];
		const char *as = c == '&'   ? "&amp;"
				 : c == '<' ? "&lt;"
				 : c == '>' ? "&gt;"
				 : c == '"' ? "&#34;"
				 : c == '\'' ? "&#39;"
					     : NULL;
		builder_add(&b, as ? template__own(as) : string_part(text, i, 1));
	}
	error = builder_finish(&b, &escaped);
	*ret = template__string(escaped);
	return error;
}

FILTER(indent)
{
	int64_t width;
	const struct value *first = template__arg(args, 1, "first");
	const struct value *blank = template__arg(args, 2, "blank");
	struct string text, indented;
	struct string_builder b;
	int error = template__arg_int(r, args, 0, "width", 4, &width);
	if (error < 0 || (error = template__text(r, v, &text)) < 0)
		return error;
	builder_init(&b, r);
	for (size_t at = 0, line = 0; at <= text.bytes; line++) {
		size_t newline = string_find(text, OWN("\n"), at);
		size_t end = newline == SIZE_MAX ? text.bytes : newline;
		bool wanted = line ? end > at || (blank && template__truth(blank))
				   : first && template__truth(first);
		for (int64_t i = 0; wanted && i < MIN(width, (int64_t)64); i++)
			builder_add(&b, OWN(" "));
		builder_add(&b, string_part(text, at, end - at + (newline != SIZE_MAX)));
		at = end + 1;
		if (newline == SIZE_MAX)
			break;
	}
	error = builder_finish(&b, &indented);
	*ret = template__string(indented);
	return error;
}

static struct args shift(const struct args *args, size_t count)
{
	struct args rest = *args;
	rest.count = args->count > count ? args->count - count : 0;
	for (size_t i = 0; i < rest.count; i++)
		rest.values[i] = args->values[i + count];
	return rest;
}

/* map('filter', ...) or map(attribute='a.b', default=x). */
FILTER(map)
{
	const struct value *path = template__arg(args, TEMPLATE_ARGS_MAX, "attribute");
	const struct value *initial = template__arg(args, TEMPLATE_ARGS_MAX, "default");
	const struct builtin *filter = NULL;
	const struct list *items;
	struct args rest = shift(args, 1);
	if (!path) {
		if (!args->count || args->values[0].kind != VALUE_STRING)
			return template__fail(r, "map needs a filter's name or attribute=");
		filter = template__find_filter(args->values[0].string);
		if (!filter)
			return template__fail(r, "map: there is no such filter");
	}
	int error = template__items(r, v, &items);
	if (error < 0 || (error = template__list_new(r, items->count, ret)) < 0)
		return error;
	if (r->depth >= TEMPLATE_EVAL_DEPTH_MAX)
		return template__fail(r, "nested too deeply");
	r->depth++;
	for (size_t i = 0; i < items->count && error >= 0; i++) {
		struct value *to = &ret->list->items[i];
		error = template__charge(r, 1);
		if (error >= 0 && filter)
			error = filter->call(r, &items->items[i], &rest, to);
		else if (error >= 0)
			error = attribute_of(r, &items->items[i], path, to);
		if (path && initial && to->kind == VALUE_UNDEFINED)
			*to = *initial;
	}
	r->depth--;
	return error;
}

static int select_items(struct render *r, const struct value *v, const struct args *args,
			bool by_attribute, bool keep, struct value *ret)
{
	const struct value *path = by_attribute && args->count ? &args->values[0] : NULL;
	struct args rest = shift(args, by_attribute);
	const struct builtin *test = NULL;
	const struct list *items;
	if (by_attribute && !path)
		return template__fail(r, "an attribute to select by is missing");
	if (rest.count) {
		if (rest.values[0].kind != VALUE_STRING ||
		    !(test = template__find_test(rest.values[0].string)))
			return template__fail(r, "there is no such test to select by");
		rest = shift(&rest, 1);
	}
	int error = template__items(r, v, &items);
	if (error < 0 || (error = template__list_new(r, items->count, ret)) < 0)
		return error;
	size_t count = 0;
	for (size_t i = 0; i < items->count && error >= 0; i++) {
		struct value item;
		bool holds = false;
		if ((error = template__charge(r, 1)) < 0 ||
		    (error = attribute_of(r, &items->items[i], path, &item)) < 0)
			break;
		if (test)
			error = template__apply_test(r, test, &item, &rest, &holds);
		else
			holds = template__truth(&item);
		if (holds == keep)
			ret->list->items[count++] = items->items[i];
	}
	ret->list->count = count;
	return error;
}

FILTER(select)
{
	return select_items(r, v, args, false, true, ret);
}

FILTER(reject)
{
	return select_items(r, v, args, false, false, ret);
}

FILTER(selectattr)
{
	return select_items(r, v, args, true, true, ret);
}

FILTER(rejectattr)
{
	return select_items(r, v, args, true, false, ret);
}

/* Stable merge sort of keys with their items: comparisons can fail, which qsort cannot say. */
static int sort_range(struct render *r, struct value *keys, struct value *items,
		      struct value *spare, size_t count, int sign)
{
	if (count < 2)
		return 0;
	size_t half = count / 2, a = 0, b = half, to = 0;
	int error, order;
	if ((error = sort_range(r, keys, items, spare, half, sign)) < 0 ||
	    (error = sort_range(r, keys + half, items + half, spare, count - half, sign)) < 0)
		return error;
	while (a < half || b < count) {
		bool right = a == half;
		if (a < half && b < count) {
			if ((error = template__order(r, &keys[a], &keys[b], &order)) < 0)
				return error;
			right = order * sign > 0;
		}
		size_t from = right ? b++ : a++;
		spare[2 * to] = keys[from];
		spare[2 * to++ + 1] = items[from];
	}
	for (size_t i = 0; i < count; i++) {
		keys[i] = spare[2 * i];
		items[i] = spare[2 * i + 1];
	}
	return 0;
}

static int sort_by(struct render *r, const struct list *items, const struct value *path, bool fold,
		   bool reverse, struct value *ret)
{
	struct value keys, spare;
	int error;
	if ((error = template__list_new(r, items->count, ret)) < 0 ||
	    (error = template__list_new(r, items->count, &keys)) < 0 ||
	    (error = template__list_new(r, items->count * 2, &spare)) < 0)
		return error;
	const struct args none = { .count = 0 };
	for (size_t i = 0; i < items->count && error >= 0; i++) {
		struct value *key = &keys.list->items[i];
		ret->list->items[i] = items->items[i];
		error = attribute_of(r, &items->items[i], path, key);
		if (error >= 0 && fold && key->kind == VALUE_STRING)
			error = as_method(r, key, "lower", &none, key);
	}
	if (error < 0)
		return error;
	return sort_range(r, keys.list->items, ret->list->items, spare.list->items, items->count,
			  reverse ? -1 : 1);
}

FILTER(sort)
{
	const struct value *reverse = template__arg(args, 0, "reverse");
	const struct value *exact = template__arg(args, 1, "case_sensitive");
	const struct value *path = template__arg(args, 2, "attribute");
	const struct list *items;
	int error = template__items(r, v, &items);
	if (error < 0)
		return error;
	return sort_by(r, items, path, !exact || !template__truth(exact),
		       reverse && template__truth(reverse), ret);
}

FILTER(dictsort)
{
	const struct value *exact = template__arg(args, 0, "case_sensitive");
	const struct value *by = template__arg(args, 1, "by");
	const struct value *reverse = template__arg(args, 2, "reverse");
	struct value pairs, column = template__int(0);
	const struct args none = { .count = 0 };
	int error = filter_items(r, v, &none, &pairs);
	if (error < 0)
		return error;
	if (by && by->kind == VALUE_STRING && string_is(by->string, "value"))
		column = template__int(1);
	return sort_by(r, pairs.list, &column, !exact || !template__truth(exact),
		       reverse && template__truth(reverse), ret);
}

FILTER(unique)
{
	const struct list *items;
	int error = template__items(r, v, &items);
	if (error < 0 || (error = template__list_new(r, items->count, ret)) < 0)
		return error;
	size_t count = 0;
	for (size_t i = 0; i < items->count; i++) {
		bool seen = false;
		for (size_t k = 0; k < count && !seen; k++) {
			error = template__equal(r, &items->items[i], &ret->list->items[k], &seen);
			if (error < 0)
				return error;
		}
		if (!seen)
			ret->list->items[count++] = items->items[i];
	}
	ret->list->count = count;
	return 0;
}

static int extreme(struct render *r, const struct value *v, const struct args *args, int sign,
		   struct value *ret)
{
	const struct value *path = template__arg(args, 1, "attribute");
	const struct list *items;
	struct value best, key;
	int error = template__items(r, v, &items), order;
	*ret = template__undefined(NULL);
	for (size_t i = 0; error >= 0 && i < items->count; i++) {
		if ((error = attribute_of(r, &items->items[i], path, &key)) < 0)
			return error;
		order = -1;
		if (i && (error = template__order(r, &best, &key, &order)) < 0)
			return error;
		if (!i || order * sign > 0) {
			best = key;
			*ret = items->items[i];
		}
	}
	return error;
}

FILTER(min)
{
	return extreme(r, v, args, 1, ret);
}

FILTER(max)
{
	return extreme(r, v, args, -1, ret);
}

FILTER(sum)
{
	const struct value *path = template__arg(args, 0, "attribute");
	const struct list *items;
	double real = 0, one;
	bool whole = true;
	int error = template__items(r, v, &items);
	for (size_t i = 0; error >= 0 && i < items->count; i++) {
		struct value item;
		if ((error = attribute_of(r, &items->items[i], path, &item)) < 0)
			return error;
		if (item.kind == VALUE_STRING || !to_real(&item, &one))
			return template__fail(r, "sum needs numbers");
		whole = whole && item.kind != VALUE_FLOAT;
		real += one;
	}
	if (fabs(real) > 9e15)
		return template__fail(r, "a sum is too large");
	*ret = whole ? template__int((int64_t)real)
		     : (struct value){ .kind = VALUE_FLOAT, .real = real };
	return error;
}

const struct builtin *template__find_filter(struct string name)
{
	static const struct builtin filters[] = {
		{ "trim", filter_trim },       { "length", filter_length },
		{ "count", filter_length },    { "tojson", filter_tojson },
		{ "default", filter_default }, { "d", filter_default },
		{ "join", filter_join },       { "upper", filter_upper },
		{ "lower", filter_lower },     { "first", filter_first },
		{ "last", filter_last },       { "list", filter_list },
		{ "items", filter_items },     { "replace", filter_replace },
		{ "map", filter_map },	       { "select", filter_select },
		{ "reject", filter_reject },   { "selectattr", filter_selectattr },
		{ "rejectattr", filter_rejectattr }, { "string", filter_string },
		{ "int", filter_int },	       { "float", filter_float },
		{ "abs", filter_abs },	       { "round", filter_round },
		{ "title", filter_title },     { "capitalize", filter_capitalize },
		{ "safe", filter_same },       { "escape", filter_escape },
		{ "e", filter_escape },	       { "indent", filter_indent },
		{ "reverse", filter_reverse }, { "sort", filter_sort },
		{ "dictsort", filter_dictsort }, { "unique", filter_unique },
		{ "min", filter_min },	       { "max", filter_max },
		{ "sum", filter_sum },
	};
	for (size_t i = 0; i < ARRAY_COUNT(filters); i++) {
		if (string_is(name, filters[i].name))
			return &filters[i];
	}
	return NULL;
}
