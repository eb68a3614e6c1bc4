/* Tests of templates: value is name(arguments). */
#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "model/template_private.h"

enum {
	TEST_DEFINED,
	TEST_UNDEFINED,
	TEST_NONE,
	TEST_STRING,
	TEST_MAPPING,
	TEST_ITERABLE,
	TEST_SEQUENCE,
	TEST_NUMBER,
	TEST_INTEGER,
	TEST_FLOAT,
	TEST_BOOLEAN,
	TEST_TRUE,
	TEST_FALSE,
	TEST_CALLABLE,
	TEST_ODD,
	TEST_EVEN,
	TEST_LOWER,
	TEST_UPPER,
	TEST_DIVISIBLE,
	TEST_EQUAL,
	TEST_NOT_EQUAL,
	TEST_LESS,
	TEST_LESS_EQUAL,
	TEST_GREATER,
	TEST_GREATER_EQUAL,
	TEST_IN,
	TEST_SAME,
};

/* The position in this table is the test; calls go through template__apply_test(). */
static const struct builtin tests[] = {
	[TEST_DEFINED] = { "defined", NULL },
	[TEST_UNDEFINED] = { "undefined", NULL },
	[TEST_NONE] = { "none", NULL },
	[TEST_STRING] = { "string", NULL },
	[TEST_MAPPING] = { "mapping", NULL },
	[TEST_ITERABLE] = { "iterable", NULL },
	[TEST_SEQUENCE] = { "sequence", NULL },
	[TEST_NUMBER] = { "number", NULL },
	[TEST_INTEGER] = { "integer", NULL },
	[TEST_FLOAT] = { "float", NULL },
	[TEST_BOOLEAN] = { "boolean", NULL },
	[TEST_TRUE] = { "true", NULL },
	[TEST_FALSE] = { "false", NULL },
	[TEST_CALLABLE] = { "callable", NULL },
	[TEST_ODD] = { "odd", NULL },
	[TEST_EVEN] = { "even", NULL },
	[TEST_LOWER] = { "lower", NULL },
	[TEST_UPPER] = { "upper", NULL },
	[TEST_DIVISIBLE] = { "divisibleby", NULL },
	[TEST_EQUAL] = { "eq", NULL },
	[TEST_NOT_EQUAL] = { "ne", NULL },
	[TEST_LESS] = { "lt", NULL },
	[TEST_LESS_EQUAL] = { "le", NULL },
	[TEST_GREATER] = { "gt", NULL },
	[TEST_GREATER_EQUAL] = { "ge", NULL },
	[TEST_IN] = { "in", NULL },
	[TEST_SAME] = { "sameas", NULL },
};

const struct builtin *template__find_test(struct string name)
{
	static const struct {
		const char *name;
		int test;
	} others[] = {
		{ "==", TEST_EQUAL },	  { "equalto", TEST_EQUAL }, { "!=", TEST_NOT_EQUAL },
		{ "<", TEST_LESS },	  { "lessthan", TEST_LESS }, { "<=", TEST_LESS_EQUAL },
		{ ">", TEST_GREATER },	  { "greaterthan", TEST_GREATER },
		{ ">=", TEST_GREATER_EQUAL }, { "None", TEST_NONE },
	};
	for (size_t i = 0; i < ARRAY_COUNT(tests); i++) {
		if (string_is(name, tests[i].name))
			return &tests[i];
	}
	for (size_t i = 0; i < ARRAY_COUNT(others); i++) {
		if (string_is(name, others[i].name))
			return &tests[others[i].test];
	}
	return NULL;
}

static bool is_cased(struct string s, bool upper)
{
	bool cased = false;
	for (size_t i = 0; i < s.bytes; i++) {
		char c = s.data[i];
		bool is_upper = c >= 'A' && c <= 'Z', is_lower = c >= 'a' && c <= 'z';
		if (upper ? is_lower : is_upper)
			return false;
		cased = cased || is_upper || is_lower;
	}
	return cased;
}

/* Tests of the value alone. Return: 1 or 0; -1: not one of them. */
static int test_kind(int test, const struct value *v)
{
	enum value_kind kind = v->kind;
	switch (test) {
	case TEST_DEFINED:
		return kind != VALUE_UNDEFINED;
	case TEST_UNDEFINED:
		return kind == VALUE_UNDEFINED;
	case TEST_NONE:
		return kind == VALUE_NONE;
	case TEST_STRING:
		return kind == VALUE_STRING;
	case TEST_MAPPING:
		return kind == VALUE_DICT && !v->dict->is_namespace;
	case TEST_ITERABLE:
		return kind == VALUE_STRING || kind == VALUE_LIST || kind == VALUE_UNDEFINED ||
		       (kind == VALUE_DICT && !v->dict->is_namespace);
	case TEST_SEQUENCE:
		return kind == VALUE_STRING || kind == VALUE_LIST || kind == VALUE_UNDEFINED ||
		       (kind == VALUE_DICT && !v->dict->is_namespace);
	case TEST_NUMBER:
		return kind == VALUE_INT || kind == VALUE_FLOAT || kind == VALUE_BOOL;
	case TEST_INTEGER:
		return kind == VALUE_INT;
	case TEST_FLOAT:
		return kind == VALUE_FLOAT;
	case TEST_BOOLEAN:
		return kind == VALUE_BOOL;
	case TEST_TRUE:
		return kind == VALUE_BOOL && v->boolean;
	case TEST_FALSE:
		return kind == VALUE_BOOL && !v->boolean;
	case TEST_CALLABLE:
		return kind == VALUE_FUNCTION;
	case TEST_LOWER:
	case TEST_UPPER:
		return kind == VALUE_STRING && is_cased(v->string, test == TEST_UPPER);
	default:
		return -1;
	}
}

static int test_whole(struct render *r, int test, const struct value *v, const struct value *other,
		      bool *ret)
{
	int64_t divisor = 2;
	if (test == TEST_DIVISIBLE) {
		if (!other || other->kind != VALUE_INT || !other->integer || other->integer == -1)
			return template__fail(r, "divisibleby needs a number other than 0 and -1");
		divisor = other->integer;
	}
	if (v->kind != VALUE_INT)
		return template__fail(r, "this test needs a whole number");
	*ret = (v->integer % divisor == 0) != (test == TEST_ODD);
	return 0;
}

int template__apply_test(struct render *r, const struct builtin *builtin, const struct value *v,
			 const struct args *args, bool *ret)
{
	int test = (int)(builtin - tests), order, error;
	int kind = test_kind(test, v);
	const struct value *other = args->count ? &args->values[0] : NULL;
	if (kind >= 0) {
		*ret = kind;
		return 0;
	}
	if (test == TEST_ODD || test == TEST_EVEN || test == TEST_DIVISIBLE)
		return test_whole(r, test, v, other, ret);
	if (!other)
		return template__fail(r, "the test '%s' needs a value to compare with", builtin->name);
	switch (test) {
	case TEST_EQUAL:
	case TEST_NOT_EQUAL:
		error = template__equal(r, v, other, ret);
		*ret = *ret != (test == TEST_NOT_EQUAL);
		return error;
	case TEST_SAME:
		error = template__equal(r, v, other, ret);
		*ret = *ret && v->kind == other->kind;
		return error;
	case TEST_IN:
		return template__contains(r, other, v, ret);
	default:
		break;
	}
	if ((error = template__order(r, v, other, &order)) < 0)
		return error;
	*ret = test == TEST_LESS	 ? order < 0
	       : test == TEST_LESS_EQUAL ? order <= 0
	       : test == TEST_GREATER	 ? order > 0
					 : order >= 0;
	return 0;
}
