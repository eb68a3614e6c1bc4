/* From a body to token ids: all four forms of `prompt`, and conversations. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "conductor/front_private.h"

int api_model_find(const struct fronts_config *config, const json_t *body,
		   struct front_model **ret_model, struct api_error *error)
{
	const json_t *name = json_object_get(body, "model");
	if (!name || json_is_null(name)) {
		*ret_model = &config->models[0];
		return 0;
	}
	if (!json_is_string(name))
		return api_fail(error, 400, "model", "model must be a string, got %s.",
				api_type_name(name));
	for (uint32_t m = 0; m < config->model_count; m++)
		for (uint32_t i = 0; i < config->models[m].name_count; i++)
			if (!strcmp(json_string_value(name), config->models[m].names[i]) &&
			    strlen(json_string_value(name)) == json_string_length(name)) {
				*ret_model = &config->models[m];
				return 0;
			}
	return api_fail(error, 404, "model", "model_not_found: the model `%.200s` does not exist.",
			json_string_value(name));
}

static int too_long(const struct front_model *model, const char *param, struct api_error *error)
{
	return api_fail(error, 400, param,
			"This model's maximum context length is %u tokens; the prompt is longer "
			"than that. Please shorten it.",
			model->max_model_len);
}

/* The cheap gate: no tokenizer makes so few tokens of so many bytes. */
static bool surely_too_long(const struct front_model *model, size_t bytes)
{
	return bytes / MAX(model->piece_bytes_max, 1u) > model->max_model_len;
}

static int from_text(const struct front_model *model, const struct api_params *params,
		     const json_t *text, struct api_prompt *prompt, struct api_error *error)
{
	int flags = TOKENIZE_SPECIAL;
	if (!params->has_add_special_tokens || params->add_special_tokens)
		flags |= TOKENIZE_ADD_BOS;
	if (surely_too_long(model, json_string_length(text)))
		return too_long(model, "prompt", error);
	if (tokenize(model_tokenizer(model->model), json_string_value(text),
		     json_string_length(text), flags, &prompt->ids))
		return api_fail(error, 503, NULL, "out of memory");
	if (!prompt->ids.count)
		return api_fail(error, 400, "prompt", "prompt has no tokens.");
	return 0;
}

static int from_ids(const struct front_model *model, const json_t *list, struct api_prompt *prompt,
		    struct api_error *error)
{
	uint32_t vocab_count = model_config(model->model)->vocab_count;
	size_t count = json_array_size(list), i;
	json_t *item;
	if (!count)
		return api_fail(error, 400, "prompt", "prompt has no tokens.");
	if (count > model->max_model_len)
		return too_long(model, "prompt", error);
	prompt->ids.v = malloc(count * sizeof *prompt->ids.v);
	if (!prompt->ids.v)
		return api_fail(error, 503, NULL, "out of memory");
	prompt->ids.capacity = (uint32_t)count;
	json_array_foreach(list, i, item) {
		if (!json_is_integer(item))
			return api_fail(error, 400, "prompt",
					"prompt must hold token ids only, got %s.",
					api_type_name(item));
		json_int_t id = json_integer_value(item);
		if (id < 0 || id >= (json_int_t)vocab_count)
			return api_fail(error, 400, "prompt",
					"prompt: %lld is not a token id below %u.", (long long)id,
					vocab_count);
		prompt->ids.v[prompt->ids.count++] = (uint32_t)id;
	}
	return 0;
}

static int prompts_of_completion(const struct front_model *model, const json_t *body,
				 const struct api_params *params, struct api_prompt ret_prompts[],
				 uint32_t *ret_count, struct api_error *error)
{
	const json_t *prompt = json_object_get(body, "prompt");
	*ret_count = 1;
	if (!prompt || json_is_null(prompt))
		return api_fail(error, 400, "prompt", "prompt is missing.");
	if (json_is_string(prompt))
		return from_text(model, params, prompt, &ret_prompts[0], error);
	if (!json_is_array(prompt))
		return api_fail(error, 400, "prompt",
				"prompt must be a string, a list of strings, token ids or lists "
				"of token ids, got %s.",
				api_type_name(prompt));
	size_t count = json_array_size(prompt);
	if (!count)
		return api_fail(error, 400, "prompt", "prompt is an empty list.");
	json_type first = json_typeof(json_array_get(prompt, 0));
	if (first == JSON_INTEGER)
		return from_ids(model, prompt, &ret_prompts[0], error);
	if (count > API_PROMPTS_MAX)
		return api_fail(error, 400, "prompt", "prompt holds more than %d prompts.",
				API_PROMPTS_MAX);
	if (first != JSON_STRING && first != JSON_ARRAY)
		return api_fail(error, 400, "prompt",
				"prompt must hold strings or token ids, got %s.",
				api_type_name(json_array_get(prompt, 0)));
	*ret_count = (uint32_t)count;
	for (size_t i = 0; i < count; i++) {
		const json_t *item = json_array_get(prompt, i);
		if (json_typeof(item) != first)
			return api_fail(error, 400, "prompt", "prompt mixes kinds: %s at %zu.",
					api_type_name(item), i);
		int result = first == JSON_STRING ?
				     from_text(model, params, item, &ret_prompts[i], error) :
				     from_ids(model, item, &ret_prompts[i], error);
		if (result)
			return result;
	}
	return 0;
}

/* ---- conversations ---- */

/* Content parts become one text, a line each, as vLLM joins them. Return: a new reference. */
static json_t *content_of_parts(const json_t *parts, size_t message, struct api_error *error)
{
	struct buf text;
	size_t i;
	json_t *part;
	buf_init(&text, 0);
	json_array_foreach(parts, i, part) {
		const json_t *type = json_object_get(part, "type");
		const json_t *piece = json_object_get(part, "text");
		if (!json_is_object(part) || !json_is_string(type)) {
			(void)api_fail(error, 400, "messages",
				       "messages[%zu].content[%zu] must be an object with a type.",
				       message, i);
			goto failed;
		}
		if (strcmp(json_string_value(type), "text") != 0) {
			(void)api_fail(error, 400, "messages",
				       "messages[%zu].content[%zu]: only text parts are supported.",
				       message, i);
			goto failed;
		}
		if (!json_is_string(piece)) {
			(void)api_fail(error, 400, "messages",
				       "messages[%zu].content[%zu].text must be a string.", message,
				       i);
			goto failed;
		}
		if (i)
			buf_append(&text, "\n", 1);
		buf_append(&text, json_string_value(piece), json_string_length(piece));
	}
	json_t *joined = json_stringn(text.data ? text.data : "", text.bytes);
	buf_fini(&text);
	return joined;
failed:
	buf_fini(&text);
	return NULL;
}

static json_t *content_of(const json_t *message, const char *role, size_t index,
			  struct api_error *error)
{
	const json_t *content = json_object_get(message, "content");
	if (!content || json_is_null(content)) {
		/* An assistant's turn may have been nothing but tool calls or a refusal. */
		if (!strcmp(role, "assistant"))
			return json_string("");
		(void)api_fail(error, 400, "messages", "messages[%zu].content is missing.", index);
		return NULL;
	}
	if (json_is_string(content))
		return json_incref((json_t *)content);
	if (json_is_array(content))
		return content_of_parts(content, index, error);
	(void)api_fail(error, 400, "messages",
		       "messages[%zu].content must be a string or a list of parts, got %s.", index,
		       api_type_name(content));
	return NULL;
}

static int add_message(json_t *list, const json_t *message, size_t index, struct api_error *error)
{
	if (!json_is_object(message))
		return api_fail(error, 400, "messages", "messages[%zu] must be an object, got %s.",
				index, api_type_name(message));
	const json_t *role = json_object_get(message, "role");
	if (!json_is_string(role) || !json_string_length(role))
		return api_fail(error, 400, "messages", "messages[%zu].role must be a string.",
				index);
	const json_t *calls = json_object_get(message, "tool_calls");
	if (calls && !json_is_null(calls) && !(json_is_array(calls) && !json_array_size(calls)))
		return api_fail(error, 400, "messages",
				"unsupported_parameter: messages[%zu].tool_calls is not supported "
				"here.",
				index);
	json_t *content = content_of(message, json_string_value(role), index, error);
	if (!content)
		return -1;
	json_t *clean = json_pack("{s:O, s:o}", "role", role, "content", content);
	const json_t *name = json_object_get(message, "name");
	if (clean && json_is_string(name))
		json_object_set(clean, "name", (json_t *)name);
	if (!clean || json_array_append_new(list, clean))
		return api_fail(error, 503, NULL, "out of memory");
	return 0;
}

static json_t *template_variables(const struct front_model *model, const json_t *messages,
				  const struct api_params *params, struct api_error *error)
{
	json_t *list = json_array(), *variables = json_object();
	size_t i;
	json_t *message;
	struct buf piece;
	const struct model_config *config = model_config(model->model);
	const struct tokenizer *tokenizer = model_tokenizer(model->model);
	if (params->template_variables)
		json_object_update(variables, params->template_variables);
	json_object_set_new(variables, "messages", list);
	json_object_set_new(variables, "add_generation_prompt",
			    json_boolean(params->add_generation_prompt));
	buf_init(&piece, 0);
	if (config->bos_id >= 0)
		tokenizer_piece(tokenizer, (uint32_t)config->bos_id, true, &piece);
	json_object_set_new(variables, "bos_token",
			    json_stringn(piece.data ? piece.data : "", piece.bytes));
	buf_clear(&piece);
	if (config->eos_count)
		tokenizer_piece(tokenizer, config->eos_ids[0], true, &piece);
	json_object_set_new(variables, "eos_token",
			    json_stringn(piece.data ? piece.data : "", piece.bytes));
	buf_fini(&piece);
	json_array_foreach(messages, i, message) {
		if (add_message(list, message, i, error)) {
			json_decref(variables);
			return NULL;
		}
	}
	return variables;
}

static size_t content_bytes(const json_t *variables)
{
	size_t bytes = 0, i;
	json_t *message;
	json_array_foreach(json_object_get(variables, "messages"), i, message)
		bytes += json_string_length(json_object_get(message, "content"));
	return bytes;
}

int api_chat_tokenize(const struct front_model *model, const json_t *body,
		      const struct api_params *params, struct token_ids *ids,
		      struct api_error *error)
{
	const json_t *messages = json_object_get(body, "messages");
	char why[256] = "";
	if (!messages || json_is_null(messages))
		return api_fail(error, 400, "messages", "messages is missing.");
	if (!json_is_array(messages) || !json_array_size(messages))
		return api_fail(error, 400, "messages", "messages must be a list that is not empty.");
	if (!model->chat_template)
		return api_fail(error, 400, "messages", "%s", model->template_error);
	json_t *variables = template_variables(model, messages, params, error);
	if (!variables)
		return -1;
	if (surely_too_long(model, content_bytes(variables))) {
		json_decref(variables);
		return too_long(model, "messages", error);
	}
	int result = chat_template_tokenize(model->chat_template, model_tokenizer(model->model),
					    variables, ids, why, sizeof why);
	json_decref(variables);
	if (result == -ENOMEM)
		return api_fail(error, 503, NULL, "out of memory");
	if (result)
		return api_fail(error, 400, "messages", "The chat template refuses the messages: %s",
				*why ? why : "they are too large.");
	if (!ids->count)
		return api_fail(error, 400, "messages", "messages have no tokens.");
	return 0;
}

int api_prompts_parse(const struct front_model *model, const json_t *body,
		      const struct api_params *params, struct api_prompt ret_prompts[],
		      uint32_t *ret_count, struct api_error *error)
{
	if (params->kind == API_COMPLETION)
		return prompts_of_completion(model, body, params, ret_prompts, ret_count, error);
	*ret_count = 1;
	return api_chat_tokenize(model, body, params, &ret_prompts[0].ids, error);
}
