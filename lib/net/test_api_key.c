#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <openssl/evp.h>

#include "net/api_key.h"

static struct api_key issue(struct store_table *table, const char *tenant, char *secret)
{
	struct api_key key = { .created_s = 1700000000, .requests_per_minute = 60,
			       .priority = -3, .class = API_KEY_ADMIN };
	snprintf(key.name, sizeof key.name, "laptop");
	snprintf(key.tenant, sizeof key.tenant, "%s", tenant);
	assert_int_equal(api_key_issue(table, &key, secret), 0);
	return key;
}

static void test_issue(void **state)
{
	struct store_table table = { 0 };
	char secret[API_KEY_TEXT_BYTES + 1], other[API_KEY_TEXT_BYTES + 1];
	struct api_key key = issue(&table, "acme", secret), parsed;
	assert_int_equal(strlen(secret), API_KEY_TEXT_BYTES);
	assert_int_equal(strncmp(secret, "sk-baton-", 9), 0);
	assert_int_equal(table.count, 1);
	/* Neither the secret nor its random part is stored. */
	assert_null(strstr(table.records[0].value, secret));
	assert_null(strstr(table.records[0].value, secret + 26));
	assert_int_equal(api_key_parse(table.records[0].value, &parsed), 0);
	assert_memory_equal(&parsed, &key, sizeof key);
	uint64_t id;
	assert_true(api_key_text_id(secret, &id));
	assert_true(id == key.id);
	assert_true(api_key_verify(&parsed, secret));
	/* The hash is what the header says, made by another hand. */
	uint8_t text[16 + API_KEY_TEXT_BYTES], hash[32];
	memcpy(text, key.salt, 16);
	memcpy(text + 16, secret, API_KEY_TEXT_BYTES);
	assert_int_equal(EVP_Digest(text, sizeof text, hash, NULL, EVP_sha256(), NULL), 1);
	assert_memory_equal(hash, key.hash, 32);
	for (size_t i = 26; i < API_KEY_TEXT_BYTES; i++) {
		snprintf(other, sizeof other, "%s", secret);
		other[i] = other[i] == '0' ? '1' : '0';
		assert_false(api_key_verify(&parsed, other));
	}
	issue(&table, "acme", other);
	assert_string_not_equal(secret, other);
	store_table_fini(&table);
}

static void test_tenant_salt(void **state)
{
	struct store_table table = { 0 };
	char secret[API_KEY_TEXT_BYTES + 1], id[17];
	struct api_key a = issue(&table, "a", secret), b = issue(&table, "b", secret);
	struct api_key again = issue(&table, "a", secret);
	assert_int_equal(strlen(a.tenant_salt), 64);
	assert_string_not_equal(a.tenant_salt, b.tenant_salt);
	assert_string_equal(a.tenant_salt, again.tenant_salt);
	/* It outlives its keys. */
	snprintf(id, sizeof id, "%016llx", (unsigned long long)a.id);
	assert_int_equal(api_key_revoke(&table, id, 5), 0);
	assert_int_equal(api_key_revoke(&table, id, 6), -EALREADY);
	snprintf(id, sizeof id, "%016llx", (unsigned long long)again.id);
	assert_int_equal(api_key_revoke(&table, id, 5), 0);
	assert_int_equal(api_key_revoke(&table, "0000", 5), -ENOENT);
	struct api_key later = issue(&table, "a", secret), parsed;
	assert_string_equal(a.tenant_salt, later.tenant_salt);
	assert_int_equal(api_key_parse(store_table_find(&table, id)->value, &parsed), 0);
	assert_int_equal(parsed.revoked_s, 5);
	store_table_fini(&table);
}

#define H16 "00112233445566778899aabbccddeeff"
#define GOOD                                                                                     \
	"\"id\":\"0123456789abcdef\",\"name\":\"n\",\"tenant\":\"t\",\"class\":\"client\",\"created\":1,"  \
	"\"salt\":\"" H16 "\",\"hash\":\"" H16 H16 "\",\"tenant_salt\":\"" H16 H16 "\""

static void test_parse(void **state)
{
	struct api_key key;
	assert_int_equal(api_key_parse("{" GOOD "}", &key), 0);
	assert_true(key.id == UINT64_C(0x0123456789abcdef));
	assert_int_equal(api_key_parse("{" GOOD ",\"of_a_later_version\":[1]}", &key), 0);
	static const char *const bad[] = {
		"", "{}", "[]", "{" GOOD, "{" GOOD ",\"id\":\"1\"}", "{" GOOD ",\"expires\":-1}",
		"{" GOOD ",\"expires\":\"1\"}", "{" GOOD ",\"requests_per_minute\":1e3}",
		"{" GOOD ",\"requests_per_minute\":1000000001}", "{" GOOD ",\"priority\":2147483648}",
		"{\"id\":\"0123456789abcdef\"}",
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_int_equal(api_key_parse(bad[i], &key), -EBADMSG);
	/* Each member is needed, and checked. */
	static const char *const members[] = { "id", "name", "tenant", "class", "salt", "hash", "tenant_salt" };
	for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
		char text[600], quoted[32];
		snprintf(text, sizeof text, "{" GOOD "}");
		snprintf(quoted, sizeof quoted, "\"%s\":\"", members[i]);
		strstr(text, quoted)[strlen(quoted)] = '"' + 1;
		assert_int_equal(api_key_parse(text, &key), -EBADMSG);
	}
}

static void test_text(void **state)
{
	uint64_t id;
	char text[API_KEY_TEXT_BYTES + 2];
	memset(text, 'a', sizeof text);
	text[API_KEY_TEXT_BYTES] = 0;
	assert_false(api_key_text_id(text, &id));
	memcpy(text, "sk-baton-", 9);
	assert_false(api_key_text_id(text, &id));
	text[25] = '-';
	assert_true(api_key_text_id(text, &id));
	text[API_KEY_TEXT_BYTES - 1] = 0;
	assert_false(api_key_text_id(text, &id));
	assert_false(api_key_text_id("", &id));
	assert_true(api_key_name_ok("team-1.prod@x_Y"));
	assert_false(api_key_name_ok(""));
	assert_false(api_key_name_ok("a b"));
	assert_false(api_key_name_ok("a\"b"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_issue),
		cmocka_unit_test(test_tenant_salt),
		cmocka_unit_test(test_parse),
		cmocka_unit_test(test_text),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
