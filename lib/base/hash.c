#include "base/hash.h"

#include <openssl/sha.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* XXH3_state_t on the stack */
#include <xxhash.h>
/* The library's plain entry points are built for SSE2. These choose AVX2 or AVX-512 when they first
 * run, more than twice as fast on bytes in the cache; the sums are the same. */
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif

#include "base/check.h"

/* OpenSSL deprecates the SHA256_* functions in favour of EVP, which allocates on each use; the
 * cores hash block keys and may not allocate. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

uint64_t hash_leaf(const void *leaf)
{
	return XXH3_64bits(leaf, HASH_LEAF_BYTES);
}

uint64_t hash_leaves(const uint64_t leaf_sums[], size_t leaf_count)
{
	return XXH3_64bits(leaf_sums, leaf_count * sizeof *leaf_sums);
}

uint64_t hash_slice(const void *data, size_t bytes)
{
	XXH3_state_t state;
	CHECK(bytes % HASH_LEAF_BYTES == 0);
	XXH3_64bits_reset(&state);
	for (size_t at = 0; at < bytes; at += HASH_LEAF_BYTES) {
		uint64_t sum = hash_leaf((const char *)data + at);
		XXH3_64bits_update(&state, &sum, sizeof sum);
	}
	return XXH3_64bits_digest(&state);
}

void hash_sha256(const struct hash_piece pieces[], size_t piece_count, uint8_t ret_digest[32])
{
	SHA256_CTX context;
	SHA256_Init(&context);
	for (size_t i = 0; i < piece_count; i++)
		SHA256_Update(&context, pieces[i].data, pieces[i].bytes);
	SHA256_Final(ret_digest, &context);
}

/* RFC 2104 over SHA-256. */
void hash_hmac_sha256(const void *key, size_t key_bytes, const struct hash_piece pieces[],
		      size_t piece_count, uint8_t ret_mac[32])
{
	uint8_t padded[64] = { 0 }, inner[64], outer[64], digest[32];
	SHA256_CTX context;

	if (key_bytes > sizeof padded)
		hash_sha256(&(struct hash_piece){ key, key_bytes }, 1, padded);
	else
		memcpy(padded, key, key_bytes);
	for (size_t i = 0; i < sizeof padded; i++) {
		inner[i] = padded[i] ^ 0x36;
		outer[i] = padded[i] ^ 0x5c;
	}
	SHA256_Init(&context);
	SHA256_Update(&context, inner, sizeof inner);
	for (size_t i = 0; i < piece_count; i++)
		SHA256_Update(&context, pieces[i].data, pieces[i].bytes);
	SHA256_Final(digest, &context);
	hash_sha256((struct hash_piece[]){ { outer, sizeof outer }, { digest, sizeof digest } }, 2, ret_mac);
}
