#include "conductor/api_params.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "conductor/text.h"

/* ---- errors ---- */

static const char *type_of_status(int status)
{
	switch (status) {
	case 401: return "AuthenticationError";
	case 403: return "PermissionDeniedError";
	case 404: return "NotFoundError";
	case 405: return "MethodNotAllowedError";
	case 429: return "RateLimitError";
	case 500: return "InternalServerError";
	case 503: return "ServiceUnavailableError";
	default: return status > 500 ? "InternalServerError" : "BadRequestError";
	}
}

int api_fail(struct api_error *error, int status, const char *param, const char *format, ...)
{
	va_list args;
	error->status = status;
	error->type = type_of_status(status);
	error->param = param;
	error->retry_after_s = 0;
	va_start(args, format);
	vsnprintf(error->message, sizeof error->message, format, args);
	va_end(args);
	return -1;
}

void api_error_render(const struct api_error *error, struct buf *out)
{
	buf_append_text(out, "{\"error\":{\"message\":");
	text_json_cstr(out, error->message);
	buf_append_text(out, ",\"type\":");
	text_json_cstr(out, error->type ? error->type : type_of_status(error->status));
	buf_append_text(out, ",\"param\":");
	if (error->param)
		text_json_cstr(out, error->param);
	else
		buf_append_text(out, "null");
	buf_printf(out, ",\"code\":%d}}", error->status);
}

const char *api_type_name(const json_t *value)
{
	switch (json_typeof(value)) {
	case JSON_OBJECT: return "an object";
	case JSON_ARRAY: return "a list";
	case JSON_STRING: return "a string";
	case JSON_INTEGER: return "an integer";
	case JSON_REAL: return "a number with a fraction or exponent";
	case JSON_TRUE:
	case JSON_FALSE: return "a boolean";
	default: return "null";
	}
}

/* ---- the table ---- */

enum field_type {
	/* served */
	FIELD_BOOL,   /* bool at offset */
	FIELD_INT,    /* int64_t at offset, min..max */
	FIELD_REAL,   /* double at offset, min..max */
	FIELD_CUSTOM, /* parse() */
	FIELD_ANY_BOOL, /* checked, without effect */
	FIELD_ANY_TEXT,
	/* not built: only the neutral value passes */
	FIELD_NO_BOOL,   /* neutral: min != 0 */
	FIELD_NO_REAL,   /* min..max, neutral */
	FIELD_NO_INT,    /* min..max, neutral */
	FIELD_NO_LIST,   /* neutral: [] */
	FIELD_NO_OBJECT, /* neutral: {} */
	FIELD_NO_TEXT,   /* neutral: the text at `neutral_text` */
	FIELD_NO,        /* only absent or null */
	FIELD_NO_CUSTOM, /* parse() */
};

struct parse {
	const struct field *field;
	struct api_params *params;
	struct api_error *error;
	uint32_t vocab_count;
};

struct field {
	const char *name;
	enum api_kind where;
	enum field_type type;
	double min, max;
	double neutral;
	const char *neutral_text;
	size_t offset;
	int (*parse)(struct parse *parse, const json_t *value);
	bool above_min; /* min itself is refused too */
};

static int wrong_type(struct parse *p, const char *want, const json_t *value)
{
	return api_fail(p->error, 400, p->field->name, "%s must be %s, got %s.", p->field->name,
			want, api_type_name(value));
}

static int unsupported(struct parse *p)
{
	return api_fail(p->error, 400, p->field->name,
			"unsupported_parameter: %s is not supported here.", p->field->name);
}

static int parse_int(struct parse *p, const json_t *value, int64_t *ret_value)
{
	const struct field *field = p->field;
	if (!json_is_integer(value))
		return wrong_type(p, "an integer", value);
	json_int_t v = json_integer_value(value);
	bool bounded = field->min != 0 || field->max != 0;
	if (bounded && (double)v < field->min)
		return api_fail(p->error, 400, field->name, "%s must be at least %.0f, got %lld.",
				field->name, field->min, (long long)v);
	if (bounded && (double)v > field->max)
		return api_fail(p->error, 400, field->name, "%s must be at most %.0f, got %lld.",
				field->name, field->max, (long long)v);
	*ret_value = v;
	return 0;
}

static int parse_real(struct parse *p, const json_t *value, double *ret_value)
{
	const struct field *field = p->field;
	if (!json_is_number(value))
		return wrong_type(p, "a number", value);
	double v = json_number_value(value);
	/* Written so that NaN fails. */
	if (!(v >= field->min && v <= field->max) || (field->above_min && v <= field->min))
		return api_fail(p->error, 400, field->name,
				"%s must be %s %g and at most %g, got %g.", field->name,
				field->above_min ? "above" : "at least", field->min, field->max, v);
	*ret_value = v;
	return 0;
}

static int parse_seed(struct parse *p, const json_t *value)
{
	p->params->has_seed = true;
	return parse_int(p, value, &p->params->seed);
}

static int add_stop(struct parse *p, const json_t *value)
{
	struct api_params *params = p->params;
	size_t bytes = json_string_length(value);
	if (!bytes)
		return api_fail(p->error, 400, "stop", "stop must not hold an empty string.");
	if (params->stop_count == STOP_TEXTS_MAX)
		return api_fail(p->error, 400, "stop", "stop holds more than %d strings.",
				STOP_TEXTS_MAX);
	size_t total = bytes;
	for (uint32_t i = 0; i < params->stop_count; i++)
		total += params->stops[i].bytes;
	if (total > STOP_BYTES_MAX)
		return api_fail(p->error, 400, "stop", "stop holds more than %u bytes.",
				STOP_BYTES_MAX);
	params->stops[params->stop_count++] =
		(struct stop_text){ json_string_value(value), (uint32_t)bytes, NULL };
	return 0;
}

static int parse_stop(struct parse *p, const json_t *value)
{
	if (json_is_string(value))
		return add_stop(p, value);
	if (!json_is_array(value))
		return wrong_type(p, "a string or a list of strings", value);
	size_t i;
	json_t *item;
	json_array_foreach(value, i, item) {
		if (!json_is_string(item))
			return api_fail(p->error, 400, "stop", "stop[%zu] must be a string, got %s.",
					i, api_type_name(item));
		if (add_stop(p, item))
			return -1;
	}
	return 0;
}

static int parse_stop_ids(struct parse *p, const json_t *value)
{
	size_t i;
	json_t *item;
	if (!json_is_array(value))
		return wrong_type(p, "a list of token ids", value);
	if (json_array_size(value) > REQUEST_STOP_IDS_MAX)
		return api_fail(p->error, 400, p->field->name,
				"stop_token_ids holds more than %d ids.", REQUEST_STOP_IDS_MAX);
	json_array_foreach(value, i, item) {
		json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
		if (!json_is_integer(item))
			return api_fail(p->error, 400, p->field->name,
					"stop_token_ids[%zu] must be an integer, got %s.", i,
					api_type_name(item));
		if (id < 0 || id >= (json_int_t)p->vocab_count)
			return api_fail(p->error, 400, p->field->name,
					"stop_token_ids[%zu] must be a token id below %u, got %lld.",
					i, p->vocab_count, (long long)id);
		p->params->stop_ids[p->params->stop_id_count++] = (uint32_t)id;
	}
	return 0;
}

static int parse_logprobs_chat(struct parse *p, const json_t *value)
{
	if (!json_is_boolean(value))
		return wrong_type(p, "a boolean", value);
	p->params->want_logprobs = json_is_true(value);
	return 0;
}

static int parse_logprobs_completion(struct parse *p, const json_t *value)
{
	if (parse_int(p, value, &p->params->top_logprobs))
		return -1;
	p->params->want_logprobs = true;
	return 0;
}

static int parse_stream_options(struct parse *p, const json_t *value)
{
	static const char *const names[] = { "include_usage", "continuous_usage_stats" };
	bool *targets[] = { &p->params->include_usage, &p->params->continuous_usage };
	if (!json_is_object(value))
		return wrong_type(p, "an object", value);
	for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
		json_t *option = json_object_get(value, names[i]);
		if (!option || json_is_null(option))
			continue;
		if (!json_is_boolean(option))
			return api_fail(p->error, 400, "stream_options",
					"stream_options.%s must be a boolean, got %s.", names[i],
					api_type_name(option));
		*targets[i] = json_is_true(option);
	}
	p->params->has_stream_options = json_object_size(value) > 0;
	return 0;
}

static int parse_cache_salt(struct parse *p, const json_t *value)
{
	if (!json_is_string(value))
		return wrong_type(p, "a string", value);
	size_t bytes = json_string_length(value);
	if (!bytes || bytes > 1024 || strlen(json_string_value(value)) != bytes)
		return api_fail(p->error, 400, p->field->name,
				"cache_salt must hold 1 to 1024 bytes and no U+0000.");
	p->params->cache_salt = json_string_value(value);
	return 0;
}

static int parse_template_variables(struct parse *p, const json_t *value)
{
	static const char *const own[] = { "messages", "add_generation_prompt", "bos_token",
					   "eos_token", "tools" };
	if (!json_is_object(value))
		return wrong_type(p, "an object", value);
	for (size_t i = 0; i < ARRAY_COUNT(own); i++)
		if (json_object_get(value, own[i]))
			return api_fail(p->error, 400, p->field->name,
					"chat_template_kwargs may not set %s.", own[i]);
	p->params->template_variables = (json_t *)value;
	return 0;
}

static int parse_add_special(struct parse *p, const json_t *value)
{
	if (!json_is_boolean(value))
		return wrong_type(p, "a boolean", value);
	p->params->has_add_special_tokens = true;
	p->params->add_special_tokens = json_is_true(value);
	return 0;
}

static int parse_logit_bias(struct parse *p, const json_t *value)
{
	const char *key;
	json_t *bias;
	if (!json_is_object(value))
		return wrong_type(p, "an object", value);
	json_object_foreach((json_t *)value, key, bias) {
		char *end;
		unsigned long id = strtoul(key, &end, 10);
		if (*key < '0' || *key > '9' || *end || id >= p->vocab_count)
			return api_fail(p->error, 400, p->field->name,
					"logit_bias: \"%.40s\" is not a token id below %u.", key,
					p->vocab_count);
		double v = json_is_number(bias) ? json_number_value(bias) : NAN;
		if (!(v >= -100 && v <= 100))
			return api_fail(p->error, 400, p->field->name,
					"logit_bias of token %lu must be a number from -100 to 100.",
					id);
	}
	return json_object_size(value) ? unsupported(p) : 0;
}

static int parse_response_format(struct parse *p, const json_t *value)
{
	if (!json_is_object(value))
		return wrong_type(p, "an object", value);
	const char *type = json_string_value(json_object_get(value, "type"));
	if (!type)
		return api_fail(p->error, 400, p->field->name,
				"response_format.type must be a string.");
	return strcmp(type, "text") ? unsupported(p) : 0;
}

/* "none" and "auto" choose nothing where there are no tools. */
static int parse_tool_choice(struct parse *p, const json_t *value)
{
	const char *text = json_string_value(value);
	if (!text && !json_is_object(value))
		return wrong_type(p, "a string or an object", value);
	return text && (!strcmp(text, "none") || !strcmp(text, "auto")) ? 0 : unsupported(p);
}

static int parse_modalities(struct parse *p, const json_t *value)
{
	if (!json_is_array(value))
		return wrong_type(p, "a list", value);
	size_t i;
	json_t *item;
	json_array_foreach(value, i, item)
		if (!json_is_string(item) || strcmp(json_string_value(item), "text") != 0)
			return unsupported(p);
	return 0;
}

#define AT(field) .offset = offsetof(struct api_params, field)
#define TOKENS_MAX 2147483647.0

/* Known fields. Others are ignored, as clients expect. */
static const struct field fields[] = {
	{ "max_tokens", API_BOTH, FIELD_INT, 1, 9.3e18, AT(max_tokens) },
	{ "max_completion_tokens", API_BOTH, FIELD_INT, 1, 9.3e18, AT(max_completion_tokens) },
	{ "min_tokens", API_BOTH, FIELD_INT, 0, TOKENS_MAX, AT(min_tokens) },
	{ "temperature", API_BOTH, FIELD_REAL, 0, 100, AT(temperature) },
	{ "top_p", API_BOTH, FIELD_REAL, 0, 1, AT(top_p) },
	{ "min_p", API_BOTH, FIELD_REAL, 0, 1, AT(min_p) },
	{ "top_k", API_BOTH, FIELD_INT, -1, TOKENS_MAX, AT(top_k) },
	{ "seed", API_BOTH, FIELD_CUSTOM, .parse = parse_seed },
	{ "n", API_BOTH, FIELD_INT, 1, REQUEST_CHOICES_MAX, AT(n) },
	{ "stop", API_BOTH, FIELD_CUSTOM, .parse = parse_stop },
	{ "stop_token_ids", API_BOTH, FIELD_CUSTOM, .parse = parse_stop_ids },
	{ "ignore_eos", API_BOTH, FIELD_BOOL, AT(ignore_eos) },
	{ "include_stop_str_in_output", API_BOTH, FIELD_BOOL, AT(include_stop) },
	{ "skip_special_tokens", API_BOTH, FIELD_BOOL, AT(skip_special) },
	{ "spaces_between_special_tokens", API_BOTH, FIELD_ANY_BOOL },
	{ "return_token_ids", API_BOTH, FIELD_BOOL, AT(return_token_ids) },
	{ "logprobs", API_CHAT, FIELD_CUSTOM, .parse = parse_logprobs_chat },
	{ "logprobs", API_COMPLETION, FIELD_CUSTOM, 0, SAMPLE_TOP_MAX,
	  .parse = parse_logprobs_completion },
	{ "top_logprobs", API_CHAT, FIELD_INT, 0, SAMPLE_TOP_MAX, AT(top_logprobs) },
	{ "stream", API_BOTH, FIELD_BOOL, AT(stream) },
	{ "stream_options", API_BOTH, FIELD_CUSTOM, .parse = parse_stream_options },
	{ "cache_salt", API_BOTH, FIELD_CUSTOM, .parse = parse_cache_salt },
	{ "priority", API_BOTH, FIELD_INT, -2147483648.0, TOKENS_MAX, AT(priority) },
	{ "add_generation_prompt", API_CHAT, FIELD_BOOL, AT(add_generation_prompt) },
	{ "chat_template_kwargs", API_CHAT, FIELD_CUSTOM, .parse = parse_template_variables },
	{ "add_special_tokens", API_COMPLETION, FIELD_CUSTOM, .parse = parse_add_special },
	{ "parallel_tool_calls", API_CHAT, FIELD_ANY_BOOL },
	{ "user", API_BOTH, FIELD_ANY_TEXT },
	/* Fields that change the text and are not built. */
	{ "presence_penalty", API_BOTH, FIELD_NO_REAL, -2, 2, .neutral = 0 },
	{ "frequency_penalty", API_BOTH, FIELD_NO_REAL, -2, 2, .neutral = 0 },
	{ "repetition_penalty", API_BOTH, FIELD_NO_REAL, 0, 100, .neutral = 1, .above_min = true },
	{ "repeat_penalty", API_BOTH, FIELD_NO_REAL, 0, 100, .neutral = 1, .above_min = true },
	{ "length_penalty", API_BOTH, FIELD_NO_REAL, -100, 100, .neutral = 1 },
	{ "typical_p", API_BOTH, FIELD_NO_REAL, 0, 1, .neutral = 1 },
	{ "tfs_z", API_BOTH, FIELD_NO_REAL, 0, 1, .neutral = 1 },
	{ "top_a", API_BOTH, FIELD_NO_REAL, 0, 1, .neutral = 0 },
	{ "mirostat", API_BOTH, FIELD_NO_INT, 0, 2, .neutral = 0 },
	{ "dynatemp_range", API_BOTH, FIELD_NO_REAL, 0, 100, .neutral = 0 },
	{ "xtc_probability", API_BOTH, FIELD_NO_REAL, 0, 1, .neutral = 0 },
	{ "dry_multiplier", API_BOTH, FIELD_NO_REAL, 0, 100, .neutral = 0 },
	{ "best_of", API_BOTH, FIELD_NO_INT, 1, 1000, .neutral = 1 },
	{ "use_beam_search", API_BOTH, FIELD_NO_BOOL },
	{ "early_stopping", API_BOTH, FIELD_NO_BOOL },
	{ "logit_bias", API_BOTH, FIELD_NO_CUSTOM, .parse = parse_logit_bias },
	{ "bad_words", API_BOTH, FIELD_NO_LIST },
	{ "allowed_token_ids", API_BOTH, FIELD_NO },
	{ "logits_processors", API_BOTH, FIELD_NO_LIST },
	{ "truncate_prompt_tokens", API_BOTH, FIELD_NO },
	{ "prompt_logprobs", API_BOTH, FIELD_NO },
	{ "logprob_token_ids", API_BOTH, FIELD_NO },
	{ "return_tokens_as_token_ids", API_BOTH, FIELD_NO_BOOL },
	{ "echo", API_BOTH, FIELD_NO_BOOL },
	{ "suffix", API_COMPLETION, FIELD_NO_TEXT, .neutral_text = "" },
	{ "prompt_embeds", API_COMPLETION, FIELD_NO },
	{ "response_format", API_BOTH, FIELD_NO_CUSTOM, .parse = parse_response_format },
	{ "structured_outputs", API_BOTH, FIELD_NO },
	{ "guided_json", API_BOTH, FIELD_NO },
	{ "guided_regex", API_BOTH, FIELD_NO },
	{ "guided_choice", API_BOTH, FIELD_NO },
	{ "guided_grammar", API_BOTH, FIELD_NO },
	{ "guided_decoding_backend", API_BOTH, FIELD_NO },
	{ "guided_whitespace_pattern", API_BOTH, FIELD_NO },
	{ "structural_tag", API_BOTH, FIELD_NO },
	{ "grammar", API_BOTH, FIELD_NO_TEXT, .neutral_text = "" },
	{ "json_schema", API_BOTH, FIELD_NO },
	{ "regex", API_BOTH, FIELD_NO },
	{ "ebnf", API_BOTH, FIELD_NO },
	{ "tools", API_CHAT, FIELD_NO_LIST },
	{ "tool_choice", API_CHAT, FIELD_NO_CUSTOM, .parse = parse_tool_choice },
	{ "functions", API_CHAT, FIELD_NO_LIST },
	{ "function_call", API_CHAT, FIELD_NO_CUSTOM, .parse = parse_tool_choice },
	{ "documents", API_CHAT, FIELD_NO_LIST },
	{ "chat_template", API_CHAT, FIELD_NO },
	{ "continue_final_message", API_CHAT, FIELD_NO_BOOL },
	{ "add_special_tokens", API_CHAT, FIELD_NO_BOOL },
	{ "mm_processor_kwargs", API_CHAT, FIELD_NO_OBJECT },
	{ "modalities", API_CHAT, FIELD_NO_CUSTOM, .parse = parse_modalities },
	{ "audio", API_CHAT, FIELD_NO },
	{ "web_search_options", API_CHAT, FIELD_NO },
	{ "reasoning_effort", API_CHAT, FIELD_NO_TEXT, .neutral_text = "none" },
	{ "verbosity", API_CHAT, FIELD_NO_TEXT, .neutral_text = "medium" },
	{ "vllm_xargs", API_BOTH, FIELD_NO_OBJECT },
	{ "kv_transfer_params", API_BOTH, FIELD_NO_OBJECT },
	{ "lora_path", API_BOTH, FIELD_NO },
};

const char *api_field_name(size_t index)
{
	return index < ARRAY_COUNT(fields) ? fields[index].name : NULL;
}

static int parse_neutral(struct parse *p, const json_t *value)
{
	const struct field *field = p->field;
	double real = 0;
	int64_t integer = 0;
	switch (field->type) {
	case FIELD_NO_BOOL:
		if (!json_is_boolean(value))
			return wrong_type(p, "a boolean", value);
		return json_is_true(value) ? unsupported(p) : 0;
	case FIELD_NO_REAL:
		if (parse_real(p, value, &real))
			return -1;
		return real != field->neutral ? unsupported(p) : 0;
	case FIELD_NO_INT:
		if (parse_int(p, value, &integer))
			return -1;
		return (double)integer != field->neutral ? unsupported(p) : 0;
	case FIELD_NO_LIST:
		if (!json_is_array(value))
			return wrong_type(p, "a list", value);
		return json_array_size(value) ? unsupported(p) : 0;
	case FIELD_NO_OBJECT:
		if (!json_is_object(value))
			return wrong_type(p, "an object", value);
		return json_object_size(value) ? unsupported(p) : 0;
	case FIELD_NO_TEXT:
		if (!json_is_string(value))
			return wrong_type(p, "a string", value);
		return json_string_length(value) != strlen(field->neutral_text) ||
				       strcmp(json_string_value(value), field->neutral_text) ?
			       unsupported(p) :
			       0;
	default:
		return unsupported(p);
	}
}

static int parse_field(struct parse *p, const json_t *value)
{
	const struct field *field = p->field;
	char *target = (char *)p->params + field->offset;
	switch (field->type) {
	case FIELD_BOOL:
		if (!json_is_boolean(value))
			return wrong_type(p, "a boolean", value);
		*(bool *)target = json_is_true(value);
		return 0;
	case FIELD_ANY_BOOL:
		return json_is_boolean(value) ? 0 : wrong_type(p, "a boolean", value);
	case FIELD_ANY_TEXT:
		return json_is_string(value) ? 0 : wrong_type(p, "a string", value);
	case FIELD_INT:
		return parse_int(p, value, (int64_t *)target);
	case FIELD_REAL:
		return parse_real(p, value, (double *)target);
	case FIELD_CUSTOM:
	case FIELD_NO_CUSTOM:
		return field->parse(p, value);
	default:
		return parse_neutral(p, value);
	}
}

/* What one field alone cannot show. */
static int check_together(struct api_params *params, struct api_error *error)
{
	if (params->kind == API_CHAT && params->top_logprobs && !params->want_logprobs)
		return api_fail(error, 400, "top_logprobs",
				"top_logprobs needs logprobs to be true.");
	if (params->has_stream_options && !params->stream)
		return api_fail(error, 400, "stream_options",
				"stream_options needs stream to be true.");
	int64_t limit = params->max_completion_tokens >= 0 ? params->max_completion_tokens :
							     params->max_tokens;
	if (limit >= 0 && params->min_tokens > limit)
		return api_fail(error, 400, "min_tokens",
				"min_tokens must not exceed max_tokens, got %lld and %lld.",
				(long long)params->min_tokens, (long long)limit);
	return 0;
}

int api_params_parse(const json_t *object, enum api_kind kind, uint32_t vocab_count,
		     struct api_params *ret_params, struct api_error *error)
{
	struct api_params *params = ret_params;
	memset(params, 0, offsetof(struct api_params, stops));
	params->stop_count = params->stop_id_count = 0;
	params->kind = kind;
	params->max_tokens = params->max_completion_tokens = -1;
	params->n = 1;
	params->temperature = params->top_p = 1;
	params->skip_special = params->add_generation_prompt = true;
	for (size_t i = 0; i < ARRAY_COUNT(fields); i++) {
		const json_t *value;
		struct parse parse = { &fields[i], params, error, vocab_count };
		if (!(fields[i].where & kind))
			continue;
		value = json_object_get(object, fields[i].name);
		if (!value || json_is_null(value))
			continue;
		if (parse_field(&parse, value))
			return -1;
	}
	return check_together(params, error);
}
