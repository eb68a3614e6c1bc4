/* Normalization against Python's unicodedata (nfc.jsonl). */
#include "model/nfc.h"
#include "model/test_util.h"

static void check(const char *text, size_t bytes, const char *wanted, size_t wanted_bytes)
{
	struct buf out;
	buf_init(&out, 0);
	assert_int_equal(nfc_append(text, bytes, &out), 0);
	if (out.bytes != wanted_bytes || (bytes && memcmp(out.data, wanted, wanted_bytes) != 0))
		fail_msg("\"%.*s\" becomes \"%.*s\", not \"%s\"", (int)bytes, text, (int)out.bytes,
			 out.data, wanted);
	buf_fini(&out);
}

static void test_golden(void **state)
{
	struct golden golden;
	golden_open(&golden, "nfc.jsonl");
	for (json_t *row; (row = golden_next(&golden)); json_decref(row)) {
		const json_t *text = json_array_get(row, 0), *wanted = json_array_get(row, 1);
		check(json_string_value(text), json_string_length(text), json_string_value(wanted),
		      json_string_length(wanted));
		/* A normal text stays as it is. */
		check(json_string_value(wanted), json_string_length(wanted),
		      json_string_value(wanted), json_string_length(wanted));
	}
	assert_true(golden.row > 2000);
}

/* A megabyte of marks, out of order, ends soon. */
static void test_long(void **state)
{
	size_t count = 500000;
	char *text = malloc(2 * count);
	struct buf out;
	assert_non_null(text);
	for (size_t i = 0; i < count; i++)
		memcpy(text + 2 * i, i % 2 ? "\xcc\xa3" : "\xcc\x81", 2);
	buf_init(&out, 0);
	assert_int_equal(nfc_append(text, 2 * count, &out), 0);
	assert_int_equal(out.bytes, 2 * count);
	assert_memory_equal(out.data, "\xcc\xa3\xcc\xa3", 4);
	buf_fini(&out);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden),
		cmocka_unit_test(test_long),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
