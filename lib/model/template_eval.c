/* Expressions of templates to values. Recursion follows the tree, and a depth counter bounds it. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "model/template_private.h"

static int eval_name(struct render *r, const struct node *node, struct value *ret)
{
	for (const struct frame *frame = r->frame; frame; frame = frame->parent) {
		for (const struct binding *b = frame->bindings; b; b = b->next) {
			if (b->name == node->name) {
				*ret = b->value;
				return 0;
			}
		}
	}
	const struct builtin *global = template__find_global(node->name);
	if (!global) {
		*ret = template__undefined(node->name);
		return 0;
	}
	struct function *f = memory_alloc(&r->memory, 1, sizeof(*f));
	if (!f)
		return template__no_memory(r);
	f->builtin = global;
	*ret = (struct value){ .kind = VALUE_FUNCTION, .function = f };
	return 0;
}

static int eval_list(struct render *r, const struct node *node, struct value *ret)
{
	size_t count = 0;
	for (const struct node *e = node->body; e; e = e->next)
		count++;
	struct value list;
	int error = template__list_new(r, count, &list);
	if (error < 0)
		return error;
	list.list->tuple = node->op == 1;
	size_t i = 0;
	for (const struct node *e = node->body; e && error >= 0; e = e->next)
		error = template__eval(r, e, &list.list->items[i++]);
	*ret = list;
	return error;
}

static int eval_dict(struct render *r, const struct node *node, struct value *ret)
{
	struct value dict;
	int error = template__dict_new(r, 4, &dict);
	for (const struct node *pair = node->body; pair && error >= 0; pair = pair->next) {
		struct value key, value;
		if ((error = template__eval(r, pair->a, &key)) < 0 ||
		    (error = template__eval(r, pair->b, &value)) < 0)
			return error;
		if (key.kind != VALUE_STRING)
			return template__fail(r, "only texts can be keys");
		error = template__dict_set(r, dict.dict, key.string, value);
	}
	*ret = dict;
	return error;
}

static int eval_slice(struct render *r, const struct node *node, struct value *ret)
{
	const struct node *parts[3] = { node->b, node->c, node->orelse };
	int64_t bounds[3] = { 0, 0, 1 };
	bool given[3] = { false };
	struct value of;
	int error = template__eval(r, node->a, &of);
	for (int i = 0; i < 3 && error >= 0; i++) {
		struct value bound;
		if (!parts[i] || (error = template__eval(r, parts[i], &bound)) < 0)
			continue;
		if (bound.kind == VALUE_NONE)
			continue;
		if (bound.kind != VALUE_INT)
			return template__fail(r, "a slice's bounds must be whole numbers");
		bounds[i] = bound.integer;
		given[i] = true;
	}
	if (error < 0)
		return error;
	return template__slice(r, &of, given[0] ? &bounds[0] : NULL, given[1] ? &bounds[1] : NULL,
			       bounds[2], ret);
}

static int eval_args(struct render *r, const struct node *first, struct args *args)
{
	args->count = args->named_count = 0;
	for (const struct node *node = first; node; node = node->next) {
		bool named = node->kind == NODE_KEYWORD;
		struct value value;
		int error = template__eval(r, named ? node->a : node, &value);
		if (error < 0)
			return error;
		if (named) {
			args->names[args->named_count] = node->name;
			args->named[args->named_count++] = value;
		} else {
			args->values[args->count++] = value;
		}
	}
	return 0;
}

int template__call_function(struct render *r, const struct function *f, const struct args *args,
			    struct value *ret)
{
	int error = template__charge(r, 1);
	if (error < 0)
		return error;
	if (f->builtin)
		return f->builtin->call(r, &f->self, args, ret);
	return template__call_macro(r, f, args, ret);
}

static int eval_call(struct render *r, const struct node *node, struct value *ret)
{
	struct value callee;
	struct args args;
	int error = template__eval(r, node->a, &callee);
	if (error < 0 || (error = eval_args(r, node->body, &args)) < 0)
		return error;
	if (callee.kind == VALUE_UNDEFINED)
		return template__fail(r, "'%s' is undefined or no function",
				      callee.name ? callee.name : "a value");
	if (callee.kind != VALUE_FUNCTION)
		return template__fail(r, "a value that is no function is called");
	return template__call_function(r, callee.function, &args, ret);
}

static int eval_filter(struct render *r, const struct node *node, struct value *ret)
{
	struct value of;
	struct args args;
	int error = template__eval(r, node->a, &of);
	if (error < 0 || (error = eval_args(r, node->body, &args)) < 0)
		return error;
	return node->builtin->call(r, &of, &args, ret);
}

static int eval_test(struct render *r, const struct node *node, struct value *ret)
{
	struct value of;
	struct args args;
	bool holds;
	int error = template__eval(r, node->a, &of);
	if (error < 0 || (error = eval_args(r, node->body, &args)) < 0 ||
	    (error = template__apply_test(r, node->builtin, &of, &args, &holds)) < 0)
		return error;
	*ret = template__bool(holds != (node->op == 1));
	return 0;
}

static bool is_number(const struct value *v)
{
	return v->kind == VALUE_BOOL || v->kind == VALUE_INT || v->kind == VALUE_FLOAT;
}

static int64_t whole(const struct value *v)
{
	return v->kind == VALUE_INT ? v->integer : v->boolean;
}

static double real(const struct value *v)
{
	return v->kind == VALUE_FLOAT ? v->real : (double)whole(v);
}

/* Division rounds down and the remainder has the divisor's sign, as in Python. */
static int whole_division(struct render *r, enum operator op, int64_t a, int64_t b, int64_t *ret)
{
	if (!b)
		return template__fail(r, "division by zero");
	if (b == -1) /* INT64_MIN / -1 does not fit */
		return op == OP_MODULO ? (*ret = 0, 0)
		       : __builtin_sub_overflow((int64_t)0, a, ret)
			       ? template__fail(r, "a number is too large")
			       : 0;
	int64_t quotient = a / b, rest = a % b;
	bool down = rest && (rest < 0) != (b < 0);
	*ret = op == OP_MODULO ? rest + (down ? b : 0) : quotient - down;
	return 0;
}

static int whole_arithmetic(struct render *r, enum operator op, int64_t a, int64_t b,
			    struct value *ret)
{
	int64_t result = 0;
	bool overflow = false;
	int error = 0;
	switch (op) {
	case OP_ADD:
		overflow = __builtin_add_overflow(a, b, &result);
		break;
	case OP_SUBTRACT:
		overflow = __builtin_sub_overflow(a, b, &result);
		break;
	case OP_MULTIPLY:
		overflow = __builtin_mul_overflow(a, b, &result);
		break;
	case OP_POWER:
		if (b < 0 || b > 64)
			return template__fail(r, "this power is not supported");
		for (result = 1; b && !overflow; b--)
			overflow = __builtin_mul_overflow(result, a, &result);
		break;
	default:
		error = whole_division(r, op, a, b, &result);
		break;
	}
	if (overflow)
		return template__fail(r, "a number is too large");
	*ret = template__int(result);
	return error;
}

static int real_arithmetic(struct render *r, enum operator op, double a, double b,
			   struct value *ret)
{
	double result;
	if ((op == OP_DIVIDE || op == OP_FLOOR_DIVIDE || op == OP_MODULO) && b == 0)
		return template__fail(r, "division by zero");
	switch (op) {
	case OP_ADD:
		result = a + b;
		break;
	case OP_SUBTRACT:
		result = a - b;
		break;
	case OP_MULTIPLY:
		result = a * b;
		break;
	case OP_DIVIDE:
		result = a / b;
		break;
	case OP_FLOOR_DIVIDE:
		result = floor(a / b);
		break;
	case OP_MODULO:
		result = fmod(a, b);
		if (result && (result < 0) != (b < 0))
			result += b;
		break;
	default:
		result = pow(a, b);
		break;
	}
	*ret = (struct value){ .kind = VALUE_FLOAT, .real = result };
	return 0;
}

static int concat(struct render *r, const struct value *a, const struct value *b, struct value *ret)
{
	struct string x, y, joined;
	int error;
	if ((error = template__text(r, a, &x)) < 0 || (error = template__text(r, b, &y)) < 0)
		return error;
	if (!x.bytes || !y.bytes) {
		*ret = template__string(x.bytes ? x : y);
		return 0;
	}
	struct string_builder builder;
	builder_init(&builder, r);
	builder_add(&builder, x);
	builder_add(&builder, y);
	error = builder_finish(&builder, &joined);
	*ret = template__string(joined);
	return error;
}

static int repeat(struct render *r, const struct value *a, int64_t times, struct value *ret)
{
	struct string s = a->string, joined;
	struct string_builder builder;
	if (times > 0 && s.bytes && (size_t)times > TEMPLATE_OUTPUT_BYTES_MAX / s.bytes)
		return template__no_memory(r);
	int error = template__charge(r, times > 0 ? (uint64_t)times : 1);
	if (error < 0)
		return error;
	builder_init(&builder, r);
	for (int64_t i = 0; s.bytes && i < times; i++)
		builder_add(&builder, s);
	error = builder_finish(&builder, &joined);
	*ret = template__string(joined);
	return error;
}

static int join_lists(struct render *r, const struct list *a, const struct list *b,
		      struct value *ret)
{
	int error = template__list_new(r, a->count + b->count, ret);
	if (error < 0)
		return error;
	ret->list->tuple = a->tuple;
	if (a->count)
		memcpy(ret->list->items, a->items, a->count * sizeof(a->items[0]));
	if (b->count)
		memcpy(ret->list->items + a->count, b->items, b->count * sizeof(b->items[0]));
	return 0;
}

static int binary(struct render *r, enum operator op, const struct value *a, const struct value *b,
		  struct value *ret)
{
	static const char *const names[] = { "+", "-", "*", "/", "//", "%", "**", "~" };
	if (op == OP_CONCAT)
		return concat(r, a, b, ret);
	if (is_number(a) && is_number(b)) {
		if (a->kind == VALUE_FLOAT || b->kind == VALUE_FLOAT || op == OP_DIVIDE)
			return real_arithmetic(r, op, real(a), real(b), ret);
		return whole_arithmetic(r, op, whole(a), whole(b), ret);
	}
	if (op == OP_ADD && a->kind == VALUE_STRING && b->kind == VALUE_STRING)
		return concat(r, a, b, ret);
	if (op == OP_ADD && a->kind == VALUE_LIST && b->kind == VALUE_LIST)
		return join_lists(r, a->list, b->list, ret);
	if (op == OP_MULTIPLY && a->kind == VALUE_STRING && b->kind == VALUE_INT)
		return repeat(r, a, b->integer, ret);
	const struct value *undefined = a->kind == VALUE_UNDEFINED ? a : b;
	if (undefined->kind == VALUE_UNDEFINED)
		return template__fail(r, "'%s' is undefined",
				      undefined->name ? undefined->name : "a value");
	return template__fail(r, "'%s' does not work on these two kinds of values", names[op]);
}

static int compare(struct render *r, enum operator op, const struct value *a, const struct value *b,
		   bool *ret)
{
	int order = 0, error;
	switch (op) {
	case OP_EQUAL:
	case OP_NOT_EQUAL:
		error = template__equal(r, a, b, ret);
		*ret = *ret != (op == OP_NOT_EQUAL);
		return error;
	case OP_IN:
	case OP_NOT_IN:
		error = template__contains(r, b, a, ret);
		*ret = *ret != (op == OP_NOT_IN);
		return error;
	default:
		error = template__order(r, a, b, &order);
		break;
	}
	*ret = op == OP_LESS	     ? order < 0
	       : op == OP_LESS_EQUAL ? order <= 0
	       : op == OP_GREATER    ? order > 0
				     : order >= 0;
	return error;
}

/* a < b < c: each link holds, from the left, until one does not. */
static int eval_compare(struct render *r, const struct node *node, struct value *ret)
{
	struct value left, right;
	bool holds = true;
	int error = template__eval(r, node->a, &left);
	for (const struct node *link = node->body; link && holds && error >= 0; link = link->next) {
		if ((error = template__eval(r, link->b, &right)) < 0)
			return error;
		error = compare(r, (enum operator)link->op, &left, &right, &holds);
		left = right;
	}
	*ret = template__bool(holds);
	return error;
}

static int eval_sign(struct render *r, const struct node *node, struct value *ret)
{
	struct value v, zero = template__int(0);
	int error = template__eval(r, node->a, &v);
	if (error < 0)
		return error;
	return binary(r, node->kind == NODE_NEGATE ? OP_SUBTRACT : OP_ADD, &zero, &v, ret);
}

static int eval_logic(struct render *r, const struct node *node, struct value *ret)
{
	struct value left;
	int error = template__eval(r, node->a, &left);
	if (error < 0)
		return error;
	bool truth = template__truth(&left);
	switch (node->kind) {
	case NODE_NOT:
		*ret = template__bool(!truth);
		return 0;
	case NODE_AND:
	case NODE_OR:
		*ret = left;
		return truth == (node->kind == NODE_AND) ? template__eval(r, node->b, ret) : 0;
	default: /* NODE_CONDITION */
		*ret = template__undefined(NULL);
		if (truth)
			return template__eval(r, node->b, ret);
		return node->c ? template__eval(r, node->c, ret) : 0;
	}
}

static int eval_pair(struct render *r, const struct node *node, struct value *ret)
{
	struct value a, b;
	int error;
	if ((error = template__eval(r, node->a, &a)) < 0)
		return error;
	if (node->kind == NODE_ATTRIBUTE)
		return template__attribute(r, &a, node->name, ret);
	if ((error = template__eval(r, node->b, &b)) < 0)
		return error;
	if (node->kind == NODE_INDEX)
		return template__subscript(r, &a, &b, ret);
	return binary(r, (enum operator)node->op, &a, &b, ret);
}

static int eval_kind(struct render *r, const struct node *node, struct value *ret)
{
	switch (node->kind) {
	case NODE_LITERAL:
		*ret = node->value;
		return 0;
	case NODE_CAPTURED:
		*ret = r->captured;
		return 0;
	case NODE_NAME:
		return eval_name(r, node, ret);
	case NODE_LIST:
		return eval_list(r, node, ret);
	case NODE_DICT:
		return eval_dict(r, node, ret);
	case NODE_ATTRIBUTE:
	case NODE_INDEX:
	case NODE_BINARY:
		return eval_pair(r, node, ret);
	case NODE_SLICE:
		return eval_slice(r, node, ret);
	case NODE_CALL:
		return eval_call(r, node, ret);
	case NODE_FILTER:
		return eval_filter(r, node, ret);
	case NODE_TEST:
		return eval_test(r, node, ret);
	case NODE_NEGATE:
	case NODE_PLUS:
		return eval_sign(r, node, ret);
	case NODE_COMPARE:
		return eval_compare(r, node, ret);
	default:
		return eval_logic(r, node, ret);
	}
}

int template__eval(struct render *r, const struct node *node, struct value *ret)
{
	int error = template__charge(r, 1);
	if (error < 0)
		return error;
	if (r->depth >= TEMPLATE_EVAL_DEPTH_MAX)
		return template__fail(r, "nested too deeply");
	r->depth++;
	error = eval_kind(r, node, ret);
	r->depth--;
	return error;
}
