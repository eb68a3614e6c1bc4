#include "net/api_key.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/rand.h"

static const char prefix[] = "sk-baton-";

bool api_key_name_ok(const char *name)
{
	static const char fit[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.@";
	size_t bytes = strlen(name);
	return bytes >= 1 && bytes <= API_KEY_NAME_MAX && strspn(name, fit) == bytes;
}

/* ---- hexadecimal ---- */

static void hex_put(const uint8_t *bytes, size_t count, char *out)
{
	for (size_t i = 0; i < count; i++)
		snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

static bool hex_get(const char *text, uint8_t *bytes, size_t count)
{
	if (strlen(text) != 2 * count || strspn(text, "0123456789abcdef") != 2 * count)
		return false;
	for (size_t i = 0; i < count; i++) {
		char pair[3] = { text[2 * i], text[2 * i + 1], 0 };
		bytes[i] = (uint8_t)strtoul(pair, NULL, 16);
	}
	return true;
}

static void draw(uint8_t *bytes, size_t count)
{
	for (size_t i = 0; i < count; i += 8) {
		uint64_t word = rand_system();
		memcpy(bytes + i, &word, MIN((size_t)8, count - i));
	}
}

/* ---- records ---- */

/* A whole number from 0 to @max; absent: 0. */
static bool get_count(const json_t *object, const char *name, uint64_t max, uint64_t *ret_value)
{
	const json_t *value = json_object_get(object, name);
	*ret_value = 0;
	if (!value)
		return true;
	if (!json_is_integer(value) || json_integer_value(value) < 0 ||
	    (uint64_t)json_integer_value(value) > max)
		return false;
	*ret_value = (uint64_t)json_integer_value(value);
	return true;
}

static const char *get_text(const json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));
	return text ? text : "";
}

static bool parse_id(const char *text, uint64_t *ret_id)
{
	if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
		return false;
	*ret_id = strtoull(text, NULL, 16);
	return true;
}

static bool parse_object(const json_t *object, struct api_key *key)
{
	const char *name = get_text(object, "name"), *tenant = get_text(object, "tenant");
	const char *salt = get_text(object, "tenant_salt"), *class = get_text(object, "class");
	uint8_t unused[32];
	uint64_t requests, tokens;
	const json_t *priority = json_object_get(object, "priority");
	if (!parse_id(get_text(object, "id"), &key->id) || !api_key_name_ok(name) ||
	    !api_key_name_ok(tenant) || !hex_get(salt, unused, 32) ||
	    !hex_get(get_text(object, "salt"), key->salt, sizeof key->salt) ||
	    !hex_get(get_text(object, "hash"), key->hash, sizeof key->hash) ||
	    !get_count(object, "created", INT64_MAX, &key->created_s) ||
	    !get_count(object, "expires", INT64_MAX, &key->expires_s) ||
	    !get_count(object, "revoked", INT64_MAX, &key->revoked_s) ||
	    !get_count(object, "requests_per_minute", API_KEY_RATE_MAX, &requests) ||
	    !get_count(object, "tokens_per_minute", API_KEY_RATE_MAX, &tokens))
		return false;
	if (priority && (!json_is_integer(priority) || json_integer_value(priority) < INT32_MIN ||
			 json_integer_value(priority) > INT32_MAX))
		return false;
	/* A class of a later version must not become one of ours with more rights. */
	if (strcmp(class, "client") != 0 && strcmp(class, "admin") != 0)
		return false;
	key->class = !strcmp(class, "admin") ? API_KEY_ADMIN : API_KEY_CLIENT;
	key->priority = (int32_t)json_integer_value(priority);
	key->requests_per_minute = (uint32_t)requests;
	key->tokens_per_minute = (uint32_t)tokens;
	snprintf(key->name, sizeof key->name, "%s", name);
	snprintf(key->tenant, sizeof key->tenant, "%s", tenant);
	snprintf(key->tenant_salt, sizeof key->tenant_salt, "%s", salt);
	return true;
}

int api_key_parse(const char *value, struct api_key *ret_key)
{
	struct api_key key = { 0 };
	json_t *object = json_loads(value, JSON_REJECT_DUPLICATES, NULL);
	bool ok = json_is_object(object) && parse_object(object, &key);
	json_decref(object);
	if (ok)
		*ret_key = key;
	return ok ? 0 : -EBADMSG;
}

void api_key_format(const struct api_key *key, struct buf *out)
{
	char salt[2 * sizeof key->salt + 1], hash[2 * sizeof key->hash + 1];
	hex_put(key->salt, sizeof key->salt, salt);
	hex_put(key->hash, sizeof key->hash, hash);
	buf_printf(out, "{\"id\": \"%016" PRIx64 "\", \"name\": \"%s\", \"tenant\": \"%s\", \"class\": \"%s\"",
		   key->id, key->name, key->tenant,
		   key->class == API_KEY_ADMIN ? "admin" : "client");
	buf_printf(out, ", \"created\": %" PRIu64, key->created_s);
	if (key->expires_s)
		buf_printf(out, ", \"expires\": %" PRIu64, key->expires_s);
	if (key->revoked_s)
		buf_printf(out, ", \"revoked\": %" PRIu64, key->revoked_s);
	if (key->priority)
		buf_printf(out, ", \"priority\": %d", key->priority);
	if (key->requests_per_minute)
		buf_printf(out, ", \"requests_per_minute\": %u", key->requests_per_minute);
	if (key->tokens_per_minute)
		buf_printf(out, ", \"tokens_per_minute\": %u", key->tokens_per_minute);
	buf_printf(out, ", \"salt\": \"%s\", \"hash\": \"%s\", \"tenant_salt\": \"%s\"}", salt, hash,
		   key->tenant_salt);
}

/* ---- secrets ---- */

static void hash_text(const struct api_key *key, const char *text, uint8_t hash[32])
{
	const struct hash_piece pieces[] = { { key->salt, sizeof key->salt },
					     { text, strlen(text) } };
	hash_sha256(pieces, ARRAY_COUNT(pieces), hash);
}

bool api_key_text_id(const char *text, uint64_t *ret_id)
{
	char id[17];
	if (strlen(text) != API_KEY_TEXT_BYTES || strncmp(text, prefix, sizeof prefix - 1) != 0)
		return false;
	text += sizeof prefix - 1;
	snprintf(id, sizeof id, "%s", text);
	return text[16] == '-' && parse_id(id, ret_id);
}

bool api_key_verify(const struct api_key *key, const char *text)
{
	uint8_t hash[32];
	hash_text(key, text, hash);
	return !CRYPTO_memcmp(hash, key->hash, sizeof hash);
}

/* The salt that the tenant has, or a new one. */
static void find_tenant_salt(const struct store_table *table, struct api_key *key)
{
	uint8_t salt[32];
	for (uint32_t i = 0; i < table->count; i++) {
		struct api_key other;
		if (!api_key_parse(table->records[i].value, &other) &&
		    !strcmp(other.tenant, key->tenant)) {
			memcpy(key->tenant_salt, other.tenant_salt, sizeof key->tenant_salt);
			return;
		}
	}
	draw(salt, sizeof salt);
	hex_put(salt, sizeof salt, key->tenant_salt);
}

int api_key_issue(struct store_table *table, struct api_key *key, char *ret_secret)
{
	uint8_t random[32];
	char id[17], secret[API_KEY_TEXT_BYTES + 1];
	struct buf value;
	do {
		key->id = rand_system();
		snprintf(id, sizeof id, "%016" PRIx64, key->id);
	} while (store_table_find(table, id));
	draw(random, sizeof random);
	draw(key->salt, sizeof key->salt);
	find_tenant_salt(table, key);
	snprintf(secret, sizeof secret, "%s%s-", prefix, id);
	hex_put(random, sizeof random, secret + strlen(secret));
	hash_text(key, secret, key->hash);
	OPENSSL_cleanse(random, sizeof random);
	buf_init(&value, 0);
	api_key_format(key, &value);
	int result = value.failed ? -ENOMEM : store_table_put(table, value.data);
	buf_fini(&value);
	if (!result)
		memcpy(ret_secret, secret, sizeof secret);
	OPENSSL_cleanse(secret, sizeof secret);
	return result;
}

int api_key_revoke(struct store_table *table, const char *id, uint64_t now_s)
{
	const struct store_record *record = store_table_find(table, id);
	struct api_key key;
	if (!record)
		return -ENOENT;
	if (api_key_parse(record->value, &key))
		return -EBADMSG;
	if (key.revoked_s)
		return -EALREADY;
	json_t *object = json_loads(record->value, 0, NULL);
	char *value = NULL;
	if (object && !json_object_set_new(object, "revoked", json_integer((json_int_t)now_s)))
		value = json_dumps(object, JSON_PRESERVE_ORDER);
	int result = value ? store_table_put(table, value) : -ENOMEM;
	free(value);
	json_decref(object);
	return result;
}
