/* Any bytes as the body of a completion request: refused with a proper error, or parameters and
 * prompts within their bounds. The first byte chooses the endpoint. */
#include "fuzz.h"

#include <string.h>

#include "conductor/front_private.h"

static struct front_model model;

static void open_model(void)
{
	static const char chatml[] = "{% for m in messages %}{{ m['role'] + m['content'] }}{% endfor %}";
	struct model *opened;
	struct chat_template *chat_template;
	char why[256];
	FUZZ_CHECK(!model_open(TEST_GOLDEN "/tiny/tiny-llama-f32.gguf", MODEL_NO_WEIGHTS, &opened, why,
			       sizeof(why)));
	FUZZ_CHECK(!chat_template_compile(chatml, &chat_template, why, sizeof(why)));
	model = (struct front_model){ .names = { "m" }, .name_count = 1, .root = "m", .model = opened,
				      .chat_template = chat_template, .max_model_len = 512,
				      .piece_bytes_max = 16 };
}

static void check_error(const struct api_error *error)
{
	struct buf text;
	buf_init(&text, 0);
	FUZZ_CHECK(error->status >= 400 && error->status < 600 && error->message[0]);
	api_error_render(error, &text);
	json_t *json = json_loadb(text.data, text.bytes, JSON_ALLOW_NUL, NULL);
	FUZZ_CHECK(json_is_string(json_object_get(json_object_get(json, "error"), "message")));
	json_decref(json);
	buf_fini(&text);
}

static void check_params(const struct api_params *p)
{
	FUZZ_CHECK(p->n >= 1 && p->n <= REQUEST_CHOICES_MAX);
	FUZZ_CHECK(p->temperature >= 0 && p->temperature <= 100);
	FUZZ_CHECK(p->top_p >= 0 && p->top_p <= 1 && p->min_p >= 0 && p->min_p <= 1);
	FUZZ_CHECK(p->top_logprobs >= 0 && p->top_logprobs <= SAMPLE_TOP_MAX);
	FUZZ_CHECK(p->max_tokens == -1 || p->max_tokens >= 1);
	FUZZ_CHECK(p->stop_count <= STOP_TEXTS_MAX && p->stop_id_count <= REQUEST_STOP_IDS_MAX);
	for (uint32_t i = 0; i < p->stop_count; i++)
		FUZZ_CHECK(p->stops[i].bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static struct api_params params;
	static struct api_prompt prompts[API_PROMPTS_MAX];
	struct api_error error = { 0 };
	uint32_t count = 0, vocab_count;
	if (!bytes)
		return 0;
	if (!model.model)
		open_model();
	vocab_count = model_config(model.model)->vocab_count;
	json_t *body = api_json_load((const char *)data + 1, bytes - 1, &error);
	enum api_kind kind = data[0] & 1 ? API_CHAT : API_COMPLETION;
	if (!body || api_params_parse(body, kind, vocab_count, &params, &error)) {
		check_error(&error);
		json_decref(body);
		return 0;
	}
	check_params(&params);
	if (api_prompts_parse(&model, body, &params, prompts, &count, &error))
		check_error(&error);
	else
		FUZZ_CHECK(count >= 1);
	for (uint32_t i = 0; i < count; i++) {
		for (uint32_t t = 0; t < prompts[i].ids.count; t++)
			FUZZ_CHECK(prompts[i].ids.v[t] < vocab_count);
		free(prompts[i].ids.v);
		prompts[i].ids = (struct token_ids){ 0 };
	}
	json_decref(body);
	return 0;
}
