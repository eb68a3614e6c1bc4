/* Tokens to a tree, by recursive descent. The binding of operators is Jinja's: or, and, not,
 * comparisons, + -, ~, * / // %, unary, **, then subscripts, calls, filters and tests. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "model/template_private.h"

static struct node *parse_expression(struct compiler *c, bool with_condition);
static struct node *parse_unary(struct compiler *c, bool with_filters);

int template__compile_fail(struct compiler *c, uint32_t line, const char *format, ...)
{
	if (!c->result && c->error_bytes) {
		int used = snprintf(c->error, c->error_bytes, "chat template, line %u: ", line);
		if (used > 0 && (size_t)used < c->error_bytes) {
			va_list args;
			va_start(args, format);
			vsnprintf(c->error + used, c->error_bytes - (size_t)used, format, args);
			va_end(args);
		}
	}
	if (!c->result)
		c->result = -EINVAL;
	return c->result;
}

static const struct token *current(const struct compiler *c)
{
	return &c->tokens[c->at];
}

static const struct token *ahead(const struct compiler *c)
{
	return &c->tokens[MIN(c->at + 1, c->token_count - 1)];
}

static bool is_operator(const struct token *token, const char *text)
{
	return token->kind == TOKEN_OPERATOR && string_is(token->text, text);
}

static bool is_word(const struct token *token, const char *text)
{
	return token->kind == TOKEN_NAME && string_is(token->text, text);
}

bool template__accept(struct compiler *c, const char *operator_)
{
	if (!is_operator(current(c), operator_))
		return false;
	c->at++;
	return true;
}

bool template__accept_word(struct compiler *c, const char *word)
{
	if (!is_word(current(c), word))
		return false;
	c->at++;
	return true;
}

void *template__fail_here(struct compiler *c, const char *wanted)
{
	const struct token *token = current(c);
	static const char *const names[] = {
		[TOKEN_END] = "the end of the template", [TOKEN_TEXT] = "text",
		[TOKEN_OUTPUT_BEGIN] = "{{",		 [TOKEN_OUTPUT_END] = "}}",
		[TOKEN_BLOCK_BEGIN] = "{%",		 [TOKEN_BLOCK_END] = "%}",
		[TOKEN_INT] = "a number",		 [TOKEN_FLOAT] = "a number",
		[TOKEN_STRING] = "a string",
	};
	if (token->kind == TOKEN_NAME || token->kind == TOKEN_OPERATOR)
		(void)template__compile_fail(c, token->line, "expected %s, not '%.*s'", wanted,
					     (int)MIN(token->text.bytes, (size_t)40),
					     token->text.data);
	else
		(void)template__compile_fail(c, token->line, "expected %s, not %s", wanted,
					     names[token->kind]);
	return NULL;
}

bool template__expect(struct compiler *c, const char *operator_)
{
	if (template__accept(c, operator_))
		return true;
	char wanted[16];
	snprintf(wanted, sizeof(wanted), "'%s'", operator_);
	(void)template__fail_here(c, wanted);
	return false;
}

struct node *template__new_node(struct compiler *c, enum node_kind kind)
{
	struct node *node = memory_alloc(&c->t->memory, 1, sizeof(*node));
	if (!node) {
		c->result = -ENOMEM;
		return NULL;
	}
	node->kind = kind;
	node->line = current(c)->line;
	return node;
}

static struct node *new_binary(struct compiler *c, enum node_kind kind, int op, struct node *a,
			       struct node *b)
{
	struct node *node = a && b ? template__new_node(c, kind) : NULL;
	if (!node)
		return NULL;
	node->op = op;
	node->a = a;
	node->b = b;
	return node;
}

const char *template__intern(struct chat_template *t, const char *text, size_t bytes, bool add)
{
	for (const struct name *name = t->names; name; name = name->next) {
		if (strlen(name->text) == bytes && memcmp(name->text, text, bytes) == 0)
			return name->text;
	}
	if (!add)
		return NULL;
	struct name *name = memory_alloc(&t->memory, 1, sizeof(*name));
	const char *copy = memory_copy(&t->memory, text, bytes);
	if (!name || !copy)
		return NULL;
	*name = (struct name){ t->names, copy };
	t->names = name;
	return copy;
}

const char *template__take_name(struct compiler *c)
{
	const struct token *token = current(c);
	if (token->kind != TOKEN_NAME)
		return template__fail_here(c, "a name");
	const char *name = template__intern(c->t, token->text.data, token->text.bytes, true);
	if (!name)
		c->result = -ENOMEM;
	c->at++;
	return name;
}

static struct node *new_literal(struct compiler *c, struct value value)
{
	struct node *node = template__new_node(c, NODE_LITERAL);
	if (node)
		node->value = value;
	return node;
}

/* Arguments up to the closing bracket; the opening one is taken. */
static bool parse_arguments(struct compiler *c, struct node **tail)
{
	size_t count = 0;
	while (!template__accept(c, ")")) {
		if (count++ == TEMPLATE_ARGS_MAX) {
			(void)template__compile_fail(c, current(c)->line, "more than %d arguments",
						     TEMPLATE_ARGS_MAX);
			return false;
		}
		struct node *argument;
		if (current(c)->kind == TOKEN_NAME && is_operator(ahead(c), "=")) {
			argument = template__new_node(c, NODE_KEYWORD);
			if (!argument || !(argument->name = template__take_name(c)))
				return false;
			c->at++;
			argument->a = parse_expression(c, true);
			if (!argument->a)
				return false;
		} else {
			argument = parse_expression(c, true);
		}
		if (!argument)
			return false;
		*tail = argument;
		tail = &argument->next;
		if (!is_operator(current(c), ")") && !template__expect(c, ","))
			return false;
	}
	return true;
}

/* a, b, c up to @close; an element is never shared, so its next is free. */
static struct node *parse_elements(struct compiler *c, enum node_kind kind, const char *close)
{
	struct node *list = template__new_node(c, kind);
	if (!list)
		return NULL;
	struct node **tail = &list->body;
	while (!template__accept(c, close)) {
		struct node *element;
		if (kind == NODE_DICT) {
			struct node *key = parse_expression(c, true);
			if (!key || !template__expect(c, ":"))
				return NULL;
			element = new_binary(c, NODE_PAIR, 0, key, parse_expression(c, true));
		} else {
			element = parse_expression(c, true);
		}
		if (!element)
			return NULL;
		*tail = element;
		tail = &element->next;
		if (!is_operator(current(c), close) && !template__expect(c, ","))
			return NULL;
	}
	return list;
}

/* What stands in (...): an expression, or a tuple when there is a comma. */
static struct node *parse_bracket(struct compiler *c)
{
	if (is_operator(current(c), ")")) {
		struct node *empty = parse_elements(c, NODE_LIST, ")");
		if (empty)
			empty->op = 1;
		return empty;
	}
	struct node *first = parse_expression(c, true);
	if (!first)
		return NULL;
	if (template__accept(c, ")"))
		return first;
	if (!template__expect(c, ","))
		return NULL;
	struct node *tuple = parse_elements(c, NODE_LIST, ")");
	if (!tuple)
		return NULL;
	tuple->op = 1;
	/* A name or literal parsed on its own has no next. */
	first->next = tuple->body;
	tuple->body = first;
	return tuple;
}

static struct node *parse_string(struct compiler *c)
{
	struct string text = current(c)->text;
	struct node *node = template__new_node(c, NODE_LITERAL);
	c->at++;
	/* Strings side by side are one. */
	while (node && current(c)->kind == TOKEN_STRING) {
		struct string more = current(c)->text;
		char *joined = memory_alloc(&c->t->memory, text.bytes + more.bytes + 1, 1);
		if (!joined) {
			c->result = -ENOMEM;
			return NULL;
		}
		memcpy(joined, text.data, text.bytes);
		memcpy(joined + text.bytes, more.data, more.bytes);
		text = (struct string){ joined, text.bytes + more.bytes, NULL };
		c->at++;
	}
	if (node)
		node->value = template__string(text);
	return node;
}

static struct node *parse_name(struct compiler *c)
{
	if (template__accept_word(c, "true") || template__accept_word(c, "True"))
		return new_literal(c, template__bool(true));
	if (template__accept_word(c, "false") || template__accept_word(c, "False"))
		return new_literal(c, template__bool(false));
	if (template__accept_word(c, "none") || template__accept_word(c, "None"))
		return new_literal(c, (struct value){ .kind = VALUE_NONE });
	struct node *node = template__new_node(c, NODE_NAME);
	if (node)
		node->name = template__take_name(c);
	return node && node->name ? node : NULL;
}

static struct node *parse_primary(struct compiler *c)
{
	const struct token *token = current(c);
	switch (token->kind) {
	case TOKEN_NAME:
		return parse_name(c);
	case TOKEN_STRING:
		return parse_string(c);
	case TOKEN_INT:
		c->at++;
		return new_literal(c, template__int(token->integer));
	case TOKEN_FLOAT:
		c->at++;
		return new_literal(c, (struct value){ .kind = VALUE_FLOAT, .real = token->real });
	default:
		break;
	}
	if (template__accept(c, "("))
		return parse_bracket(c);
	if (template__accept(c, "["))
		return parse_elements(c, NODE_LIST, "]");
	if (template__accept(c, "{"))
		return parse_elements(c, NODE_DICT, "}");
	return template__fail_here(c, "an expression");
}

/* [key] or [start:stop:step], the opening bracket taken. */
static struct node *parse_subscript(struct compiler *c, struct node *of)
{
	struct node *parts[3] = { 0 };
	size_t count = 0;
	bool slice = false;
	for (;;) {
		if (template__accept(c, ":")) {
			slice = true;
			if (++count == 3)
				return template__fail_here(c, "']'");
			continue;
		}
		if (template__accept(c, "]"))
			break;
		if (parts[count])
			return template__fail_here(c, "']'");
		parts[count] = parse_expression(c, true);
		if (!parts[count])
			return NULL;
	}
	if (!slice && !parts[0])
		return template__fail_here(c, "a subscript");
	struct node *node = template__new_node(c, slice ? NODE_SLICE : NODE_INDEX);
	if (!node)
		return NULL;
	node->a = of;
	node->b = parts[0];
	node->c = parts[1];
	node->orelse = parts[2];
	return node;
}

static struct node *parse_attribute(struct compiler *c, struct node *of)
{
	if (current(c)->kind == TOKEN_INT) { /* a.0 is a[0] */
		struct node *key = new_literal(c, template__int(current(c)->integer));
		c->at++;
		return new_binary(c, NODE_INDEX, 0, of, key);
	}
	struct node *node = template__new_node(c, NODE_ATTRIBUTE);
	if (!node || !(node->name = template__take_name(c)))
		return NULL;
	node->a = of;
	return node;
}

static struct node *parse_call(struct compiler *c, struct node *of)
{
	struct node *node = template__new_node(c, NODE_CALL);
	if (!node || !parse_arguments(c, &node->body))
		return NULL;
	node->a = of;
	return node;
}

static struct node *parse_postfix(struct compiler *c, struct node *node)
{
	while (node) {
		if (template__accept(c, "."))
			node = parse_attribute(c, node);
		else if (template__accept(c, "["))
			node = parse_subscript(c, node);
		else if (template__accept(c, "("))
			node = parse_call(c, node);
		else
			break;
	}
	return node;
}

static struct node *parse_filter(struct compiler *c, struct node *of)
{
	struct node *node = template__new_node(c, NODE_FILTER);
	struct string name = current(c)->text;
	if (!node || !template__take_name(c))
		return NULL;
	node->a = of;
	node->builtin = template__find_filter(name);
	if (!node->builtin) {
		(void)template__compile_fail(c, node->line, "there is no filter '%.*s'",
					     (int)MIN(name.bytes, (size_t)40), name.data);
		return NULL;
	}
	if (template__accept(c, "(") && !parse_arguments(c, &node->body))
		return NULL;
	return node;
}

static struct node *parse_test(struct compiler *c, struct node *of)
{
	struct node *node = template__new_node(c, NODE_TEST);
	if (!node)
		return NULL;
	node->a = of;
	node->op = template__accept_word(c, "not");
	struct string name = current(c)->text;
	if (!template__take_name(c))
		return NULL;
	node->builtin = template__find_test(name);
	if (!node->builtin) {
		(void)template__compile_fail(c, node->line, "there is no test '%.*s'",
					     (int)MIN(name.bytes, (size_t)40), name.data);
		return NULL;
	}
	const struct token *token = current(c);
	if (template__accept(c, "(")) {
		if (!parse_arguments(c, &node->body))
			return NULL;
		return node;
	}
	/* x is divisibleby 3 */
	bool argument = token->kind == TOKEN_STRING || token->kind == TOKEN_INT ||
			token->kind == TOKEN_FLOAT || is_operator(token, "[") ||
			is_operator(token, "{") ||
			(token->kind == TOKEN_NAME && !is_word(token, "else") &&
			 !is_word(token, "or") && !is_word(token, "and") && !is_word(token, "is") &&
			 !is_word(token, "if") && !is_word(token, "in") && !is_word(token, "not"));
	if (argument) {
		node->body = parse_postfix(c, parse_primary(c));
		if (!node->body)
			return NULL;
	}
	return node;
}

static struct node *parse_filters(struct compiler *c, struct node *node)
{
	while (node) {
		if (template__accept(c, "|"))
			node = parse_filter(c, node);
		else if (template__accept_word(c, "is"))
			node = parse_test(c, node);
		else if (template__accept(c, "("))
			node = parse_call(c, node);
		else
			break;
	}
	return node;
}

static struct node *parse_unary(struct compiler *c, bool with_filters)
{
	struct node *node;
	if (c->depth++ >= TEMPLATE_PARSE_DEPTH_MAX) {
		(void)template__compile_fail(c, current(c)->line, "nested too deeply");
		return NULL;
	}
	if (is_operator(current(c), "-") || is_operator(current(c), "+")) {
		enum node_kind kind = is_operator(current(c), "-") ? NODE_NEGATE : NODE_PLUS;
		c->at++;
		node = template__new_node(c, kind);
		if (node && !(node->a = parse_unary(c, false)))
			node = NULL;
	} else {
		node = parse_primary(c);
	}
	node = parse_postfix(c, node);
	if (with_filters)
		node = parse_filters(c, node);
	c->depth--;
	return node;
}

struct binary_operator {
	const char *text;
	enum operator op;
};

static struct node *parse_power(struct compiler *c)
{
	struct node *left = parse_unary(c, true);
	while (left && template__accept(c, "**"))
		left = new_binary(c, NODE_BINARY, OP_POWER, left, parse_unary(c, true));
	return left;
}

static struct node *parse_product(struct compiler *c)
{
	static const struct binary_operator operators[] = {
		{ "*", OP_MULTIPLY },
		{ "/", OP_DIVIDE },
		{ "//", OP_FLOOR_DIVIDE },
		{ "%", OP_MODULO },
	};
	struct node *left = parse_power(c);
	for (size_t i = 0; left && i < ARRAY_COUNT(operators);) {
		if (template__accept(c, operators[i].text)) {
			left = new_binary(c, NODE_BINARY, operators[i].op, left, parse_power(c));
			i = 0;
		} else {
			i++;
		}
	}
	return left;
}

static struct node *parse_concat(struct compiler *c)
{
	struct node *left = parse_product(c);
	while (left && template__accept(c, "~"))
		left = new_binary(c, NODE_BINARY, OP_CONCAT, left, parse_product(c));
	return left;
}

static struct node *parse_sum(struct compiler *c)
{
	struct node *left = parse_concat(c);
	while (left) {
		if (template__accept(c, "+"))
			left = new_binary(c, NODE_BINARY, OP_ADD, left, parse_concat(c));
		else if (template__accept(c, "-"))
			left = new_binary(c, NODE_BINARY, OP_SUBTRACT, left, parse_concat(c));
		else
			break;
	}
	return left;
}

static bool accept_comparison(struct compiler *c, int *ret_op)
{
	static const struct binary_operator operators[] = {
		{ "==", OP_EQUAL },	 { "!=", OP_NOT_EQUAL }, { "<=", OP_LESS_EQUAL },
		{ ">=", OP_GREATER_EQUAL }, { "<", OP_LESS },	 { ">", OP_GREATER },
	};
	for (size_t i = 0; i < ARRAY_COUNT(operators); i++) {
		if (template__accept(c, operators[i].text)) {
			*ret_op = operators[i].op;
			return true;
		}
	}
	if (template__accept_word(c, "in")) {
		*ret_op = OP_IN;
		return true;
	}
	if (is_word(current(c), "not") && is_word(ahead(c), "in")) {
		c->at += 2;
		*ret_op = OP_NOT_IN;
		return true;
	}
	return false;
}

static struct node *parse_comparison(struct compiler *c)
{
	struct node *left = parse_sum(c);
	struct node *chain = NULL, **tail = NULL;
	int op;
	while (left && accept_comparison(c, &op)) {
		if (!chain) {
			chain = template__new_node(c, NODE_COMPARE);
			if (!chain)
				return NULL;
			chain->a = left;
			tail = &chain->body;
		}
		struct node *link = template__new_node(c, NODE_BINARY);
		if (!link || !(link->b = parse_sum(c)))
			return NULL;
		link->op = op;
		*tail = link;
		tail = &link->next;
	}
	return chain ? chain : left;
}

static struct node *parse_not(struct compiler *c)
{
	size_t count = 0;
	while (template__accept_word(c, "not"))
		count++;
	struct node *node = parse_comparison(c);
	/* Two cancel but for the result's kind, so at most two matter. */
	for (count = count > 2 ? 2 - count % 2 : count; node && count; count--) {
		struct node *not = template__new_node(c, NODE_NOT);
		if (not)
			not->a = node;
		node = not;
	}
	return node;
}

static struct node *parse_and(struct compiler *c)
{
	struct node *left = parse_not(c);
	while (left && template__accept_word(c, "and"))
		left = new_binary(c, NODE_AND, 0, left, parse_not(c));
	return left;
}

static struct node *parse_or(struct compiler *c)
{
	struct node *left = parse_and(c);
	while (left && template__accept_word(c, "or"))
		left = new_binary(c, NODE_OR, 0, left, parse_and(c));
	return left;
}

static struct node *parse_expression(struct compiler *c, bool with_condition)
{
	if (c->depth++ >= TEMPLATE_PARSE_DEPTH_MAX) {
		(void)template__compile_fail(c, current(c)->line, "nested too deeply");
		return NULL;
	}
	struct node *node = parse_or(c);
	while (with_condition && node && template__accept_word(c, "if")) {
		struct node *test = parse_or(c);
		struct node *condition = new_binary(c, NODE_CONDITION, 0, test, node);
		if (condition && template__accept_word(c, "else")) {
			condition->c = parse_expression(c, true);
			if (!condition->c)
				condition = NULL;
		}
		node = condition;
	}
	c->depth--;
	return node;
}

struct node *template__parse_filters(struct compiler *c, bool leading_bar)
{
	struct node *node = template__new_node(c, NODE_CAPTURED);
	if (node && !leading_bar)
		node = parse_filter(c, node);
	return node ? parse_filters(c, node) : NULL;
}

bool template__parse_parameters(struct compiler *c, struct node **tail)
{
	size_t count = 0;
	if (!template__expect(c, "("))
		return false;
	while (!template__accept(c, ")")) {
		struct node *parameter = template__new_node(c, NODE_NAME);
		if (!parameter || !(parameter->name = template__take_name(c)))
			return false;
		if (count++ == TEMPLATE_ARGS_MAX)
			return template__fail_here(c, "at most 16 parameters") != NULL;
		if (template__accept(c, "=") && !(parameter->a = parse_expression(c, true)))
			return false;
		*tail = parameter;
		tail = &parameter->next;
		if (!is_operator(current(c), ")") && !template__expect(c, ","))
			return false;
	}
	return true;
}

struct node *template__parse_expression(struct compiler *c, bool with_condition)
{
	return parse_expression(c, with_condition);
}
