/* Methods of texts, mappings, lists and loops, and the global functions of templates. Case is
 * ASCII's: templates change the case of roles and keywords. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "model/template_private.h"
#include "model/utf8.h"

#define METHOD(name)                                                                             \
	static int method_##name(struct render *r, const struct value *self,                     \
				 const struct args *args, struct value *ret)

const struct value *template__arg(const struct args *args, size_t index, const char *name)
{
	if (index < args->count)
		return &args->values[index];
	for (size_t i = 0; name && i < args->named_count; i++) {
		if (strcmp(args->names[i], name) == 0)
			return &args->named[i];
	}
	return NULL;
}

int template__arg_string(struct render *r, const struct args *args, size_t index, const char *name,
			 struct string *ret)
{
	const struct value *v = template__arg(args, index, name);
	if (!v || v->kind != VALUE_STRING)
		return template__fail(r, "argument %zu must be a text", index + 1);
	*ret = v->string;
	return 0;
}

int template__arg_int(struct render *r, const struct args *args, size_t index, const char *name,
		      int64_t initial, int64_t *ret)
{
	const struct value *v = template__arg(args, index, name);
	*ret = initial;
	if (!v)
		return 0;
	if (v->kind != VALUE_INT && v->kind != VALUE_BOOL)
		return template__fail(r, "argument %zu must be a whole number", index + 1);
	*ret = v->kind == VALUE_INT ? v->integer : v->boolean;
	return 0;
}

static int strip(struct render *r, const struct value *self, const struct args *args, int sides,
		 struct value *ret)
{
	const struct value *set = template__arg(args, 0, "chars");
	struct string characters = { 0 };
	if (set && set->kind == VALUE_STRING)
		characters = set->string;
	else if (set && set->kind != VALUE_NONE)
		return template__fail(r, "what to strip must be a text");
	*ret = template__string(string_strip(self->string, characters, sides));
	return template__charge(r, 1 + (self->string.bytes - ret->string.bytes) *
					       (1 + characters.bytes / 16) / 16);
}

METHOD(strip)
{
	return strip(r, self, args, STRIP_LEFT | STRIP_RIGHT, ret);
}

METHOD(lstrip)
{
	return strip(r, self, args, STRIP_LEFT, ret);
}

METHOD(rstrip)
{
	return strip(r, self, args, STRIP_RIGHT, ret);
}

static char upper(char c)
{
	return c >= 'a' && c <= 'z' ? (char)(c - 32) : c;
}

static char lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

enum case_rule { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_FIRST };

static int change_case(struct render *r, struct string s, enum case_rule rule, struct value *ret)
{
	char *text = memory_copy(&r->memory, s.data, s.bytes);
	int error = template__charge(r, 1 + s.bytes / 16);
	if (!text)
		return template__no_memory(r);
	bool in_word = false;
	for (size_t i = 0; i < s.bytes; i++) {
		char c = text[i];
		bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (uint8_t)c >= 0x80;
		bool up = rule == CASE_UPPER || (rule == CASE_TITLE && !in_word) ||
			  (rule == CASE_FIRST && i == 0);
		text[i] = up ? upper(c) : lower(c);
		in_word = letter;
	}
	*ret = template__string((struct string){ text, s.bytes, s.origin });
	return error;
}

METHOD(upper)
{
	return change_case(r, self->string, CASE_UPPER, ret);
}

METHOD(lower)
{
	return change_case(r, self->string, CASE_LOWER, ret);
}

METHOD(title)
{
	return change_case(r, self->string, CASE_TITLE, ret);
}

METHOD(capitalize)
{
	return change_case(r, self->string, CASE_FIRST, ret);
}

/* Whether the text has one of the affixes: a text or a tuple of them. */
static int has_affix(struct render *r, struct string s, const struct args *args, bool at_end,
		     struct value *ret)
{
	const struct value *affixes = template__arg(args, 0, NULL);
	struct list one = { .items = (struct value *)affixes, .count = 1 };
	const struct list *list = &one;
	if (affixes && affixes->kind == VALUE_LIST)
		list = affixes->list;
	else if (!affixes || affixes->kind != VALUE_STRING)
		return template__fail(r, "startswith and endswith need a text");
	*ret = template__bool(false);
	for (size_t i = 0; i < list->count; i++) {
		if (list->items[i].kind != VALUE_STRING)
			return template__fail(r, "startswith and endswith need texts");
		struct string affix = list->items[i].string;
		size_t at = at_end && affix.bytes <= s.bytes ? s.bytes - affix.bytes : 0;
		if (affix.bytes <= s.bytes && string_equal(string_part(s, at, affix.bytes), affix))
			ret->boolean = true;
	}
	return template__charge(r, 1 + list->count);
}

METHOD(startswith)
{
	return has_affix(r, self->string, args, false, ret);
}

METHOD(endswith)
{
	return has_affix(r, self->string, args, true, ret);
}

static int remove_affix(struct render *r, struct string s, const struct args *args, bool at_end,
			struct value *ret)
{
	struct string affix;
	int error = template__arg_string(r, args, 0, NULL, &affix);
	if (error < 0)
		return error;
	size_t at = at_end && affix.bytes <= s.bytes ? s.bytes - affix.bytes : 0;
	if (affix.bytes <= s.bytes && string_equal(string_part(s, at, affix.bytes), affix))
		s = string_part(s, at_end ? 0 : affix.bytes, s.bytes - affix.bytes);
	*ret = template__string(s);
	return 0;
}

METHOD(removeprefix)
{
	return remove_affix(r, self->string, args, false, ret);
}

METHOD(removesuffix)
{
	return remove_affix(r, self->string, args, true, ret);
}

METHOD(replace)
{
	struct string from, to, s = self->string, replaced;
	struct string_builder b;
	int64_t limit;
	int error;
	if ((error = template__arg_string(r, args, 0, "old", &from)) < 0 ||
	    (error = template__arg_string(r, args, 1, "new", &to)) < 0 ||
	    (error = template__arg_int(r, args, 2, "count", -1, &limit)) < 0)
		return error;
	if (!from.bytes)
		return template__fail(r, "nothing cannot be replaced");
	builder_init(&b, r);
	size_t at = 0;
	while (limit-- != 0) {
		size_t found = string_find(s, from, at);
		if (found == SIZE_MAX || b.text.failed)
			break;
		builder_add(&b, string_part(s, at, found - at));
		builder_add(&b, to);
		at = found + from.bytes;
	}
	builder_add(&b, string_part(s, at, s.bytes - at));
	error = template__charge(r, 1 + s.bytes / 16);
	if (error < 0) {
		buf_fini(&b.text);
		buf_fini(&b.origin);
		return error;
	}
	error = builder_finish(&b, &replaced);
	*ret = template__string(replaced);
	return error;
}

/* Parts of a text, gathered without knowing how many there will be. */
struct parts {
	struct render *r;
	struct value *items;
	size_t count, capacity;
	int error;
};

static void add_part(struct parts *p, struct string part)
{
	if (p->error >= 0)
		p->error = template__charge(p->r, 1);
	if (p->error < 0)
		return;
	if (p->count == p->capacity) {
		size_t capacity = MAX(p->capacity * 2, (size_t)8);
		struct value *items = memory_alloc(&p->r->memory, capacity, sizeof(*items));
		if (!items) {
			p->error = template__no_memory(p->r);
			return;
		}
		if (p->count)
			memcpy(items, p->items, p->count * sizeof(*items));
		p->items = items;
		p->capacity = capacity;
	}
	p->items[p->count++] = template__string(part);
}

static int take_parts(struct parts *p, struct value *ret)
{
	if (p->error < 0)
		return p->error;
	int error = template__list_new(p->r, 0, ret);
	if (error < 0)
		return error;
	ret->list->items = p->items;
	ret->list->count = p->count;
	return 0;
}

/* Without a separator: words between runs of white space. */
static void split_words(struct parts *p, struct string s, int64_t limit)
{
	struct string blank = { 0 };
	s = string_strip(s, blank, STRIP_LEFT);
	while (s.bytes && p->error >= 0) {
		size_t end = 0;
		uint32_t character;
		while (end < s.bytes && utf8_decode(s.data + end, s.bytes - end, &character) > 0 &&
		       !utf8_is_space(character, true))
			end += utf8_bytes(s.data[end]);
		if (limit-- == 0) {
			add_part(p, s);
			return;
		}
		add_part(p, string_part(s, 0, end));
		s = string_strip(string_part(s, end, s.bytes - end), blank, STRIP_LEFT);
	}
}

METHOD(split)
{
	const struct value *separator = template__arg(args, 0, "sep");
	struct string s = self->string;
	struct parts p = { .r = r };
	int64_t limit;
	int error = template__arg_int(r, args, 1, "maxsplit", -1, &limit);
	if (error < 0 || (error = template__charge(r, 1 + s.bytes / 32)) < 0)
		return error;
	if (!separator || separator->kind == VALUE_NONE) {
		split_words(&p, s, limit);
		return take_parts(&p, ret);
	}
	if (separator->kind != VALUE_STRING || !separator->string.bytes)
		return template__fail(r, "split needs a text that is not empty");
	size_t at = 0, found;
	while (limit-- != 0 && p.error >= 0 &&
	       (found = string_find(s, separator->string, at)) != SIZE_MAX) {
		add_part(&p, string_part(s, at, found - at));
		at = found + separator->string.bytes;
	}
	add_part(&p, string_part(s, at, s.bytes - at));
	return take_parts(&p, ret);
}

/* The last occurrence at or before @from bytes of start offsets; SIZE_MAX: none. */
static size_t find_last(struct string s, struct string needle)
{
	if (needle.bytes > s.bytes)
		return SIZE_MAX;
	for (size_t at = s.bytes - needle.bytes + 1; at-- > 0;) {
		if (!needle.bytes || memcmp(s.data + at, needle.data, needle.bytes) == 0)
			return at;
	}
	return SIZE_MAX;
}

METHOD(rsplit)
{
	struct string separator, s = self->string;
	struct parts p = { .r = r };
	int64_t limit;
	int error;
	if ((error = template__arg_string(r, args, 0, "sep", &separator)) < 0 ||
	    (error = template__arg_int(r, args, 1, "maxsplit", -1, &limit)) < 0 ||
	    (error = template__charge(r, 1 + s.bytes * (1 + separator.bytes / 16) / 16)) < 0)
		return error;
	if (!separator.bytes)
		return template__fail(r, "rsplit needs a text that is not empty");
	size_t found;
	while (limit-- != 0 && p.error >= 0 && (found = find_last(s, separator)) != SIZE_MAX) {
		size_t end = found + separator.bytes;
		add_part(&p, string_part(s, end, s.bytes - end));
		s = string_part(s, 0, found);
	}
	add_part(&p, s);
	for (size_t i = 0; p.error >= 0 && i < p.count / 2; i++) {
		struct value swap = p.items[i];
		p.items[i] = p.items[p.count - 1 - i];
		p.items[p.count - 1 - i] = swap;
	}
	return take_parts(&p, ret);
}

METHOD(splitlines)
{
	struct string s = self->string;
	struct parts p = { .r = r };
	for (size_t at = 0; at < s.bytes && p.error >= 0;) {
		size_t end = at;
		while (end < s.bytes && s.data[end] != '\n' && s.data[end] != '\r')
			end++;
		add_part(&p, string_part(s, at, end - at));
		at = end + 1;
		if (end + 1 < s.bytes && s.data[end] == '\r' && s.data[end + 1] == '\n')
			at++;
	}
	return take_parts(&p, ret);
}

static int find_in(struct render *r, struct string s, const struct args *args, bool last,
		   struct value *ret)
{
	struct string needle;
	int error = template__arg_string(r, args, 0, NULL, &needle);
	if (error < 0 ||
	    (error = template__charge(r, 1 + s.bytes * (1 + needle.bytes / 16) / 32)) < 0)
		return error;
	size_t at = last ? find_last(s, needle) : string_find(s, needle, 0);
	*ret = template__int(at == SIZE_MAX ? -1
					    : (int64_t)string_characters(string_part(s, 0, at)));
	return 0;
}

METHOD(find)
{
	return find_in(r, self->string, args, false, ret);
}

METHOD(rfind)
{
	return find_in(r, self->string, args, true, ret);
}

METHOD(count)
{
	struct string needle;
	int error = template__arg_string(r, args, 0, NULL, &needle);
	if (error < 0 || (error = template__charge(r, 1 + self->string.bytes / 16)) < 0)
		return error;
	int64_t count = 0;
	for (size_t at = 0; needle.bytes && (at = string_find(self->string, needle, at)) != SIZE_MAX;
	     at += needle.bytes)
		count++;
	*ret = template__int(count);
	return 0;
}

METHOD(join)
{
	const struct value *items = template__arg(args, 0, NULL);
	if (!items)
		return template__fail(r, "join needs a list");
	struct args separator = { .values = { *self }, .count = 1 };
	return template__find_filter(OWN("join"))->call(r, items, &separator, ret);
}

METHOD(isdigit)
{
	struct string s = self->string;
	*ret = template__bool(s.bytes > 0);
	for (size_t i = 0; i < s.bytes; i++)
		ret->boolean = ret->boolean && s.data[i] >= '0' && s.data[i] <= '9';
	return template__charge(r, 1 + s.bytes / 64);
}

METHOD(get)
{
	const struct value *key = template__arg(args, 0, NULL);
	const struct value *initial = template__arg(args, 1, NULL);
	const struct value *found = NULL;
	if (!key)
		return template__fail(r, "get needs a key");
	if (key->kind == VALUE_STRING)
		found = template__dict_get(self->dict, key->string);
	*ret = found ? *found : initial ? *initial : (struct value){ .kind = VALUE_NONE };
	return template__charge(r, 1 + self->dict->count / 4);
}

METHOD(keys)
{
	const struct list *items;
	int error = template__items(r, self, &items);
	*ret = (struct value){ .kind = VALUE_LIST, .list = (struct list *)items };
	return error;
}

METHOD(values)
{
	int error = template__list_new(r, self->dict->count, ret);
	for (size_t i = 0; error >= 0 && i < self->dict->count; i++)
		ret->list->items[i] = self->dict->entries[i].value;
	return error;
}

METHOD(items)
{
	int error = template__list_new(r, self->dict->count, ret);
	for (size_t i = 0; error >= 0 && i < self->dict->count; i++) {
		struct value *pair = &ret->list->items[i];
		error = template__list_new(r, 2, pair);
		if (error < 0)
			break;
		pair->list->tuple = true;
		pair->list->items[0] = template__string(self->dict->entries[i].key);
		pair->list->items[1] = self->dict->entries[i].value;
	}
	return error;
}

METHOD(index)
{
	const struct value *item = template__arg(args, 0, NULL);
	bool same = false;
	for (size_t i = 0; item && i < self->list->count; i++) {
		int error = template__equal(r, &self->list->items[i], item, &same);
		*ret = template__int((int64_t)i);
		if (error < 0 || same)
			return error;
	}
	return template__fail(r, "index: the value is not in the list");
}

METHOD(refused)
{
	return template__fail(r, "values cannot be changed in place");
}

METHOD(cycle)
{
	if (!args->count)
		return template__fail(r, "cycle needs values");
	*ret = args->values[self->loop->index % args->count];
	return 0;
}

METHOD(changed)
{
	struct value seen;
	bool same;
	int error = template__list_new(r, args->count, &seen);
	if (error < 0)
		return error;
	if (args->count)
		memcpy(seen.list->items, args->values, args->count * sizeof(args->values[0]));
	error = template__equal(r, &seen, &self->loop->changed, &same);
	self->loop->changed = seen;
	*ret = template__bool(!same);
	return error;
}

static int global_range(struct render *r, const struct value *self, const struct args *args,
			struct value *ret)
{
	int64_t first = 0, end, step;
	int error;
	if (!args->count)
		return template__fail(r, "range needs a number");
	if ((error = template__arg_int(r, args, 0, NULL, 0, &end)) < 0 ||
	    (error = template__arg_int(r, args, 2, NULL, 1, &step)) < 0)
		return error;
	if (args->count > 1) {
		first = end;
		if ((error = template__arg_int(r, args, 1, NULL, 0, &end)) < 0)
			return error;
	}
	/* Jinja's sandbox has the same bound. */
	const int64_t bound = 100000;
	if (!step || step < -bound || step > bound || first < -bound * bound ||
	    first > bound * bound || end < -bound * bound || end > bound * bound)
		return template__fail(r, "this range is too large");
	int64_t count = step > 0 ? (end - first + step - 1) / step : (first - end - step - 1) / -step;
	if ((step > 0 && end <= first) || (step < 0 && end >= first))
		count = 0;
	if (count > bound)
		return template__fail(r, "a range has at most %lld numbers", (long long)bound);
	error = template__list_new(r, (size_t)count, ret);
	for (int64_t i = 0; error >= 0 && i < count; i++)
		ret->list->items[i] = template__int(first + i * step);
	return error;
}

static int new_dict(struct render *r, const struct args *args, bool is_namespace, struct value *ret)
{
	int error = template__dict_new(r, args->named_count, ret);
	if (error < 0)
		return error;
	ret->dict->is_namespace = is_namespace;
	if (args->count && args->values[0].kind == VALUE_DICT) {
		const struct dict *from = args->values[0].dict;
		for (size_t i = 0; i < from->count && error >= 0; i++)
			error = template__dict_set(r, ret->dict, from->entries[i].key,
						   from->entries[i].value);
	}
	for (size_t i = 0; i < args->named_count && error >= 0; i++)
		error = template__dict_set(r, ret->dict, template__own(args->names[i]),
					   args->named[i]);
	return error;
}

static int global_namespace(struct render *r, const struct value *self, const struct args *args,
			    struct value *ret)
{
	return new_dict(r, args, true, ret);
}

static int global_dict(struct render *r, const struct value *self, const struct args *args,
		       struct value *ret)
{
	return new_dict(r, args, false, ret);
}

static int global_raise(struct render *r, const struct value *self, const struct args *args,
			struct value *ret)
{
	struct string message = OWN("the template refuses the messages");
	if (args->count && args->values[0].kind == VALUE_STRING)
		message = args->values[0].string;
	return template__fail(r, "%.*s", (int)MIN(message.bytes, (size_t)300), message.data);
}

static int global_strftime(struct render *r, const struct value *self, const struct args *args,
			   struct value *ret)
{
	struct string format;
	char pattern[128], text[512];
	time_t now = time(NULL);
	struct tm tm;
	int error = template__arg_string(r, args, 0, NULL, &format);
	if (error < 0)
		return error;
	if (format.bytes >= sizeof(pattern))
		return template__fail(r, "this time format is too long");
	memcpy(pattern, format.data, format.bytes);
	pattern[format.bytes] = 0;
	localtime_r(&now, &tm);
	size_t bytes = strftime(text, sizeof(text), pattern, &tm);
	char *copy = memory_copy(&r->memory, text, bytes);
	if (!copy)
		return template__no_memory(r);
	*ret = template__string((struct string){ copy, bytes, format.origin ? template__foreign : NULL });
	return 0;
}

static const struct builtin *find_in_table(const struct builtin *table, const char *name)
{
	for (; table->name; table++) {
		if (strcmp(table->name, name) == 0)
			return table;
	}
	return NULL;
}

const struct builtin *template__find_global(const char *name)
{
	static const struct builtin globals[] = {
		{ "range", global_range },
		{ "namespace", global_namespace },
		{ "dict", global_dict },
		{ "raise_exception", global_raise },
		{ "strftime_now", global_strftime },
		{ NULL, NULL },
	};
	return find_in_table(globals, name);
}

const struct builtin *template__find_method(const struct value *v, const char *name)
{
	static const struct builtin strings[] = {
		{ "strip", method_strip },	   { "lstrip", method_lstrip },
		{ "rstrip", method_rstrip },	   { "split", method_split },
		{ "rsplit", method_rsplit },	   { "splitlines", method_splitlines },
		{ "startswith", method_startswith }, { "endswith", method_endswith },
		{ "removeprefix", method_removeprefix }, { "removesuffix", method_removesuffix },
		{ "upper", method_upper },	   { "lower", method_lower },
		{ "title", method_title },	   { "capitalize", method_capitalize },
		{ "replace", method_replace },	   { "find", method_find },
		{ "rfind", method_rfind },	   { "count", method_count },
		{ "join", method_join },	   { "isdigit", method_isdigit },
		{ NULL, NULL },
	};
	static const struct builtin dicts[] = {
		{ "get", method_get },	     { "items", method_items },
		{ "keys", method_keys },     { "values", method_values },
		{ "update", method_refused }, { "pop", method_refused },
		{ "setdefault", method_refused }, { NULL, NULL },
	};
	static const struct builtin lists[] = {
		{ "index", method_index },	{ "append", method_refused },
		{ "extend", method_refused },	{ "pop", method_refused },
		{ "insert", method_refused },	{ NULL, NULL },
	};
	static const struct builtin loops[] = {
		{ "cycle", method_cycle },
		{ "changed", method_changed },
		{ NULL, NULL },
	};
	switch (v->kind) {
	case VALUE_STRING:
		return find_in_table(strings, name);
	case VALUE_DICT:
		return v->dict->is_namespace ? NULL : find_in_table(dicts, name);
	case VALUE_LIST:
		return find_in_table(lists, name);
	case VALUE_LOOP:
		return find_in_table(loops, name);
	default:
		return NULL;
	}
}
