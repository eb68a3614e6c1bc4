/*
 * Any bytes as a chat template and, behind a NUL, as the JSON of its variables: refused with a
 * sentence, or rendered to UTF-8. Special tokens in the ids come from the template's own text:
 * there are none when it does not spell one.
 */
#include "fuzz.h"

#include <limits.h>
#include <string.h>

#include "model/template.h"
#include "model/utf8.h"

static const char variables_text[] =
	"{\"messages\": [{\"role\": \"system\", \"content\": \" Be <|eot_id|> brief.\\n\"},"
	"{\"role\": \"user\", \"content\": \"h\\u00e9 </s>\", \"n\": [1, 2.5, null, true]},"
	"{\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"a,b\"}]}],"
	"\"add_generation_prompt\": true, \"bos_token\": \"B\", \"tools\": null}";

static const struct tokenizer *get_tokenizer(void)
{
	static struct model *model;
	char path[PATH_MAX], error[256];
	if (!model) {
		snprintf(path, sizeof(path), "%s/tiny/tiny-llama3-rope-f32.gguf", TEST_GOLDEN);
		FUZZ_CHECK(model_open(path, MODEL_NO_WEIGHTS, &model, error, sizeof(error)) >= 0);
	}
	return model_tokenizer(model);
}

static void render(const struct chat_template *t, const json_t *variables, bool own_bars)
{
	char error[256];
	struct token_ids ids = { 0 };
	struct buf out;
	buf_init(&out, 0);
	if (chat_template_render(t, variables, &out, error, sizeof(error)) < 0)
		FUZZ_CHECK(error[0]);
	else
		FUZZ_CHECK(utf8_valid(out.data, out.bytes));
	if (chat_template_tokenize(t, get_tokenizer(), variables, &ids, error, sizeof(error)) < 0)
		FUZZ_CHECK(error[0]);
	for (uint32_t i = 0; i < ids.count; i++)
		FUZZ_CHECK(own_bars || !tokenizer_is_special(get_tokenizer(), ids.v[i]));
	free(ids.v);
	buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	char *source = malloc(bytes + 1), error[256] = "";
	FUZZ_CHECK(source);
	memcpy(source, data, bytes);
	source[bytes] = 0;
	struct chat_template *t;
	int result = chat_template_compile(source, &t, error, sizeof(error));
	if (result < 0) {
		FUZZ_CHECK(error[0]);
		free(source);
		return 0;
	}
	size_t used = strlen(source) + 1;
	json_t *variables = used < bytes ? json_loadb(source + used, bytes - used, JSON_ALLOW_NUL, NULL)
					 : NULL;
	if (!variables)
		variables = json_loads(variables_text, 0, NULL);
	/* Every special string of that vocabulary has a bar; it can be escaped, too. The server's
	 * own variables (bos_token) may hold one. */
	bool own_bars = strpbrk(source, "|\\") != NULL ||
			json_string_value(json_object_get(variables, "bos_token")) == NULL ||
			strstr(source, "token") != NULL;
	render(t, variables, own_bars);
	json_decref(variables);
	chat_template_free(t);
	free(source);
	return 0;
}
