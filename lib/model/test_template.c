/* Templates against what Jinja2 itself makes of them (templates.jsonl), and the bounds. */
#include "model/template.h"

#include <errno.h>

#include "model/test_util.h"

static void test_jinja(void **state)
{
	struct golden golden;
	unsigned wrong = 0;
	golden_open(&golden, "templates.jsonl");
	json_t *first = golden_next(&golden), *variables = json_object_get(first, "variables");
	for (json_t *row; (row = golden_next(&golden)); json_decref(row)) {
		const char *source = json_string_value(json_object_get(row, "template"));
		const json_t *text = json_object_get(row, "text");
		struct chat_template *t = NULL;
		struct buf out;
		char error[300];
		buf_init(&out, 0);
		int result = chat_template_compile(source, &t, error, sizeof(error));
		if (result >= 0)
			result = chat_template_render(t, variables, &out, error, sizeof(error));
		bool right = text ? result >= 0 && out.bytes == json_string_length(text) &&
					    (!out.bytes || !memcmp(out.data, json_string_value(text),
								   out.bytes))
				  : result < 0 && error[0];
		if (!right) {
			fprintf(stderr, "row %u: %s\n  wanted: %s\n  got:    %s\n", golden.row, source,
				text ? json_string_value(text) : "an error",
				result < 0 ? error : out.data ? out.data : "");
			wrong++;
		}
		buf_fini(&out);
		chat_template_free(t);
	}
	json_decref(first);
	assert_true(golden.row > 200);
	assert_int_equal(wrong, 0);
}

static int run(const char *source, const char *json, struct buf *out, char error[300])
{
	struct chat_template *t;
	json_t *variables = json_loads(json, 0, NULL);
	assert_non_null(variables);
	int result = chat_template_compile(source, &t, error, 300);
	if (result >= 0) {
		result = chat_template_render(t, variables, out, error, 300);
		chat_template_free(t);
	}
	json_decref(variables);
	return result;
}

/* Work, memory, output and nesting end with a sentence, whatever a template or request asks. */
static void test_bounds(void **state)
{
	static const char *const sources[] = {
		"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
		"{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}"
		"{% endfor %}",
		"{{ 'x' * 999999999 }}",
		"{% for a in range(9999) %}{{ 'x' * 999999 }}{% endfor %}",
		"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
		"{% set ns = namespace(s=[1]) %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}"
		"{% endfor %}",
	};
	struct buf out;
	char error[300];
	buf_init(&out, 0);
	for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++) {
		buf_clear(&out);
		int result = run(sources[i], "{}", &out, error);
		assert_true(result == -E2BIG || result == -EINVAL);
		assert_non_null(strstr(error, "chat template, line 1: "));
	}
	buf_fini(&out);
}

static void test_nesting(void **state)
{
	struct buf source, out;
	char error[300];
	buf_init(&source, 0);
	buf_init(&out, 0);
	buf_append_text(&source, "{{ ");
	for (int i = 0; i < 100000; i++)
		buf_append_text(&source, "(");
	for (int i = 0; i < 100000; i++)
		buf_append_text(&source, ")");
	buf_append_text(&source, " }}");
	assert_int_equal(run(source.data, "{}", &out, error), -EINVAL);
	assert_non_null(strstr(error, "deep"));
	buf_clear(&source);
	buf_append_text(&source, "{{ 1");
	for (int i = 0; i < 100000; i++)
		buf_append_text(&source, "+1");
	buf_append_text(&source, " }}");
	assert_int_equal(run(source.data, "{}", &out, error), -EINVAL);
	buf_clear(&source);
	for (int i = 0; i < 10000; i++)
		buf_append_text(&source, "{% if true %}");
	assert_int_equal(run(source.data, "{}", &out, error), -EINVAL);
	buf_clear(&source);
	buf_append_text(&source, "{\"messages\": ");
	for (int i = 0; i < 1000; i++)
		buf_append_text(&source, "[");
	for (int i = 0; i < 1000; i++)
		buf_append_text(&source, "]");
	buf_append_text(&source, "}");
	assert_int_equal(run("{{ messages }}", source.data, &out, error), -E2BIG);
	buf_fini(&source);
	buf_fini(&out);
}

/* Errors name the line and what is wrong there. */
static void test_messages(void **state)
{
	static const struct {
		const char *source, *sentence;
	} cases[] = {
		{ "a\n{% nosuch %}", "line 2: expected a tag that is supported" },
		{ "\n\n{{ x | nosuch }}", "line 3: there is no filter 'nosuch'" },
		{ "{% for x in y %}", "line 1: for has no endfor" },
		{ "{{ raise_exception('Only so.') }}", "line 1: Only so." },
		{ "{{ messages[0].role.x.y }}", "'messages' is undefined" },
		{ "{{ \xff }}", "not UTF-8" },
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct buf out;
		char error[300];
		buf_init(&out, 0);
		assert_int_equal(run(cases[i].source, "{}", &out, error), -EINVAL);
		if (!strstr(error, cases[i].sentence))
			fail_msg("%s: %s", cases[i].source, error);
		buf_fini(&out);
	}
}

/* Special strings count only where every byte is the template's, whatever was done to them. */
static void test_origin(void **state)
{
	static const struct {
		const char *source;
		unsigned specials; /* </s> of the SPM vocabulary, id 2 */
	} cases[] = {
		{ "</s>{{ m }}</s>", 2 },
		{ "{{ m }}{{ m | trim }}{{ m ~ m }}", 0 },
		{ "{{ '</s>' + m + '</s>' }}", 2 },
		{ "{{ m[:2] }}{{ '/s>' }}", 0 },
		{ "{{ '</' }}{{ 's>' }}", 1 },
		{ "<{{ m[1:] }}", 0 },
		{ "{{ m | upper | lower }}", 0 },
		{ "{{ m | replace('<', '<') }}", 0 },
		{ "{{ '<s>' | replace('<', '</') }}", 1 },
		{ "{{ [m, '</s>'] | join('') }}", 1 },
		{ "{{ m | tojson }}", 0 },
		{ "{{ [m] }}", 0 },
		{ "{% set x %}{{ m }}</s>{% endset %}{{ x }}", 1 },
		{ "{{ m | list | join }}", 0 },
		{ "{{ eos_token }}{{ m }}", 1 },
		{ "{% for c in m %}{{ c }}{% endfor %}", 0 },
		{ "{{ m | reverse | reverse }}", 0 },
		{ "{{ o.items() | map('first') | first }}", 0 },
	};
	struct model *model = golden_model("tiny/tiny-mistral-nemo-f32.gguf", MODEL_NO_WEIGHTS);
	json_t *variables = json_pack("{s:s, s:s, s:{s:i}}", "m", "</s>", "eos_token", "</s>", "o",
				      "</s>", 1);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct chat_template *t;
		struct token_ids ids = { 0 };
		char error[300];
		if (chat_template_compile(cases[i].source, &t, error, sizeof(error)) < 0 ||
		    chat_template_tokenize(t, model_tokenizer(model), variables, &ids, error,
					   sizeof(error)) < 0)
			fail_msg("%s: %s", cases[i].source, error);
		unsigned specials = 0;
		for (uint32_t k = 0; k < ids.count; k++)
			specials += ids.v[k] == 2;
		if (specials != cases[i].specials)
			fail_msg("%s: %u special tokens, not %u", cases[i].source, specials,
				 cases[i].specials);
		free(ids.v);
		chat_template_free(t);
	}
	json_decref(variables);
	model_close(model);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_jinja),	 cmocka_unit_test(test_bounds),
		cmocka_unit_test(test_nesting),	 cmocka_unit_test(test_messages),
		cmocka_unit_test(test_origin),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
