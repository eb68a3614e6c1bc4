/*
 * API keys. What a client sends is "sk-baton-ID-SECRET": an id of 64 bits in hexadecimal, which is
 * no secret and finds the record, and 256 bits from the kernel in hexadecimal. Kept is SHA-256 over
 * a salt of the record's own and the whole text: a secret of 256 random bits cannot be guessed,
 * so a slow hash would add nothing but load.
 *
 * A tenant is a name that several keys share. Its salt is drawn with its first key, copied
 * into each further one, and begins every block key of its prompts.
 */
#ifndef BATON_NET_API_KEY_H
#define BATON_NET_API_KEY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "net/store.h"

#define API_KEY_TEXT_BYTES (9 + 16 + 1 + 64) /* without NUL */
#define API_KEY_NAME_MAX 64
#define API_KEY_RATE_MAX 1000000000u

enum api_key_class { API_KEY_CLIENT, API_KEY_ADMIN };

struct api_key {
	uint64_t id;
	char name[API_KEY_NAME_MAX + 1], tenant[API_KEY_NAME_MAX + 1];
	char tenant_salt[65]; /* hexadecimal */
	uint8_t salt[16], hash[32];
	uint64_t created_s, expires_s, revoked_s; /* wall clock; 0: never */
	enum api_key_class class;
	int32_t priority;
	uint32_t requests_per_minute, tokens_per_minute; /* 0: no bound */
};

/* Letters, digits, - _ . @ : 1 to API_KEY_NAME_MAX of them. */
bool api_key_name_ok(const char *name);

/*
 * api_key_issue() - makes id, salt, hash and secret of a key whose other fields are set, and
 * adds its record to @table. The tenant's salt comes from an older key of the tenant, if any.
 * @key:        updated
 * @ret_secret: [API_KEY_TEXT_BYTES + 1] exists nowhere else
 * Return: 0, or what store_table_put() says.
 */
int api_key_issue(struct store_table *table, struct api_key *key, char *ret_secret);
/*
 * Marks a key as revoked; the record stays, and with it the tenant's salt. Fields that this
 * version does not know stay too.
 * Return: 0, -ENOENT, -EALREADY, -EBADMSG (the record is no key), or what store_table_put() says.
 */
int api_key_revoke(struct store_table *table, const char *id, uint64_t now_s);

/* A record's value. Unknown members pass. Return: 0 or -EBADMSG. */
int api_key_parse(const char *value, struct api_key *ret_key);
void api_key_format(const struct api_key *key, struct buf *out);

/* The id within a text of a key's form. Return: false when it has not that form. */
bool api_key_text_id(const char *text, uint64_t *ret_id);
/* Whether @text is the key's secret, in constant time. */
bool api_key_verify(const struct api_key *key, const char *text);

#endif
