/* Keys are a wire and disk format: fixed vectors, computed with Python's hashlib. */
#include "base/test_util.h"

#include <string.h>

#include "kv/key.h"

static void assert_key(const struct kv_key *key, const char *hex)
{
	char text[33];
	for (size_t i = 0; i < sizeof key->bytes; i++)
		snprintf(text + 2 * i, 3, "%02x", key->bytes[i]);
	assert_string_equal(text, hex);
}

static void format(uint8_t ret_format[32])
{
	for (uint8_t i = 0; i < 32; i++)
		ret_format[i] = i;
}

static void test_root(void **state)
{
	uint8_t kv_format[32];
	struct kv_key key;

	format(kv_format);
	kv_key_root(kv_format, "", "", &key);
	assert_key(&key, "efb030fb5f0f1981220206ad421fd212");
	kv_key_root(kv_format, "ab", "c", &key);
	assert_key(&key, "90104fecee4e66ef0f42dc7fcec35983");
	kv_key_root(kv_format, "a", "bc", &key);
	assert_key(&key, "3535506356520ef444202f2b374a4731");
}

static void test_chain(void **state)
{
	uint8_t kv_format[32];
	struct kv_key root, first, second;
	uint32_t tokens[16];

	format(kv_format);
	kv_key_root(kv_format, "", "", &root);
	for (uint32_t i = 0; i < 16; i++)
		tokens[i] = 1000 + i;
	kv_key_next(&root, tokens, 16, &first);
	assert_key(&first, "c921e909a31c8e384395e0c9db47c054");
	for (uint32_t i = 0; i < 16; i++)
		tokens[i] = 7;
	kv_key_next(&first, tokens, 16, &second);
	assert_key(&second, "155553c471ab9c9b0ca50555940fa407");
	assert_true(kv_key_equal(&first, &first));
	assert_false(kv_key_equal(&first, &second));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_root),
		cmocka_unit_test(test_chain),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
