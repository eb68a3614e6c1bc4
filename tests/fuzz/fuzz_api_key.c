/* Any line as a record of the key store: refused, or a key whose members are within their bounds and
 * that comes back the same when it is written and read again. */
#include "fuzz.h"

#include <string.h>

#include "net/api_key.h"

static void check_key(const struct api_key *key)
{
	struct api_key again;
	struct buf text;
	FUZZ_CHECK(api_key_name_ok(key->name) && api_key_name_ok(key->tenant));
	FUZZ_CHECK(strlen(key->tenant_salt) == 64);
	FUZZ_CHECK(key->requests_per_minute <= API_KEY_RATE_MAX);
	FUZZ_CHECK(key->tokens_per_minute <= API_KEY_RATE_MAX);
	buf_init(&text, 0);
	api_key_format(key, &text);
	FUZZ_CHECK(!api_key_parse(text.data, &again));
	FUZZ_CHECK(!memcmp(key, &again, sizeof again));
	buf_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct store_table table = { 0 };
	struct api_key key;
	char *line = strndup((const char *)data, bytes);
	uint64_t id;
	FUZZ_CHECK(line);
	memset(&key, 0, sizeof key);
	if (!store_table_put(&table, line)) {
		FUZZ_CHECK(table.count == 1);
		FUZZ_CHECK(store_table_find(&table, table.records[0].id) == table.records);
		int result = api_key_revoke(&table, table.records[0].id, 1);
		FUZZ_CHECK(result || !api_key_parse(table.records[0].value, &key));
		FUZZ_CHECK(result || key.revoked_s == 1);
	}
	if (!api_key_parse(line, &key))
		check_key(&key);
	(void)api_key_text_id(line, &id);
	store_table_fini(&table);
	free(line);
	return 0;
}
