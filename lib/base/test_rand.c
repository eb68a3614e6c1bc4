#include "base/test_util.h"

#include "base/rand.h"

/* Known answers published with Random123, philox4x32 with 10 rounds. */
static void test_philox(void **state)
{
	static const uint32_t vectors[][10] = {
		{ 0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 },
		{ 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
		  0x41c83b0e, 0xa20bc7c6, 0x6d5451fd },
		{ 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
		  0x94fdcceb, 0x5001e420, 0x24126ea1 },
	};
	uint32_t words[4];

	for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
		philox4x32(vectors[i], vectors[i] + 4, words);
		assert_memory_equal(words, vectors[i] + 6, sizeof words);
	}
}

/* The published sequence of splitmix64 for seed 1234567. */
static void test_splitmix(void **state)
{
	static const uint64_t expected[] = {
		UINT64_C(6457827717110365317),	UINT64_C(3203168211198807973),
		UINT64_C(9817491932198370423),	UINT64_C(4593380528125082431),
		UINT64_C(16408922859458223821),
	};
	uint64_t seed = 1234567;

	for (size_t i = 0; i < 5; i++)
		assert_true(rand_next(&seed) == expected[i]);
}

static void test_sample(void **state)
{
	double sum = 0;

	for (uint64_t position = 0; position < 10000; position++) {
		double draw = rand_sample(7, 1, position);
		assert_true(draw >= 0 && draw < 1);
		assert_true(draw == rand_sample(7, 1, position));
		sum += draw;
	}
	assert_true(sum > 4800 && sum < 5200);
	/* Each part of the key matters, the high half of position and seed included. */
	double base = rand_sample(7, 1, 3);
	assert_true(base != rand_sample(8, 1, 3));
	assert_true(base != rand_sample(7, 2, 3));
	assert_true(base != rand_sample(7, 1, 4));
	assert_true(base != rand_sample(7 | UINT64_C(1) << 40, 1, 3));
	assert_true(base != rand_sample(7, 1, 3 | UINT64_C(1) << 40));
	assert_true(rand_system() != rand_system());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_philox),
		cmocka_unit_test(test_splitmix),
		cmocka_unit_test(test_sample),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
