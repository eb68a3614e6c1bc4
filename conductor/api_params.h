/*
 * The fields of a completion request: one table row each (api_params.c). What can be refused is
 * refused here, with 400 and the field's name, before any token is counted.
 */
#ifndef BATON_CONDUCTOR_API_PARAMS_H
#define BATON_CONDUCTOR_API_PARAMS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "conductor/bridge.h"
#include "conductor/stop.h"

#define API_MESSAGE_BYTES 640

struct api_error {
	int status;
	const char *type; /* static */
	const char *param; /* static or NULL */
	uint32_t retry_after_s;
	char message[API_MESSAGE_BYTES];
};

/* Fills @error. Return: -1, so that callers can return it. */
int api_fail(struct api_error *error, int status, const char *param, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

enum api_kind { API_CHAT = 1, API_COMPLETION = 2, API_BOTH = 3 };

struct api_params {
	enum api_kind kind;
	int64_t max_tokens, max_completion_tokens; /* -1: absent */
	int64_t min_tokens, top_k, seed, n, top_logprobs, priority;
	double temperature, top_p, min_p;
	bool has_seed, stream, include_usage, continuous_usage, has_stream_options;
	bool ignore_eos, want_logprobs, include_stop, skip_special, return_token_ids;
	bool add_generation_prompt, add_special_tokens, has_add_special_tokens;
	const char *cache_salt;     /* borrowed from the JSON, like all below */
	json_t *template_variables; /* chat_template_kwargs, or NULL */
	struct stop_text stops[STOP_TEXTS_MAX];
	uint32_t stop_count;
	uint32_t stop_ids[REQUEST_STOP_IDS_MAX];
	uint32_t stop_id_count;
};

/*
 * api_json_load() - a request's body
 * Refuses what is not one JSON object in UTF-8: duplicate keys, NaN, lone surrogates, nesting
 * past 64, more than a million values.
 * Return: the object (caller decrefs) or NULL with @error filled.
 */
json_t *api_json_load(const char *body, size_t bytes, struct api_error *error);

/* @vocab_count bounds token ids. Return: 0, or -1 with @error filled. */
int api_params_parse(const json_t *object, enum api_kind kind, uint32_t vocab_count,
		     struct api_params *ret_params, struct api_error *error);

/* Names of the known fields, in the table's order; NULL past the last. */
const char *api_field_name(size_t index);

/* The error object, as every endpoint answers it. */
void api_error_render(const struct api_error *error, struct buf *out);

/* How a JSON value calls itself in messages: "a string". */
const char *api_type_name(const json_t *value);

#endif
