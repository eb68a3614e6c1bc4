/* Bodies into JSON. jansson does the parsing; the bounds that it lacks are counted first, over
 * the bare bytes, so that a small body cannot become a large tree or a deep recursion. */
#include <string.h>

#include "base/check.h"
#include "conductor/api_params.h"

#define JSON_DEPTH_MAX 64
#define JSON_VALUES_MAX 1000000

static const char *over_bounds(const char *body, size_t bytes)
{
	uint32_t depth = 0, values = 1;
	bool in_text = false;
	for (size_t i = 0; i < bytes; i++) {
		char c = body[i];
		if (in_text) {
			if (c == '\\')
				i++;
			else if (c == '"')
				in_text = false;
			continue;
		}
		if (c == '"')
			in_text = true;
		else if (c == '[' || c == '{')
			depth++, values++;
		else if (c == ',')
			values++;
		else if ((c == ']' || c == '}') && depth)
			depth--;
		if (depth > JSON_DEPTH_MAX)
			return "the JSON is nested too deeply";
		if (values > JSON_VALUES_MAX)
			return "the JSON holds too many values";
	}
	return NULL;
}

static bool holds_huge(const json_t *value)
{
	size_t i;
	const char *key;
	json_t *item;
	if (json_is_real(value))
		return json_real_value(value) >= 9.2e18 || json_real_value(value) <= -9.2e18;
	if (json_is_array(value))
		json_array_foreach(value, i, item)
			if (holds_huge(item))
				return true;
	if (json_is_object(value))
		json_object_foreach((json_t *)value, key, item)
			if (holds_huge(item))
				return true;
	return false;
}

/* Fields whose integers people get wrong by size; for the error's `param`. */
static const char *const integer_fields[] = {
	"max_tokens", "max_completion_tokens", "min_tokens", "top_k", "seed", "n", "top_logprobs",
	"logprobs", "stop_token_ids", "priority", "prompt", "tokens", "best_of",
};

/* An integer past 64 bits fails the whole parse. Parsed again with integers as reals, the tree
 * shows whose it was. */
static int blame_integer(const char *body, size_t bytes, struct api_error *error)
{
	json_error_t json_error;
	json_t *object = json_loadb(body, bytes, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL,
				    &json_error);
	const char *param = NULL;
	for (size_t i = 0; object && !param && i < ARRAY_COUNT(integer_fields); i++) {
		json_t *value = json_object_get(object, integer_fields[i]);
		if (value && holds_huge(value))
			param = integer_fields[i];
	}
	json_decref(object);
	return api_fail(error, 400, param, "%s%san integer does not fit in 64 bits.",
			param ? param : "", param ? ": " : "");
}

json_t *api_json_load(const char *body, size_t bytes, struct api_error *error)
{
	json_error_t json_error;
	const char *over = over_bounds(body, bytes);
	if (over) {
		(void)api_fail(error, 400, NULL, "Invalid body: %s.", over);
		return NULL;
	}
	json_t *value = json_loadb(body, bytes,
				   JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY,
				   &json_error);
	if (!value && json_error_code(&json_error) == json_error_numeric_overflow &&
	    strstr(json_error.text, "integer")) {
		(void)blame_integer(body, bytes, error);
		return NULL;
	}
	if (!value) {
		(void)api_fail(error, 400, NULL, "Invalid JSON: %s (byte %d).", json_error.text,
			       json_error.position);
		return NULL;
	}
	if (!json_is_object(value)) {
		(void)api_fail(error, 400, NULL, "The body must be a JSON object, got %s.",
			       api_type_name(value));
		json_decref(value);
		return NULL;
	}
	return value;
}
