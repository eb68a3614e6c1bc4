/*
 * Chat templates inside: a compiled template is a tree of nodes; rendering walks it with values
 * that live in a bounded memory, thrown away whole at the end.
 *
 *     template_lex.c     source -> tokens, white-space control
 *     template_parse.c   tokens -> expressions; template_statement.c -> the whole tree
 *     template_value.c   values: conversion, text form, comparison
 *     template_string.c  texts with the origin of each byte
 *     template_eval.c    expressions
 *     template_exec.c    statements
 *     template_filter.c  filters; template_test.c tests; template_method.c methods and globals
 *     template.c         the public functions
 *
 * Every byte of a text knows whether it is the template's own or came with the request
 * (foreign): special-token strings count only in own bytes.
 */
#ifndef BATON_MODEL_TEMPLATE_PRIVATE_H
#define BATON_MODEL_TEMPLATE_PRIVATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "model/memory.h"
#include "model/template.h"

/* Bounds. Real templates nest below 20 and take some 50 steps a message. */
#define TEMPLATE_SOURCE_BYTES_MAX ((size_t)1 << 20)
#define TEMPLATE_PARSE_DEPTH_MAX 64
#define TEMPLATE_EVAL_DEPTH_MAX 256
#define TEMPLATE_JSON_DEPTH_MAX 128
#define TEMPLATE_STEPS_MAX UINT64_C(8000000)
#define TEMPLATE_MEMORY_BYTES_MAX ((size_t)128 << 20)
#define TEMPLATE_OUTPUT_BYTES_MAX ((size_t)64 << 20)
#define TEMPLATE_ARGS_MAX 16

/* Origin of a text's bytes: NULL: all own; template__foreign: all foreign; else one flag each. */
extern const uint8_t template__foreign[1];

struct string {
	const char *data;
	size_t bytes;
	const uint8_t *origin;
};

enum value_kind {
	VALUE_UNDEFINED,
	VALUE_NONE,
	VALUE_BOOL,
	VALUE_INT,
	VALUE_FLOAT,
	VALUE_STRING,
	VALUE_LIST,
	VALUE_DICT, /* also namespaces */
	VALUE_LOOP,
	VALUE_FUNCTION,
};

struct value {
	enum value_kind kind;
	union {
		const char *name; /* UNDEFINED: what was undefined, or NULL */
		bool boolean;
		int64_t integer;
		double real;
		struct string string;
		struct list *list;
		struct dict *dict;
		struct loop *loop;
		struct function *function;
	};
};

struct list {
	struct value *items;
	size_t count;
	bool tuple;
};

struct dict_entry {
	struct string key;
	struct value value;
};

struct dict {
	struct dict_entry *entries; /* in order of insertion */
	size_t count, capacity;
	bool is_namespace; /* only these can be assigned to */
};

struct loop {
	const struct list *list;
	size_t index;
	struct value changed; /* what loop.changed() saw last */
};

struct render;

struct args {
	struct value values[TEMPLATE_ARGS_MAX];
	size_t count;
	const char *names[TEMPLATE_ARGS_MAX];
	struct value named[TEMPLATE_ARGS_MAX];
	size_t named_count;
};

typedef int (*template_call)(struct render *r, const struct value *self, const struct args *args,
			     struct value *ret);

struct builtin {
	const char *name;
	template_call call;
};

struct function {
	const struct builtin *builtin; /* a global or a method of self, or */
	const struct node *macro;      /* a macro, and the frame that it was defined in */
	struct frame *frame;
	struct value self;
	struct function *caller; /* a macro's {% call %} block */
};

enum node_kind {
	/* statements */
	NODE_TEXT,   /* string */
	NODE_OUTPUT, /* a */
	NODE_FOR,    /* targets, a: iterable, b: filter or NULL, body, orelse */
	NODE_IF,     /* a, body, orelse */
	NODE_SET,    /* targets, a */
	NODE_CAPTURE, /* targets[0] set to the body's text; a: filters over NODE_CAPTURED or NULL */
	NODE_MACRO,  /* name, targets: NODE_NAME parameters whose a is the default; body */
	NODE_CALL_BLOCK, /* a: NODE_CALL, b: NODE_MACRO of the body */
	NODE_FILTER_BLOCK, /* a: filters over NODE_CAPTURED, body */
	NODE_BREAK,
	NODE_CONTINUE,
	/* expressions */
	NODE_LITERAL, /* value */
	NODE_CAPTURED,
	NODE_NAME,    /* name */
	NODE_LIST,    /* body; op: 1 tuple */
	NODE_DICT,    /* body: NODE_PAIR */
	NODE_PAIR,    /* a, b */
	NODE_ATTRIBUTE, /* a, name */
	NODE_INDEX,   /* a, b */
	NODE_SLICE,   /* a, then start b, stop c, step orelse, each may be NULL */
	NODE_CALL,    /* a, body: arguments */
	NODE_KEYWORD, /* name, a: a named argument */
	NODE_FILTER,  /* a, builtin, body: arguments */
	NODE_TEST,    /* a, builtin, body; op: 1 negated */
	NODE_NOT,
	NODE_NEGATE,
	NODE_PLUS,
	NODE_BINARY,  /* op, a, b */
	NODE_COMPARE, /* a, body: NODE_BINARY with op and b only */
	NODE_AND,
	NODE_OR,
	NODE_CONDITION, /* a ? b : c (NULL: undefined) */
};

enum operator {
	OP_ADD,
	OP_SUBTRACT,
	OP_MULTIPLY,
	OP_DIVIDE,
	OP_FLOOR_DIVIDE,
	OP_MODULO,
	OP_POWER,
	OP_CONCAT,
	OP_EQUAL,
	OP_NOT_EQUAL,
	OP_LESS,
	OP_LESS_EQUAL,
	OP_GREATER,
	OP_GREATER_EQUAL,
	OP_IN,
	OP_NOT_IN,
};

struct node {
	enum node_kind kind;
	uint32_t line;
	int op;
	const char *name; /* interned: equal names are one pointer */
	const struct builtin *builtin;
	struct value value;
	struct node *a, *b, *c;
	struct node *targets, *body, *orelse;
	struct node *next; /* in a body, list or argument list */
};

enum token_kind {
	TOKEN_END,
	TOKEN_TEXT,
	TOKEN_OUTPUT_BEGIN,
	TOKEN_OUTPUT_END,
	TOKEN_BLOCK_BEGIN,
	TOKEN_BLOCK_END,
	TOKEN_NAME,
	TOKEN_STRING,
	TOKEN_INT,
	TOKEN_FLOAT,
	TOKEN_OPERATOR,
};

struct token {
	enum token_kind kind;
	uint32_t line;
	struct string text; /* TEXT, NAME, STRING (unescaped), OPERATOR */
	int64_t integer;
	double real;
};

struct name {
	struct name *next;
	const char *text;
};

struct chat_template {
	struct memory memory;
	struct node *body;
	struct name *names;
};

/* Compiling: errors are written once, with the line. */
struct compiler {
	struct chat_template *t;
	struct token *tokens;
	size_t token_count, at;
	uint32_t depth;
	uint32_t loop_depth;
	char *error;
	size_t error_bytes;
	int result; /* first failure */
};

int template__lex(struct compiler *c, const char *source);
int template__parse(struct compiler *c);
struct node *template__parse_expression(struct compiler *c, bool with_condition);
/* The filters from here on over what a block captures: `set x | trim`, `filter upper`. */
struct node *template__parse_filters(struct compiler *c, bool leading_bar);
/* "(" parameters ")": NODE_NAMEs, their defaults in a. */
bool template__parse_parameters(struct compiler *c, struct node **tail);
/* The token here, when it is this operator or word; then it is passed. */
bool template__accept(struct compiler *c, const char *operator_);
bool template__accept_word(struct compiler *c, const char *word);
bool template__expect(struct compiler *c, const char *operator_);
void *template__fail_here(struct compiler *c, const char *wanted);
const char *template__take_name(struct compiler *c);
struct node *template__new_node(struct compiler *c, enum node_kind kind);
int template__compile_fail(struct compiler *c, uint32_t line, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* The template's one copy of the name, made when @add; NULL: absent or no memory. */
const char *template__intern(struct chat_template *t, const char *text, size_t bytes, bool add);

struct binding {
	struct binding *next;
	const char *name;
	struct value value;
};

struct frame {
	struct frame *parent;
	struct binding *bindings;
};

struct render {
	const struct chat_template *t;
	struct memory memory;
	struct frame *frame;
	struct buf *out;    /* where output goes now: the caller's, or a capture's */
	struct buf *origin; /* one flag for each byte of out, or NULL */
	struct value captured;
	uint64_t steps;
	uint32_t depth;
	uint32_t line; /* of the statement that runs; for messages */
	char *error;
	size_t error_bytes;
};

enum flow {
	FLOW_NEXT,
	FLOW_BREAK,
	FLOW_CONTINUE,
};

/* Rendering. Each returns 0 or the negative error whose sentence is in render->error. */
int template__fail(struct render *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
int template__no_memory(struct render *r); /* -E2BIG: past the bound */
int template__charge(struct render *r, uint64_t steps);
int template__exec(struct render *r, const struct node *body, enum flow *ret_flow);
int template__eval(struct render *r, const struct node *node, struct value *ret);
int template__call_function(struct render *r, const struct function *f, const struct args *args,
			    struct value *ret);
int template__call_macro(struct render *r, const struct function *f, const struct args *args,
			 struct value *ret);
int template__bind(struct render *r, const char *name, struct value value);
int template__emit(struct render *r, struct string string);
/* Runs @body into a text instead of the output. */
int template__capture(struct render *r, const struct node *body, struct string *ret);

/* Values. */
struct value template__undefined(const char *name);
struct value template__int(int64_t value);
struct value template__bool(bool value);
struct value template__string(struct string string);
#define OWN(literal) ((struct string){ (literal), sizeof(literal) - 1, NULL })
struct string template__own(const char *text);

int template__list_new(struct render *r, size_t count, struct value *ret); /* items undefined */
int template__dict_new(struct render *r, size_t capacity, struct value *ret);
int template__dict_set(struct render *r, struct dict *dict, struct string key, struct value value);
const struct value *template__dict_get(const struct dict *dict, struct string key);
int template__from_json(struct render *r, const json_t *json, bool foreign, int depth,
			struct value *ret);
bool template__truth(const struct value *v);
int template__equal(struct render *r, const struct value *a, const struct value *b, bool *ret);
/* <0, 0, >0; fails on kinds that have no order. */
int template__order(struct render *r, const struct value *a, const struct value *b, int *ret);
int template__contains(struct render *r, const struct value *in, const struct value *item,
		       bool *ret);
/* Items of anything that can be looped over; a list comes back itself. */
int template__items(struct render *r, const struct value *v, const struct list **ret);
int template__length(struct render *r, const struct value *v, size_t *ret);
/* As {{ v }} prints it: a string comes back itself. */
int template__text(struct render *r, const struct value *v, struct string *ret);
int template__to_json(struct render *r, const struct value *v, int indent, bool sort,
		      struct value *ret);
/* v.name and v[key]: undefined where there is none. */
int template__attribute(struct render *r, const struct value *v, const char *name,
			struct value *ret);
int template__subscript(struct render *r, const struct value *v, const struct value *key,
			struct value *ret);
int template__slice(struct render *r, const struct value *v, const int64_t *start,
		    const int64_t *stop, int64_t step, struct value *ret);
/* "a.b.0" as map and selectattr take it. */
int template__attribute_path(struct render *r, const struct value *v, struct string path,
			     struct value *ret);

/* Texts. */
bool string_equal(struct string a, struct string b);
bool string_is(struct string a, const char *text);
struct string string_part(struct string s, size_t at, size_t bytes);
size_t string_characters(struct string s);
/* Byte offset of a character; s.bytes past the end. */
size_t string_offset(struct string s, size_t character);
/* Offset of the first @needle from @from on, or SIZE_MAX. */
size_t string_find(struct string s, struct string needle, size_t from);
enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };
/* @set: characters to strip; data NULL: white space. */
struct string string_strip(struct string s, struct string set, int sides);

/* Grows text and origin together. */
struct string_builder {
	struct render *r;
	struct buf text, origin;
};
void builder_init(struct string_builder *b, struct render *r);
void builder_add(struct string_builder *b, struct string s);
/* Moves the text into the render's memory; frees the builder in any case. */
int builder_finish(struct string_builder *b, struct string *ret);

/* Arguments: by position or name; NULL: absent. */
const struct value *template__arg(const struct args *args, size_t index, const char *name);
int template__arg_string(struct render *r, const struct args *args, size_t index, const char *name,
			 struct string *ret); /* required */
int template__arg_int(struct render *r, const struct args *args, size_t index, const char *name,
		      int64_t initial, int64_t *ret);

const struct builtin *template__find_filter(struct string name);
const struct builtin *template__find_test(struct string name);
const struct builtin *template__find_global(const char *name);
const struct builtin *template__find_method(const struct value *v, const char *name);
int template__apply_test(struct render *r, const struct builtin *test, const struct value *v,
			 const struct args *args, bool *ret);

#endif
