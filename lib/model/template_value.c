/* Values of templates: making them, comparing them, looking into them. */
#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "model/template_private.h"
#include "model/utf8.h"

struct value template__undefined(const char *name)
{
	return (struct value){ .kind = VALUE_UNDEFINED, .name = name };
}

struct value template__int(int64_t value)
{
	return (struct value){ .kind = VALUE_INT, .integer = value };
}

struct value template__bool(bool value)
{
	return (struct value){ .kind = VALUE_BOOL, .boolean = value };
}

struct value template__string(struct string string)
{
	return (struct value){ .kind = VALUE_STRING, .string = string };
}

int template__list_new(struct render *r, size_t count, struct value *ret)
{
	int error = template__charge(r, 1 + count / 8);
	if (error < 0)
		return error;
	struct list *list = memory_alloc(&r->memory, 1, sizeof(*list));
	struct value *items = memory_alloc(&r->memory, count, sizeof(*items));
	if (!list || !items)
		return template__no_memory(r);
	*list = (struct list){ .items = items, .count = count };
	*ret = (struct value){ .kind = VALUE_LIST, .list = list };
	return 0;
}

int template__dict_new(struct render *r, size_t capacity, struct value *ret)
{
	int error = template__charge(r, 1 + capacity / 4);
	if (error < 0)
		return error;
	struct dict *dict = memory_alloc(&r->memory, 1, sizeof(*dict));
	struct dict_entry *entries = memory_alloc(&r->memory, capacity, sizeof(*entries));
	if (!dict || !entries)
		return template__no_memory(r);
	*dict = (struct dict){ .entries = entries, .capacity = capacity };
	*ret = (struct value){ .kind = VALUE_DICT, .dict = dict };
	return 0;
}

const struct value *template__dict_get(const struct dict *dict, struct string key)
{
	for (size_t i = 0; i < dict->count; i++) {
		if (string_equal(dict->entries[i].key, key))
			return &dict->entries[i].value;
	}
	return NULL;
}

int template__dict_set(struct render *r, struct dict *dict, struct string key, struct value value)
{
	int error = template__charge(r, 1 + dict->count / 4);
	if (error < 0)
		return error;
	for (size_t i = 0; i < dict->count; i++) {
		if (string_equal(dict->entries[i].key, key)) {
			dict->entries[i].value = value;
			return 0;
		}
	}
	if (dict->count == dict->capacity) {
		size_t capacity = MAX(dict->capacity * 2, (size_t)8);
		struct dict_entry *entries = memory_alloc(&r->memory, capacity, sizeof(*entries));
		if (!entries)
			return template__no_memory(r);
		if (dict->count)
			memcpy(entries, dict->entries, dict->count * sizeof(*entries));
		dict->entries = entries;
		dict->capacity = capacity;
	}
	dict->entries[dict->count++] = (struct dict_entry){ key, value };
	return 0;
}

static int array_from_json(struct render *r, const json_t *json, bool foreign, int depth,
			   struct value *ret)
{
	int error = template__list_new(r, json_array_size(json), ret);
	for (size_t i = 0; error >= 0 && i < ret->list->count; i++)
		error = template__from_json(r, json_array_get(json, i), foreign, depth + 1,
					    &ret->list->items[i]);
	return error;
}

static int object_from_json(struct render *r, const json_t *json, bool foreign, int depth,
			    struct value *ret)
{
	int error = template__dict_new(r, json_object_size(json), ret);
	const char *key;
	json_t *item;
	json_object_foreach((json_t *)json, key, item)
	{
		struct value value;
		if (error < 0 ||
		    (error = template__from_json(r, item, foreign, depth + 1, &value)) < 0)
			return error;
		/* Keys of an object are unique, so the entry need not be searched for. */
		struct string name = template__own(key);
		name.origin = foreign ? template__foreign : NULL;
		CHECK(ret->dict->count < ret->dict->capacity);
		ret->dict->entries[ret->dict->count++] = (struct dict_entry){ name, value };
	}
	return error;
}

int template__from_json(struct render *r, const json_t *json, bool foreign, int depth,
			struct value *ret)
{
	if (depth > TEMPLATE_JSON_DEPTH_MAX) {
		(void)template__fail(r, "the request's JSON is nested too deeply");
		return -E2BIG;
	}
	switch (json_typeof(json)) {
	case JSON_OBJECT:
		return object_from_json(r, json, foreign, depth, ret);
	case JSON_ARRAY:
		return array_from_json(r, json, foreign, depth, ret);
	case JSON_STRING:
		/* The JSON outlives the rendering: its bytes are borrowed. */
		*ret = template__string((struct string){ json_string_value(json),
							 json_string_length(json),
							 foreign ? template__foreign : NULL });
		return 0;
	case JSON_INTEGER:
		*ret = template__int(json_integer_value(json));
		return 0;
	case JSON_REAL:
		*ret = (struct value){ .kind = VALUE_FLOAT, .real = json_real_value(json) };
		return 0;
	case JSON_NULL:
		*ret = (struct value){ .kind = VALUE_NONE };
		return 0;
	default:
		*ret = template__bool(json_is_true(json));
		return 0;
	}
}

bool template__truth(const struct value *v)
{
	switch (v->kind) {
	case VALUE_UNDEFINED:
	case VALUE_NONE:
		return false;
	case VALUE_BOOL:
		return v->boolean;
	case VALUE_INT:
		return v->integer != 0;
	case VALUE_FLOAT:
		return v->real != 0;
	case VALUE_STRING:
		return v->string.bytes != 0;
	case VALUE_LIST:
		return v->list->count != 0;
	case VALUE_DICT:
		return v->dict->count != 0 || v->dict->is_namespace;
	default:
		return true;
	}
}

static bool is_number(const struct value *v)
{
	return v->kind == VALUE_BOOL || v->kind == VALUE_INT || v->kind == VALUE_FLOAT;
}

static double as_real(const struct value *v)
{
	return v->kind == VALUE_FLOAT ? v->real
	       : v->kind == VALUE_INT ? (double)v->integer
				      : (double)v->boolean;
}

static int64_t as_integer(const struct value *v)
{
	return v->kind == VALUE_INT ? v->integer : v->boolean;
}

static int equal_lists(struct render *r, const struct list *a, const struct list *b, bool *ret)
{
	*ret = a->count == b->count && a->tuple == b->tuple;
	for (size_t i = 0; *ret && i < a->count; i++) {
		int error = template__equal(r, &a->items[i], &b->items[i], ret);
		if (error < 0)
			return error;
	}
	return 0;
}

static int equal_dicts(struct render *r, const struct dict *a, const struct dict *b, bool *ret)
{
	*ret = a->count == b->count;
	for (size_t i = 0; *ret && i < a->count; i++) {
		int error = template__charge(r, 1 + b->count / 4);
		const struct value *other = template__dict_get(b, a->entries[i].key);
		*ret = other != NULL;
		if (error >= 0 && other)
			error = template__equal(r, &a->entries[i].value, other, ret);
		if (error < 0)
			return error;
	}
	return 0;
}

int template__equal(struct render *r, const struct value *a, const struct value *b, bool *ret)
{
	int error = template__charge(r, 1);
	if (error < 0)
		return error;
	*ret = false;
	if (is_number(a) && is_number(b)) {
		*ret = a->kind == VALUE_FLOAT || b->kind == VALUE_FLOAT
			       ? as_real(a) == as_real(b)
			       : as_integer(a) == as_integer(b);
		return 0;
	}
	if (a->kind != b->kind)
		return 0;
	if (++r->depth > TEMPLATE_EVAL_DEPTH_MAX)
		return template__fail(r, "nested too deeply");
	switch (a->kind) {
	case VALUE_STRING:
		*ret = string_equal(a->string, b->string);
		break;
	case VALUE_LIST:
		error = equal_lists(r, a->list, b->list, ret);
		break;
	case VALUE_DICT:
		if (a->dict->is_namespace || b->dict->is_namespace)
			*ret = a->dict == b->dict;
		else
			error = equal_dicts(r, a->dict, b->dict, ret);
		break;
	case VALUE_LOOP:
		*ret = a->loop == b->loop;
		break;
	case VALUE_FUNCTION:
		*ret = a->function == b->function;
		break;
	default:
		*ret = true; /* none, undefined */
		break;
	}
	r->depth--;
	return error;
}

int template__order(struct render *r, const struct value *a, const struct value *b, int *ret)
{
	int error = template__charge(r, 1);
	if (error < 0)
		return error;
	if (is_number(a) && is_number(b)) {
		double x = as_real(a), y = as_real(b);
		*ret = x < y ? -1 : x > y;
		if (a->kind != VALUE_FLOAT && b->kind != VALUE_FLOAT)
			*ret = as_integer(a) < as_integer(b) ? -1 : as_integer(a) > as_integer(b);
		return 0;
	}
	if (a->kind == VALUE_STRING && b->kind == VALUE_STRING) {
		size_t common = MIN(a->string.bytes, b->string.bytes);
		int order = common ? memcmp(a->string.data, b->string.data, common) : 0;
		if (!order)
			order = a->string.bytes < b->string.bytes ? -1
				: a->string.bytes > b->string.bytes;
		*ret = order;
		return 0;
	}
	if (a->kind == VALUE_LIST && b->kind == VALUE_LIST) {
		size_t i = 0;
		if (++r->depth > TEMPLATE_EVAL_DEPTH_MAX)
			return template__fail(r, "nested too deeply");
		for (*ret = 0; i < MIN(a->list->count, b->list->count) && !*ret; i++) {
			error = template__order(r, &a->list->items[i], &b->list->items[i], ret);
			if (error < 0)
				return error;
		}
		r->depth--;
		if (!*ret)
			*ret = a->list->count < b->list->count ? -1
			       : a->list->count > b->list->count;
		return 0;
	}
	return template__fail(r, "these two values have no order");
}

int template__contains(struct render *r, const struct value *in, const struct value *item,
		       bool *ret)
{
	*ret = false;
	switch (in->kind) {
	case VALUE_UNDEFINED:
		return 0;
	case VALUE_STRING:
		if (item->kind != VALUE_STRING)
			return template__fail(r, "only a text can be in a text");
		*ret = string_find(in->string, item->string, 0) != SIZE_MAX;
		return template__charge(r, 1 + in->string.bytes / 64);
	case VALUE_LIST:
		for (size_t i = 0; !*ret && i < in->list->count; i++) {
			int error = template__equal(r, &in->list->items[i], item, ret);
			if (error < 0)
				return error;
		}
		return 0;
	case VALUE_DICT:
		*ret = item->kind == VALUE_STRING &&
		       template__dict_get(in->dict, item->string) != NULL;
		return template__charge(r, 1 + in->dict->count / 4);
	default:
		return template__fail(r, "this value cannot hold another ('in')");
	}
}

static int characters(struct render *r, struct string s, struct value *ret)
{
	size_t count = string_characters(s);
	int error = template__list_new(r, count, ret);
	for (size_t i = 0, at = 0; error >= 0 && i < count; i++) {
		size_t bytes = utf8_bytes(s.data[at]);
		ret->list->items[i] = template__string(string_part(s, at, bytes));
		at += bytes;
	}
	return error;
}

int template__items(struct render *r, const struct value *v, const struct list **ret)
{
	struct value list;
	int error;
	switch (v->kind) {
	case VALUE_LIST:
		*ret = v->list;
		return 0;
	case VALUE_UNDEFINED:
		error = template__list_new(r, 0, &list);
		break;
	case VALUE_STRING:
		error = characters(r, v->string, &list);
		break;
	case VALUE_DICT:
		if (v->dict->is_namespace)
			return template__fail(r, "a namespace cannot be looped over");
		error = template__list_new(r, v->dict->count, &list);
		for (size_t i = 0; error >= 0 && i < v->dict->count; i++)
			list.list->items[i] = template__string(v->dict->entries[i].key);
		break;
	default:
		return template__fail(r, "this value cannot be looped over");
	}
	if (error >= 0)
		*ret = list.list;
	return error;
}

int template__length(struct render *r, const struct value *v, size_t *ret)
{
	switch (v->kind) {
	case VALUE_UNDEFINED:
		*ret = 0;
		return 0;
	case VALUE_STRING:
		*ret = string_characters(v->string);
		return template__charge(r, 1 + v->string.bytes / 64);
	case VALUE_LIST:
		*ret = v->list->count;
		return 0;
	case VALUE_DICT:
		*ret = v->dict->count;
		return 0;
	default:
		return template__fail(r, "this value has no length");
	}
}

static int loop_attribute(struct render *r, const struct loop *loop, const char *name,
			  struct value *ret)
{
	int64_t index = (int64_t)loop->index, count = (int64_t)loop->list->count;
	const struct {
		const char *name;
		struct value value;
	} attributes[] = {
		{ "index", template__int(index + 1) },
		{ "index0", template__int(index) },
		{ "first", template__bool(index == 0) },
		{ "last", template__bool(index == count - 1) },
		{ "length", template__int(count) },
		{ "revindex", template__int(count - index) },
		{ "revindex0", template__int(count - index - 1) },
		{ "depth", template__int(1) }, /* only recursive loops go deeper */
		{ "depth0", template__int(0) },
	};
	for (size_t i = 0; i < ARRAY_COUNT(attributes); i++) {
		if (strcmp(name, attributes[i].name) == 0) {
			*ret = attributes[i].value;
			return 0;
		}
	}
	*ret = template__undefined(name);
	if (strcmp(name, "previtem") == 0 && index > 0)
		*ret = loop->list->items[index - 1];
	if (strcmp(name, "nextitem") == 0 && index < count - 1)
		*ret = loop->list->items[index + 1];
	return 0;
}

static int undefined_used(struct render *r, const struct value *v)
{
	return template__fail(r, "'%s' is undefined", v->name ? v->name : "a value");
}

int template__attribute(struct render *r, const struct value *v, const char *name,
			struct value *ret)
{
	if (v->kind == VALUE_UNDEFINED)
		return undefined_used(r, v);
	const struct builtin *method = template__find_method(v, name);
	if (method) {
		struct function *f = memory_alloc(&r->memory, 1, sizeof(*f));
		if (!f)
			return template__no_memory(r);
		*f = (struct function){ .builtin = method, .self = *v };
		*ret = (struct value){ .kind = VALUE_FUNCTION, .function = f };
		return 0;
	}
	if (v->kind == VALUE_LOOP)
		return loop_attribute(r, v->loop, name, ret);
	*ret = template__undefined(name);
	if (v->kind == VALUE_DICT) {
		const struct value *found = template__dict_get(v->dict, template__own(name));
		if (found)
			*ret = *found;
		return template__charge(r, 1 + v->dict->count / 4);
	}
	return 0;
}

static bool index_of(const struct value *key, size_t count, size_t *ret)
{
	int64_t index = as_integer(key);
	if (index < 0)
		index += (int64_t)count;
	if (index < 0 || index >= (int64_t)count)
		return false;
	*ret = (size_t)index;
	return true;
}

int template__subscript(struct render *r, const struct value *v, const struct value *key,
			struct value *ret)
{
	bool integer = key->kind == VALUE_INT || key->kind == VALUE_BOOL;
	size_t index;
	if (v->kind == VALUE_UNDEFINED)
		return undefined_used(r, v);
	*ret = template__undefined(NULL);
	if (v->kind == VALUE_LIST && integer) {
		if (index_of(key, v->list->count, &index))
			*ret = v->list->items[index];
		return 0;
	}
	if (v->kind == VALUE_STRING && integer) {
		if (index_of(key, string_characters(v->string), &index)) {
			size_t at = string_offset(v->string, index);
			*ret = template__string(
				string_part(v->string, at, utf8_bytes(v->string.data[at])));
		}
		return template__charge(r, 1 + v->string.bytes / 64);
	}
	if (key->kind != VALUE_STRING)
		return 0;
	if (v->kind == VALUE_DICT) {
		const struct value *found = template__dict_get(v->dict, key->string);
		int error = template__charge(r, 1 + v->dict->count / 4);
		if (found)
			*ret = *found;
		if (found || error < 0)
			return error;
	}
	/* x['name'] falls back to x.name. */
	const char *name = memory_copy(&r->memory, key->string.data, key->string.bytes);
	return name ? template__attribute(r, v, name, ret) : template__no_memory(r);
}

/* Python's rule: bounds beyond an end mean that end, which differs with the direction. */
static int64_t clamp(int64_t bound, int64_t count, int64_t step)
{
	if (bound < 0)
		bound += count;
	int64_t low = step < 0 ? -1 : 0, high = step < 0 ? count - 1 : count;
	return bound < low ? low : bound > high ? high : bound;
}

int template__slice(struct render *r, const struct value *v, const int64_t *start,
		    const int64_t *stop, int64_t step, struct value *ret)
{
	if (v->kind == VALUE_UNDEFINED)
		return undefined_used(r, v);
	if (v->kind != VALUE_LIST && v->kind != VALUE_STRING)
		return template__fail(r, "only lists and texts have slices");
	if (!step || step == INT64_MIN)
		return template__fail(r, "a slice's step cannot be %lld", (long long)step);
	size_t length;
	int error = template__length(r, v, &length);
	if (error < 0)
		return error;
	int64_t count = (int64_t)length;
	int64_t from = start ? clamp(*start, count, step) : step < 0 ? count - 1 : 0;
	int64_t to = stop ? clamp(*stop, count, step) : step < 0 ? -1 : count;
	if (v->kind == VALUE_STRING && step == 1) {
		size_t at = string_offset(v->string, (size_t)from);
		size_t end = to > from ? string_offset(v->string, (size_t)to) : at;
		*ret = template__string(string_part(v->string, at, end - at));
		return 0;
	}
	const struct list *items;
	if ((error = template__items(r, v, &items)) < 0)
		return error;
	int64_t kept = step > 0 ? (to - from + step - 1) / step : (from - to - step - 1) / -step;
	if ((step > 0 && to <= from) || (step < 0 && to >= from))
		kept = 0;
	struct value list;
	if ((error = template__list_new(r, (size_t)kept, &list)) < 0)
		return error;
	list.list->tuple = v->kind == VALUE_LIST && v->list->tuple;
	for (int64_t i = 0; i < kept; i++)
		list.list->items[i] = items->items[from + i * step];
	*ret = list;
	if (v->kind == VALUE_LIST)
		return 0;
	struct string_builder b;
	builder_init(&b, r);
	for (int64_t i = 0; i < kept; i++)
		builder_add(&b, list.list->items[i].string);
	struct string joined;
	error = builder_finish(&b, &joined);
	*ret = template__string(joined);
	return error;
}

int template__attribute_path(struct render *r, const struct value *v, struct string path,
			     struct value *ret)
{
	struct value current = *v;
	for (size_t at = 0; at <= path.bytes;) {
		size_t dot = string_find(path, OWN("."), at);
		size_t end = dot == SIZE_MAX ? path.bytes : dot;
		struct value key = template__string(string_part(path, at, end - at)), next;
		if (current.kind == VALUE_LIST && end > at) {
			int64_t index = 0;
			bool digits = end - at < 10;
			for (size_t i = at; digits && i < end; i++) {
				digits = path.data[i] >= '0' && path.data[i] <= '9';
				index = index * 10 + (path.data[i] - '0');
			}
			if (digits)
				key = template__int(index);
		}
		if (current.kind == VALUE_UNDEFINED)
			break;
		int error = template__subscript(r, &current, &key, &next);
		if (error < 0)
			return error;
		current = next;
		at = end + 1;
	}
	*ret = current;
	return 0;
}
