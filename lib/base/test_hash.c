#include "base/test_util.h"

#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/hash.h"

static const char *hex(const uint8_t digest[32])
{
	static char text[65];
	for (int i = 0; i < 32; i++)
		snprintf(text + 2 * i, 3, "%02x", digest[i]);
	return text;
}

/* FIPS 180-2 appendix B. */
static void test_sha256(void **state)
{
	uint8_t digest[32];

	hash_sha256(&(struct hash_piece){ "abc", 3 }, 1, digest);
	assert_string_equal(hex(digest), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
	hash_sha256(NULL, 0, digest);
	assert_string_equal(hex(digest), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
	const struct hash_piece pieces[] = {
		{ "abcdbcdecdefdefgefghfghighijh", 29 }, { "", 0 }, { "ijkijkljklmklmnlmnomnopnopq", 27 } };
	hash_sha256(pieces, ARRAY_COUNT(pieces), digest);
	assert_string_equal(hex(digest), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

/* RFC 4231, test cases 1, 2 and 6. */
static void test_hmac(void **state)
{
	uint8_t key[131], mac[32];

	memset(key, 0x0b, 20);
	hash_hmac_sha256(key, 20, &(struct hash_piece){ "Hi There", 8 }, 1, mac);
	assert_string_equal(hex(mac), "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
	const struct hash_piece question[] = { { "what do ya want ", 16 }, { "for nothing?", 12 } };
	hash_hmac_sha256("Jefe", 4, question, 2, mac);
	assert_string_equal(hex(mac), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
	memset(key, 0xaa, sizeof key);
	hash_hmac_sha256(key, sizeof key,
			 &(struct hash_piece){ "Test Using Larger Than Block-Size Key - Hash Key First", 54 }, 1,
			 mac);
	assert_string_equal(hex(mac), "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

/* Values from python-xxhash 3: xxh3_64 over the little-endian xxh3_64 of each 4 KiB. */
static void test_slice(void **state)
{
	static uint8_t data[3 * HASH_LEAF_BYTES];
	uint64_t sums[3];

	assert_true(hash_slice(data, HASH_LEAF_BYTES) == UINT64_C(0xd77fb641abb6930a));
	for (size_t i = 0; i < sizeof data; i++)
		data[i] = (uint8_t)(i * 7 + i / 256);
	assert_true(hash_leaf(data) == UINT64_C(0x5c722d9ceb6f9064));
	assert_true(hash_slice(data, sizeof data) == UINT64_C(0x1915d2953a280cdb));
	for (size_t i = 0; i < 3; i++)
		sums[i] = hash_leaf(data + i * HASH_LEAF_BYTES);
	assert_int_equal(hash_leaf_count(sizeof data), 3);
	assert_true(hash_leaves(sums, 3) == hash_slice(data, sizeof data));
	data[5000] ^= 1;
	assert_true(hash_slice(data, sizeof data) != UINT64_C(0x1915d2953a280cdb));
	assert_dies(hash_slice(data, 100));
}

static void test_err_text(void **state)
{
	assert_string_equal(err_text(BATON_EAUTH), "the peer does not hold the cluster key");
	assert_string_equal(err_text(-2), "No such file or directory");
	assert_non_null(err_text(-4999));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sha256),
		cmocka_unit_test(test_hmac),
		cmocka_unit_test(test_slice),
		cmocka_unit_test(test_err_text),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
