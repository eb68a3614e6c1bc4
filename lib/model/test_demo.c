/* The demo model: its config, its tokenizer on every golden row. Exit 77 without the file. */
#include "model/template.h"
#include "model/test_util.h"

static struct model *model;

static void test_config(void **state)
{
	const struct model_config *c = model_config(model);
	assert_int_equal(c->arch, MODEL_LLAMA);
	assert_int_equal(c->layer_count, 30);
	assert_int_equal(c->embedding, 576);
	assert_int_equal(c->head_count, 9);
	assert_int_equal(c->kv_head_count, 3);
	assert_int_equal(c->head_dim, 64);
	assert_int_equal(c->feed_forward, 1536);
	assert_int_equal(c->vocab_count, 49152);
	assert_int_equal(c->context_tokens, 8192);
	assert_int_equal(c->rope_dim, 64);
	assert_true(c->rope_base == 100000.0f);
	assert_true(c->rope_interleaved);
	assert_true(c->tied_embeddings);
	assert_false(c->add_bos);
	assert_int_equal(c->bos_id, 1);
	assert_int_equal(c->eos_count, 2);
	assert_int_equal(c->eos_ids[0], 2);
	assert_int_equal(c->eos_ids[1], 0);
	assert_non_null(strstr(model_chat_template(model), "add_generation_prompt"));
	assert_int_equal(model_tensor(model, "token_embd.weight")->type, TENSOR_Q8_0);
	assert_int_equal(model_tensor(model, "blk.29.ffn_down.weight")->type, TENSOR_Q4_1);
	assert_null(model_tensor(model, "output.weight"));
}

static uint8_t hex_digit(char c)
{
	return (uint8_t)(c <= '9' ? c - '0' : c - 'a' + 10);
}

static size_t from_hex(const char *hex, char *out)
{
	size_t count = strlen(hex) / 2;
	for (size_t i = 0; i < count; i++)
		out[i] = (char)(hex_digit(hex[2 * i]) << 4 | hex_digit(hex[2 * i + 1]));
	return count;
}

static void check_detok(const json_t *row, unsigned number, const struct token_ids *ids)
{
	struct buf out;
	buf_init(&out, 0);
	detokenize(model_tokenizer(model), ids->v, ids->count, true, &out);
	const json_t *text = json_object_get(row, "detok");
	if (text) {
		if (out.bytes != json_string_length(text) ||
		    (out.bytes && memcmp(out.data, json_string_value(text), out.bytes) != 0))
			fail_msg("row %u comes back as something else", number);
	} else {
		const char *hex = json_string_value(json_object_get(row, "detok_hex"));
		char *wanted = malloc(strlen(hex) + 1);
		assert_int_equal(from_hex(hex, wanted), out.bytes);
		assert_memory_equal(wanted, out.data, out.bytes);
		free(wanted);
	}
	buf_fini(&out);
}

static void test_tokenizer(void **state)
{
	struct golden golden;
	struct token_ids ids = { 0 };
	golden_open(&golden, "tokenizer.jsonl");
	for (json_t *row; (row = golden_next(&golden)); json_decref(row)) {
		const json_t *text = json_object_get(row, "text");
		char name[64];
		snprintf(name, sizeof(name), "row %u (%s)", golden.row,
			 json_string_value(json_object_get(row, "tag")));
		int flags = json_is_true(json_object_get(row, "parse_special")) ? TOKENIZE_SPECIAL : 0;
		ids.count = 0;
		assert_int_equal(tokenize(model_tokenizer(model), json_string_value(text),
					  json_string_length(text), flags, &ids),
				 0);
		assert_ids(name, &ids, json_object_get(row, "ids"));
		check_detok(row, golden.row, &ids);
	}
	assert_int_equal(golden.row, 521);
	free(ids.v);
}

static void test_invalid(void **state)
{
	struct golden golden;
	struct token_ids ids = { 0 };
	golden_open(&golden, "tokenizer-invalid.jsonl");
	for (json_t *row; (row = golden_next(&golden)); json_decref(row)) {
		const char *hex = json_string_value(json_object_get(row, "bytes_hex"));
		char text[64];
		size_t bytes = from_hex(hex, text);
		ids.count = 0;
		assert_int_equal(tokenize(model_tokenizer(model), text, bytes, 0, &ids), 0);
		assert_ids(hex, &ids, json_object_get(row, "ids_replace"));
	}
	assert_int_equal(golden.row, 17);
	free(ids.v);
}

/* Prompts as Jinja renders them, and their ids: contents with special strings stay text. */
static void test_chat(void **state)
{
	struct golden golden;
	struct chat_template *t;
	char error[256];
	unsigned injections = 0;
	if (chat_template_compile(model_chat_template(model), &t, error, sizeof(error)) < 0)
		fail_msg("%s", error);
	golden_open(&golden, "chat.jsonl");
	for (json_t *row; (row = golden_next(&golden)); json_decref(row)) {
		const json_t *prompt = json_object_get(row, "prompt");
		bool injection = json_is_true(json_object_get(row, "injection"));
		struct token_ids ids = { 0 };
		struct buf out;
		char name[64];
		snprintf(name, sizeof(name), "chat row %u", golden.row);
		buf_init(&out, 0);
		if (chat_template_render(t, row, &out, error, sizeof(error)) < 0 ||
		    chat_template_tokenize(t, model_tokenizer(model), row, &ids, error,
					   sizeof(error)) < 0)
			fail_msg("%s: %s", name, error);
		assert_int_equal(out.bytes, json_string_length(prompt));
		assert_memory_equal(out.data, json_string_value(prompt), out.bytes);
		assert_ids(name, &ids,
			   json_object_get(row, injection ? "ids_content_plain" : "ids"));
		injections += injection;
		buf_fini(&out);
		free(ids.v);
	}
	assert_int_equal(golden.row, 112);
	assert_int_equal(injections, 18);
	chat_template_free(t);
}

int main(void)
{
	const char *path = demo_model_path();
	if (!path)
		return 77;
	model = golden_model(path, 0);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_config),
		cmocka_unit_test(test_tokenizer),
		cmocka_unit_test(test_invalid),
		cmocka_unit_test(test_chat),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	model_close(model);
	return failed;
}
