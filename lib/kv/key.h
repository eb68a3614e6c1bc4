/*
 * Block keys: the first 16 bytes of SHA-256(16-byte parent key || little-endian u32 token ids).
 * The first parent is SHA-256(kv_format || tenant salt || cache_salt), cut to 16 bytes, so a key
 * names its whole prefix, model, layout and tenant.
 */
#ifndef BATON_KV_KEY_H
#define BATON_KV_KEY_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct kv_key {
	uint8_t bytes[16];
};

static inline bool kv_key_equal(const struct kv_key *a, const struct kv_key *b)
{
	return !memcmp(a, b, sizeof *a);
}

static inline uint64_t kv_key_hash(const struct kv_key *key)
{
	uint64_t word;
	memcpy(&word, key->bytes, sizeof word);
	return word;
}

/* @tenant_salt and @cache_salt are texts; "" when none. Each is hashed with its length, so that
 * ("ab", "c") and ("a", "bc") differ. */
void kv_key_root(const uint8_t kv_format[32], const char *tenant_salt, const char *cache_salt,
		 struct kv_key *ret_root);
void kv_key_next(const struct kv_key *parent, const uint32_t tokens[], uint32_t block_tokens,
		 struct kv_key *ret_key);

#endif
