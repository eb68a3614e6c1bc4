/* The two hashes of the data plane: 4 KiB leaves under XXH3-64, and SHA-256. */
#ifndef BATON_BASE_HASH_H
#define BATON_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_LEAF_BYTES 4096

/*
 * Checksum of a layer slice: XXH3-64 of each 4 KiB leaf, then XXH3-64 over the leaf sums
 * (little-endian). @bytes is a multiple of HASH_LEAF_BYTES.
 */
uint64_t hash_slice(const void *data, size_t bytes);

/* The same, leaf by leaf, for bytes that arrive in pieces. */
static inline size_t hash_leaf_count(size_t bytes)
{
	return bytes / HASH_LEAF_BYTES;
}
uint64_t hash_leaf(const void *leaf);
uint64_t hash_leaves(const uint64_t leaf_sums[], size_t leaf_count);

/* SHA-256 of several pieces in order; never allocates. */
struct hash_piece {
	const void *data;
	size_t bytes;
};
void hash_sha256(const struct hash_piece pieces[], size_t piece_count, uint8_t ret_digest[32]);
void hash_hmac_sha256(const void *key, size_t key_bytes, const struct hash_piece pieces[],
		      size_t piece_count, uint8_t ret_mac[32]);

#endif
