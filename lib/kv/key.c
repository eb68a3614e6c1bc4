#include "kv/key.h"

#include "base/check.h"
#include "base/hash.h"

static void key_cut(const uint8_t digest[32], struct kv_key *ret_key)
{
	memcpy(ret_key->bytes, digest, sizeof ret_key->bytes);
}

void kv_key_root(const uint8_t kv_format[32], const char *tenant_salt, const char *cache_salt,
		 struct kv_key *ret_root)
{
	uint8_t digest[32], lengths[2][8];
	const char *salts[2] = { tenant_salt, cache_salt };

	for (int i = 0; i < 2; i++) {
		uint64_t bytes = strlen(salts[i]);
		for (int b = 0; b < 8; b++)
			lengths[i][b] = (uint8_t)(bytes >> (8 * b));
	}
	hash_sha256((struct hash_piece[]){ { kv_format, 32 },
					   { lengths[0], sizeof lengths[0] },
					   { tenant_salt, strlen(tenant_salt) },
					   { lengths[1], sizeof lengths[1] },
					   { cache_salt, strlen(cache_salt) } },
		    5, digest);
	key_cut(digest, ret_root);
}

void kv_key_next(const struct kv_key *parent, const uint32_t tokens[], uint32_t block_tokens,
		 struct kv_key *ret_key)
{
	uint8_t digest[32];

	static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
		      "token ids are hashed as they lie");
	hash_sha256((struct hash_piece[]){ { parent->bytes, sizeof parent->bytes },
					   { tokens, block_tokens * sizeof *tokens } },
		    2, digest);
	key_cut(digest, ret_key);
}
