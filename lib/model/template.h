/*
 * Chat templates: the part of Jinja2 that models' templates use (sandboxed, trim_blocks and
 * lstrip_blocks on), compiled once, rendered with messages as JSON. Steps, output bytes and
 * nesting are bounded, so a hostile template or conversation cannot hang or exhaust a front.
 */
#ifndef BATON_MODEL_TEMPLATE_H
#define BATON_MODEL_TEMPLATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "model/tokenizer.h"

struct chat_template;

/* Return: 0, or -EINVAL with a sentence naming line and construct. */
int chat_template_compile(const char *source, struct chat_template **ret_template, char *ret_error,
			  size_t error_bytes);
void chat_template_free(struct chat_template *t);

/*
 * chat_template_render() - messages to text
 * @variables: JSON object: messages, add_generation_prompt, bos_token, eos_token, tools, ...
 * Return: 0; -EINVAL with a sentence when the template refuses (raise_exception) or a value has
 * the wrong shape; -E2BIG past the bounds.
 */
int chat_template_render(const struct chat_template *t, const json_t *variables, struct buf *out,
			 char *ret_error, size_t error_bytes);

/*
 * chat_template_tokenize() - messages to ids
 * Like render + tokenize, but special-token strings inside message contents and roles stay plain
 * text while the template's own marks become special ids: every byte of the output knows whether
 * it is the template's (or bos_token's, eos_token's) or came with the variables, through filters,
 * slices and methods too. A special token counts only where all its bytes are the template's;
 * everything else between two of them is tokenised as one text. Case changes are ASCII's.
 */
int chat_template_tokenize(const struct chat_template *t, const struct tokenizer *tokenizer,
			   const json_t *variables, struct token_ids *ids, char *ret_error,
			   size_t error_bytes);

#endif
