/* Statements of templates. A frame holds the names of a loop's turn or a macro's call: what is
 * set there is gone afterwards; a namespace's attributes are not. */
#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "model/template_private.h"

int template__bind(struct render *r, const char *name, struct value value)
{
	for (struct binding *b = r->frame->bindings; b; b = b->next) {
		if (b->name == name) {
			b->value = value;
			return 0;
		}
	}
	struct binding *b = memory_alloc(&r->memory, 1, sizeof(*b));
	if (!b)
		return template__no_memory(r);
	*b = (struct binding){ r->frame->bindings, name, value };
	r->frame->bindings = b;
	return 0;
}

static int push_frame(struct render *r, struct frame *parent)
{
	struct frame *frame = memory_alloc(&r->memory, 1, sizeof(*frame));
	if (!frame)
		return template__no_memory(r);
	frame->parent = parent;
	r->frame = frame;
	return 0;
}

static int assign_one(struct render *r, const struct node *target, struct value value)
{
	if (target->kind == NODE_NAME)
		return template__bind(r, target->name, value);
	struct value of;
	int error = template__eval(r, target->a, &of);
	if (error < 0)
		return error;
	if (of.kind != VALUE_DICT || !of.dict->is_namespace)
		return template__fail(r, "only a namespace's attributes can be set");
	return template__dict_set(r, of.dict, template__own(target->name), value);
}

static int assign(struct render *r, const struct node *targets, struct value value)
{
	if (!targets->next)
		return assign_one(r, targets, value);
	const struct list *items;
	int error = template__items(r, &value, &items);
	size_t count = 0;
	for (const struct node *target = targets; target; target = target->next)
		count++;
	if (error >= 0 && items->count != count)
		return template__fail(r, "%zu values cannot be given to %zu names", items->count,
				      count);
	size_t i = 0;
	for (const struct node *target = targets; target && error >= 0; target = target->next)
		error = assign_one(r, target, items->items[i++]);
	return error;
}

int template__capture(struct render *r, const struct node *body, struct string *ret)
{
	struct string_builder b;
	struct buf *out = r->out, *origin = r->origin;
	enum flow flow = FLOW_NEXT;
	builder_init(&b, r);
	r->out = &b.text;
	r->origin = &b.origin;
	int error = template__exec(r, body, &flow);
	r->out = out;
	r->origin = origin;
	if (error >= 0)
		return builder_finish(&b, ret);
	buf_fini(&b.text);
	buf_fini(&b.origin);
	return error;
}

/* Captures the body and passes it through the filters. */
static int filtered_capture(struct render *r, const struct node *node, struct value *ret)
{
	struct string text;
	int error = template__capture(r, node->body, &text);
	if (error < 0)
		return error;
	*ret = template__string(text);
	if (!node->a)
		return 0;
	struct value outer = r->captured;
	r->captured = *ret;
	error = template__eval(r, node->a, ret);
	r->captured = outer;
	return error;
}

/* Items that the loop's own condition lets through. */
static int filter_items(struct render *r, const struct node *node, const struct list **items)
{
	struct value kept;
	struct frame *frame = r->frame;
	int error = template__list_new(r, (*items)->count, &kept);
	size_t count = 0;
	for (size_t i = 0; error >= 0 && i < (*items)->count; i++) {
		struct value holds;
		if ((error = push_frame(r, frame)) < 0 ||
		    (error = assign(r, node->targets, (*items)->items[i])) < 0 ||
		    (error = template__eval(r, node->b, &holds)) < 0)
			break;
		if (template__truth(&holds))
			kept.list->items[count++] = (*items)->items[i];
	}
	r->frame = frame;
	if (error < 0)
		return error;
	kept.list->count = count;
	*items = kept.list;
	return 0;
}

static int exec_turn(struct render *r, const struct node *node, struct loop *loop, const char *name,
		     enum flow *ret_flow)
{
	struct value value = { .kind = VALUE_LOOP, .loop = loop };
	int error = template__bind(r, name, value);
	if (error >= 0)
		error = assign(r, node->targets, loop->list->items[loop->index]);
	if (error >= 0)
		error = template__exec(r, node->body, ret_flow);
	return error;
}

static int exec_for(struct render *r, const struct node *node, enum flow *ret_flow)
{
	struct value iterable;
	const struct list *items;
	int error = template__eval(r, node->a, &iterable);
	if (error < 0 || (error = template__items(r, &iterable, &items)) < 0 ||
	    (node->b && (error = filter_items(r, node, &items)) < 0))
		return error;
	if (!items->count)
		return template__exec(r, node->orelse, ret_flow);
	struct loop *loop = memory_alloc(&r->memory, 1, sizeof(*loop));
	if (!loop)
		return template__no_memory(r);
	/* compile() interned it, so a template that says loop has this very pointer. */
	const char *name = template__intern((struct chat_template *)r->t, "loop", 4, false);
	struct frame *frame = r->frame;
	*loop = (struct loop){ .list = items };
	for (; loop->index < items->count && error >= 0; loop->index++) {
		enum flow flow = FLOW_NEXT;
		error = push_frame(r, frame);
		if (error >= 0)
			error = exec_turn(r, node, loop, name, &flow);
		if (flow == FLOW_BREAK)
			break;
	}
	r->frame = frame;
	return error;
}

static int exec_if(struct render *r, const struct node *node, enum flow *ret_flow)
{
	for (;;) {
		struct value holds;
		int error = template__eval(r, node->a, &holds);
		if (error < 0)
			return error;
		if (template__truth(&holds))
			return template__exec(r, node->body, ret_flow);
		/* An elif is a lone if: walked, not recursed into. */
		const struct node *orelse = node->orelse;
		if (!orelse || orelse->kind != NODE_IF || orelse->next)
			return template__exec(r, orelse, ret_flow);
		node = orelse;
	}
}

static int macro_value(struct render *r, const struct node *node, struct function *caller,
		       struct value *ret)
{
	struct function *f = memory_alloc(&r->memory, 1, sizeof(*f));
	if (!f)
		return template__no_memory(r);
	*f = (struct function){ .macro = node, .frame = r->frame, .caller = caller };
	*ret = (struct value){ .kind = VALUE_FUNCTION, .function = f };
	return 0;
}

static int bind_parameters(struct render *r, const struct function *f, const struct args *args)
{
	size_t index = 0, named = 0;
	for (const struct node *p = f->macro->targets; p; p = p->next, index++) {
		struct value value = template__undefined(p->name);
		const struct value *given = template__arg(args, index, p->name);
		int error = 0;
		for (size_t i = 0; i < args->named_count; i++)
			named += strcmp(args->names[i], p->name) == 0;
		if (given)
			value = *given;
		else if (p->a)
			error = template__eval(r, p->a, &value);
		if (error >= 0)
			error = template__bind(r, p->name, value);
		if (error < 0)
			return error;
	}
	if (args->count > index || named < args->named_count)
		return template__fail(r, "macro '%s' is called with arguments that it does not have",
				      f->macro->name);
	return 0;
}

int template__call_macro(struct render *r, const struct function *f, const struct args *args,
			 struct value *ret)
{
	struct frame *frame = r->frame;
	struct string text;
	int error = push_frame(r, f->frame);
	if (error >= 0)
		error = bind_parameters(r, f, args);
	if (error >= 0 && f->caller) {
		const char *name = template__intern((struct chat_template *)r->t, "caller", 6, false);
		struct value caller = { .kind = VALUE_FUNCTION, .function = f->caller };
		error = template__bind(r, name, caller);
	}
	/* A macro's body is a nesting of its own: calls within calls are what the depth bounds. */
	if (error >= 0)
		error = template__capture(r, f->macro->body, &text);
	r->frame = frame;
	if (error >= 0)
		*ret = template__string(text);
	return error;
}

static int exec_call_block(struct render *r, const struct node *node)
{
	struct value body, callee, result;
	int error;
	if ((error = macro_value(r, node->b, NULL, &body)) < 0 ||
	    (error = template__eval(r, node->a->a, &callee)) < 0)
		return error;
	if (callee.kind != VALUE_FUNCTION || !callee.function->macro)
		return template__fail(r, "call needs a macro");
	struct node call = *node->a;
	struct node literal = { .kind = NODE_LITERAL, .line = node->line };
	struct function *f = memory_alloc(&r->memory, 1, sizeof(*f));
	if (!f)
		return template__no_memory(r);
	*f = *callee.function;
	f->caller = body.function;
	literal.value = (struct value){ .kind = VALUE_FUNCTION, .function = f };
	call.a = &literal;
	if ((error = template__eval(r, &call, &result)) < 0)
		return error;
	return template__emit(r, result.string);
}

static int exec_output(struct render *r, const struct node *node)
{
	struct value value;
	struct string text;
	int error;
	if ((error = template__eval(r, node->a, &value)) < 0 ||
	    (error = template__text(r, &value, &text)) < 0)
		return error;
	return template__emit(r, text);
}

static int exec_value(struct render *r, const struct node *node)
{
	struct value value;
	struct string text;
	int error;
	switch (node->kind) {
	case NODE_SET:
		error = template__eval(r, node->a, &value);
		return error < 0 ? error : assign(r, node->targets, value);
	case NODE_CAPTURE:
		error = filtered_capture(r, node, &value);
		return error < 0 ? error : assign(r, node->targets, value);
	case NODE_MACRO:
		error = macro_value(r, node, NULL, &value);
		return error < 0 ? error : template__bind(r, node->name, value);
	default: /* NODE_FILTER_BLOCK */
		if ((error = filtered_capture(r, node, &value)) < 0 ||
		    (error = template__text(r, &value, &text)) < 0)
			return error;
		return template__emit(r, text);
	}
}

static int exec_one(struct render *r, const struct node *node, enum flow *ret_flow)
{
	r->line = node->line;
	switch (node->kind) {
	case NODE_TEXT:
		return template__emit(r, node->value.string);
	case NODE_OUTPUT:
		return exec_output(r, node);
	case NODE_FOR:
		return exec_for(r, node, ret_flow);
	case NODE_IF:
		return exec_if(r, node, ret_flow);
	case NODE_CALL_BLOCK:
		return exec_call_block(r, node);
	case NODE_BREAK:
		*ret_flow = FLOW_BREAK;
		return 0;
	case NODE_CONTINUE:
		*ret_flow = FLOW_CONTINUE;
		return 0;
	default:
		return exec_value(r, node);
	}
}

int template__exec(struct render *r, const struct node *body, enum flow *ret_flow)
{
	if (r->depth >= TEMPLATE_EVAL_DEPTH_MAX)
		return template__fail(r, "nested too deeply");
	r->depth++;
	int error = 0;
	for (const struct node *node = body; node && error >= 0; node = node->next) {
		if ((error = template__charge(r, 1)) >= 0)
			error = exec_one(r, node, ret_flow);
		if (*ret_flow != FLOW_NEXT)
			break;
	}
	r->depth--;
	return error;
}
