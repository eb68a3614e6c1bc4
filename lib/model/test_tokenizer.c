/* Every pre-tokenizer and both kinds of vocabulary against ids of other implementations. */
#include "model/test_util.h"

static void check_cases(const char *what, const struct tokenizer *t, const json_t *cases)
{
	struct token_ids ids = { 0 };
	size_t index;
	json_t *row;
	assert_true(json_array_size(cases) > 100);
	json_array_foreach(cases, index, row) {
		const json_t *text = json_object_get(row, "text");
		char name[128];
		snprintf(name, sizeof(name), "%s case %zu", what, index);
		ids.count = 0;
		assert_int_equal(tokenize(t, json_string_value(text), json_string_length(text), 0,
					  &ids),
				 0);
		assert_ids(name, &ids, json_object_get(row, "ids"));
	}
	free(ids.v);
}

static void test_tiny(void **state)
{
	struct golden golden;
	golden_open(&golden, "tiny/tokenizers.jsonl");
	for (json_t *row; (row = golden_next(&golden)); json_decref(row)) {
		char path[128];
		const char *file = json_string_value(json_object_get(row, "file"));
		snprintf(path, sizeof(path), "tiny/%s", file);
		struct model *model = golden_model(path, MODEL_NO_WEIGHTS);
		check_cases(file, model_tokenizer(model), json_object_get(row, "cases"));
		model_close(model);
	}
	assert_int_equal(golden.row, 7);
}

/* Text that the vocabulary can say comes back as it was. */
static void test_round_trip(void **state)
{
	static const char *const files[] = { "tiny/tiny-llama-f32.gguf", "tiny/tiny-qwen2-f32.gguf",
					     "tiny/tiny-mistral-nemo-f32.gguf" };
	static const char *const texts[] = { "", " ", "a", " a", "  two  spaces ", "\n\nx\t\r\n",
					     "caf\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80",
					     "0123456789 it's" };
	for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++) {
		struct model *model = golden_model(files[f], MODEL_NO_WEIGHTS);
		for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
			struct token_ids ids = { 0 };
			struct buf out;
			buf_init(&out, 0);
			assert_int_equal(tokenize(model_tokenizer(model), texts[i],
						  strlen(texts[i]), 0, &ids),
					 0);
			detokenize(model_tokenizer(model), ids.v, ids.count, false, &out);
			assert_string_equal(out.data ? out.data : "", texts[i]);
			buf_fini(&out);
			free(ids.v);
		}
		model_close(model);
	}
}

/* Invalid UTF-8 counts as U+FFFD, one for each maximal part. */
static void test_replacement(void **state)
{
	static const struct {
		const char *text, *same;
	} cases[] = {
		{ "a\xff", "a\xef\xbf\xbd" },
		{ "\xe2\x82", "\xef\xbf\xbd" },
		{ "\xf0\x9f\x98z", "\xef\xbf\xbdz" },
		{ "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
		{ "\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
	};
	struct model *model = golden_model("tiny/tiny-llama-f32.gguf", MODEL_NO_WEIGHTS);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct token_ids a = { 0 }, b = { 0 };
		const struct tokenizer *t = model_tokenizer(model);
		assert_int_equal(tokenize(t, cases[i].text, strlen(cases[i].text), 0, &a), 0);
		assert_int_equal(tokenize(t, cases[i].same, strlen(cases[i].same), 0, &b), 0);
		assert_int_equal(a.count, b.count);
		assert_memory_equal(a.v, b.v, a.count * sizeof(a.v[0]));
		free(a.v);
		free(b.v);
	}
	model_close(model);
}

static void test_bos(void **state)
{
	struct model *model = golden_model("tiny/tiny-mistral-nemo-f32.gguf", MODEL_NO_WEIGHTS);
	struct token_ids ids = { 0 };
	assert_int_equal(tokenize(model_tokenizer(model), "", 0, TOKENIZE_ADD_BOS, &ids), 0);
	assert_int_equal(ids.count, 1);
	assert_int_equal(ids.v[0], model_config(model)->bos_id);
	/* A control token's text is only text unless asked for. */
	ids.count = 0;
	assert_int_equal(tokenize(model_tokenizer(model), "</s>", 4, TOKENIZE_SPECIAL, &ids), 0);
	assert_int_equal(ids.count, 1);
	assert_int_equal(ids.v[0], 2);
	assert_true(tokenizer_is_special(model_tokenizer(model), 2));
	ids.count = 0;
	assert_int_equal(tokenize(model_tokenizer(model), "</s>", 4, 0, &ids), 0);
	assert_true(ids.count > 1);
	for (uint32_t i = 0; i < ids.count; i++)
		assert_false(tokenizer_is_special(model_tokenizer(model), ids.v[i]));
	free(ids.v);
	model_close(model);
}

/* One megabyte without a border, and one of white space, end in time that grows with n log n: a
 * quadratic merge would need hours. */
static void test_long(void **state)
{
	static const char *const files[] = { "tiny/tiny-llama-f32.gguf", "tiny/tiny-qwen2-f32.gguf",
					     "tiny/tiny-llama3-rope-f32.gguf",
					     "tiny/tiny-mistral-nemo-f32.gguf" };
	static const char fills[] = "a 0\n\xff'<";
	size_t bytes = 1 << 20;
	char *text = malloc(bytes);
	assert_non_null(text);
	for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++) {
		struct model *model = golden_model(files[f], MODEL_NO_WEIGHTS);
		for (size_t i = 0; i < sizeof(fills) - 1; i++) {
			struct token_ids ids = { 0 };
			memset(text, fills[i], bytes);
			assert_int_equal(tokenize(model_tokenizer(model), text, bytes,
						  TOKENIZE_SPECIAL, &ids),
					 0);
			assert_true(ids.count > 1000);
			free(ids.v);
		}
		model_close(model);
	}
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tiny),	    cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_replacement), cmocka_unit_test(test_bos),
		cmocka_unit_test(test_long),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
