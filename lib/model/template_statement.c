/* Tokens to a tree: the tags. */
#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "model/template_private.h"

static struct node *parse_body(struct compiler *c);

static const struct token *current(const struct compiler *c)
{
	return &c->tokens[c->at];
}

/* At "{% WORD": whether WORD is @word. */
static bool at_tag(const struct compiler *c, const char *word)
{
	const struct token *next = &c->tokens[MIN(c->at + 1, c->token_count - 1)];
	return current(c)->kind == TOKEN_BLOCK_BEGIN && next->kind == TOKEN_NAME &&
	       string_is(next->text, word);
}

static bool expect_end(struct compiler *c)
{
	if (current(c)->kind != TOKEN_BLOCK_END)
		return template__fail_here(c, "'%}'") != NULL;
	c->at++;
	return true;
}

/* "{% WORD %}" closing what began on @line. */
static bool expect_tag(struct compiler *c, const char *word, const char *of, uint32_t line)
{
	if (!at_tag(c, word)) {
		(void)template__compile_fail(c, line, "%s has no %s", of, word);
		return false;
	}
	c->at += 2;
	return expect_end(c);
}

/* An expression, or several with commas: a tuple. */
static struct node *parse_tuple(struct compiler *c, bool with_condition)
{
	struct node *first = template__parse_expression(c, with_condition);
	if (!first || !template__accept(c, ","))
		return first;
	struct node *tuple = template__new_node(c, NODE_LIST);
	if (!tuple)
		return NULL;
	tuple->op = 1;
	tuple->body = first;
	struct node **tail = &first->next;
	while (current(c)->kind != TOKEN_BLOCK_END && current(c)->kind != TOKEN_OUTPUT_END) {
		struct node *element = template__parse_expression(c, with_condition);
		if (!element)
			return NULL;
		*tail = element;
		tail = &element->next;
		if (!template__accept(c, ","))
			break;
	}
	return tuple;
}

/* a, b or (a, b) or a.b: what can be assigned to. */
static bool parse_targets(struct compiler *c, struct node **tail, bool attributes)
{
	bool bracket = template__accept(c, "(");
	do {
		struct node *target = template__new_node(c, NODE_NAME);
		if (!target || !(target->name = template__take_name(c)))
			return false;
		if (attributes && template__accept(c, ".")) {
			struct node *attribute = template__new_node(c, NODE_ATTRIBUTE);
			if (!attribute || !(attribute->name = template__take_name(c)))
				return false;
			attribute->a = target;
			target = attribute;
		}
		*tail = target;
		tail = &target->next;
	} while (template__accept(c, ","));
	return !bracket || template__expect(c, ")");
}

static struct node *parse_for(struct compiler *c)
{
	struct node *node = template__new_node(c, NODE_FOR);
	if (!node || !parse_targets(c, &node->targets, false))
		return NULL;
	if (!template__accept_word(c, "in"))
		return template__fail_here(c, "'in'");
	node->a = parse_tuple(c, false);
	if (!node->a)
		return NULL;
	if (template__accept_word(c, "if") && !(node->b = template__parse_expression(c, true)))
		return NULL;
	if (template__accept_word(c, "recursive"))
		return template__fail_here(c, "a loop that is not recursive");
	if (!expect_end(c))
		return NULL;
	c->loop_depth++;
	node->body = parse_body(c);
	c->loop_depth--;
	if (at_tag(c, "else")) {
		c->at += 2;
		if (!expect_end(c))
			return NULL;
		node->orelse = parse_body(c);
	}
	return !c->result && expect_tag(c, "endfor", "for", node->line) ? node : NULL;
}

/* elif is an if alone in the else; the chain is built without recursion. */
static struct node *parse_if(struct compiler *c)
{
	struct node *first = template__new_node(c, NODE_IF), *node = first;
	uint32_t line = current(c)->line;
	while (node) {
		node->a = template__parse_expression(c, true);
		if (!node->a || !expect_end(c))
			return NULL;
		node->body = parse_body(c);
		if (at_tag(c, "elif")) {
			c->at += 2;
			node = node->orelse = template__new_node(c, NODE_IF);
			continue;
		}
		if (at_tag(c, "else")) {
			c->at += 2;
			if (!expect_end(c))
				return NULL;
			node->orelse = parse_body(c);
		}
		return !c->result && expect_tag(c, "endif", "if", line) ? first : NULL;
	}
	return NULL;
}

static struct node *parse_set(struct compiler *c)
{
	struct node *node = template__new_node(c, NODE_SET);
	if (!node || !parse_targets(c, &node->targets, true))
		return NULL;
	if (template__accept(c, "=")) {
		node->a = parse_tuple(c, true);
		return node->a && expect_end(c) ? node : NULL;
	}
	node->kind = NODE_CAPTURE;
	if (node->targets->next)
		return template__fail_here(c, "'='");
	if (current(c)->kind != TOKEN_BLOCK_END &&
	    !(node->a = template__parse_filters(c, true)))
		return NULL;
	if (!expect_end(c))
		return NULL;
	node->body = parse_body(c);
	return !c->result && expect_tag(c, "endset", "set", node->line) ? node : NULL;
}

static struct node *parse_macro(struct compiler *c)
{
	struct node *node = template__new_node(c, NODE_MACRO);
	if (!node || !(node->name = template__take_name(c)) ||
	    !template__parse_parameters(c, &node->targets) || !expect_end(c))
		return NULL;
	uint32_t loops = c->loop_depth;
	c->loop_depth = 0; /* a break cannot leave the macro */
	node->body = parse_body(c);
	c->loop_depth = loops;
	return !c->result && expect_tag(c, "endmacro", "macro", node->line) ? node : NULL;
}

static struct node *parse_call_block(struct compiler *c)
{
	struct node *node = template__new_node(c, NODE_CALL_BLOCK);
	struct node *body = template__new_node(c, NODE_MACRO);
	if (!node || !body || !(body->name = template__intern(c->t, "caller", 6, true)))
		return NULL;
	if (current(c)->kind == TOKEN_OPERATOR && string_is(current(c)->text, "(") &&
	    !template__parse_parameters(c, &body->targets))
		return NULL;
	node->a = template__parse_expression(c, true);
	if (!node->a)
		return NULL;
	if (node->a->kind != NODE_CALL)
		return template__fail_here(c, "a call");
	if (!expect_end(c))
		return NULL;
	node->b = body;
	uint32_t loops = c->loop_depth;
	c->loop_depth = 0;
	body->body = parse_body(c);
	c->loop_depth = loops;
	return !c->result && expect_tag(c, "endcall", "call", node->line) ? node : NULL;
}

static struct node *parse_filter_block(struct compiler *c)
{
	struct node *node = template__new_node(c, NODE_FILTER_BLOCK);
	if (!node || !(node->a = template__parse_filters(c, false)) || !expect_end(c))
		return NULL;
	node->body = parse_body(c);
	return !c->result && expect_tag(c, "endfilter", "filter", node->line) ? node : NULL;
}

static struct node *parse_jump(struct compiler *c, enum node_kind kind)
{
	if (!c->loop_depth) {
		(void)template__compile_fail(c, current(c)->line, "break or continue outside a loop");
		return NULL;
	}
	struct node *node = template__new_node(c, kind);
	return node && expect_end(c) ? node : NULL;
}

/* {% generation %} marks what a model wrote, for training; here it is only its body, which is
 * spliced in as an if that is always taken. */
static struct node *parse_generation(struct compiler *c)
{
	struct node *node = template__new_node(c, NODE_IF);
	struct node *always = template__new_node(c, NODE_LITERAL);
	if (!node || !always || !expect_end(c))
		return NULL;
	always->value = template__bool(true);
	node->a = always;
	node->body = parse_body(c);
	return !c->result && expect_tag(c, "endgeneration", "generation", node->line) ? node : NULL;
}

/* At "{%". */
static struct node *parse_tag(struct compiler *c)
{
	c->at++;
	if (template__accept_word(c, "for"))
		return parse_for(c);
	if (template__accept_word(c, "if"))
		return parse_if(c);
	if (template__accept_word(c, "set"))
		return parse_set(c);
	if (template__accept_word(c, "macro"))
		return parse_macro(c);
	if (template__accept_word(c, "call"))
		return parse_call_block(c);
	if (template__accept_word(c, "filter"))
		return parse_filter_block(c);
	if (template__accept_word(c, "break"))
		return parse_jump(c, NODE_BREAK);
	if (template__accept_word(c, "continue"))
		return parse_jump(c, NODE_CONTINUE);
	if (template__accept_word(c, "generation"))
		return parse_generation(c);
	return template__fail_here(c, "a tag that is supported (for, if, set, macro, call, filter, "
				      "break, continue, generation, raw)");
}

static struct node *parse_output(struct compiler *c)
{
	c->at++;
	struct node *node = template__new_node(c, NODE_OUTPUT);
	if (!node || !(node->a = parse_tuple(c, true)))
		return NULL;
	if (current(c)->kind != TOKEN_OUTPUT_END)
		return template__fail_here(c, "'}}'");
	c->at++;
	return node;
}

static struct node *parse_text(struct compiler *c)
{
	struct node *node = template__new_node(c, NODE_TEXT);
	if (node)
		node->value = template__string(current(c)->text);
	c->at++;
	return node;
}

/* Whether a body ends here: with its enclosing tag's next word. */
static bool at_body_end(const struct compiler *c)
{
	static const char *const words[] = { "endfor",	 "else",      "endif",	 "elif", "endset",
					     "endmacro", "endfilter", "endcall", "endgeneration" };
	if (current(c)->kind == TOKEN_END)
		return true;
	for (size_t i = 0; i < ARRAY_COUNT(words); i++) {
		if (at_tag(c, words[i]))
			return true;
	}
	return false;
}

static struct node *parse_body(struct compiler *c)
{
	struct node *first = NULL, **tail = &first;
	if (c->depth++ >= TEMPLATE_PARSE_DEPTH_MAX) {
		(void)template__compile_fail(c, current(c)->line, "nested too deeply");
		return NULL;
	}
	while (!c->result && !at_body_end(c)) {
		struct node *node;
		if (current(c)->kind == TOKEN_TEXT)
			node = parse_text(c);
		else if (current(c)->kind == TOKEN_OUTPUT_BEGIN)
			node = parse_output(c);
		else
			node = parse_tag(c);
		if (!node) {
			if (!c->result)
				c->result = -ENOMEM;
			return NULL;
		}
		*tail = node;
		tail = &node->next;
	}
	c->depth--;
	return first;
}

int template__parse(struct compiler *c)
{
	c->t->body = parse_body(c);
	if (!c->result && current(c)->kind != TOKEN_END)
		(void)template__fail_here(c, "a tag that opens something");
	return c->result;
}
