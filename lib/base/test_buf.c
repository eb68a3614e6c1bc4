#include "base/test_util.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

static void test_append(void **state)
{
	struct buf buf;

	buf_init(&buf, 0);
	for (int i = 0; i < 1000; i++)
		buf_printf(&buf, "%d,", i % 10);
	assert_int_equal(buf.bytes, 2000);
	assert_memory_equal(buf.data, "0,1,2,3,4,5,6,7,8,9,0,", 22);
	assert_int_equal(buf.data[2000], 0);
	buf_consume(&buf, 1998);
	assert_string_equal(buf.data, "9,");
	buf_append(&buf, "\0x", 2);
	assert_int_equal(buf.bytes, 4);
	assert_dies(buf_consume(&buf, 5));
	buf_clear(&buf);
	assert_int_equal(buf.bytes, 0);
	buf_fini(&buf);
}

static void test_bound(void **state)
{
	struct buf buf;

	buf_init(&buf, 5);
	buf_append_text(&buf, "abc");
	buf_append_text(&buf, "de");
	assert_false(buf.failed);
	buf_append_text(&buf, "f");
	assert_true(buf.failed);
	/* What came after a failure is dropped too, or there would be a hole in the middle. */
	buf_clear(&buf);
	assert_false(buf.failed);
	buf_printf(&buf, "%s", "123456");
	assert_true(buf.failed);
	buf_append_text(&buf, "1");
	assert_int_equal(buf.bytes, 0);
	assert_null(buf_steal(&buf));
	assert_false(buf.failed);
	buf_append_text(&buf, "ok");
	char *text = buf_steal(&buf);
	assert_string_equal(text, "ok");
	free(text);
	buf_fini(&buf);
}

static void test_reserve(void **state)
{
	struct buf buf;

	buf_init(&buf, 0);
	char *room = buf_reserve(&buf, 3);
	assert_non_null(room);
	memcpy(room, "xyz", 3);
	buf.bytes += 3;
	buf_append_text(&buf, "!");
	assert_string_equal(buf.data, "xyz!");
	assert_null(buf_reserve(&buf, SIZE_MAX - 2));
	assert_true(buf.failed);
	buf_fini(&buf);
}

static void test_steal_empty(void **state)
{
	struct buf buf;

	buf_init(&buf, 0);
	char *text = buf_steal(&buf);
	assert_string_equal(text, "");
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_append),
		cmocka_unit_test(test_bound),
		cmocka_unit_test(test_reserve),
		cmocka_unit_test(test_steal_empty),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
