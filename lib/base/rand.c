#include "base/rand.h"

#include <sys/random.h>

#include "base/check.h"

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t ret_words[4])
{
	uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
	uint32_t k0 = key[0], k1 = key[1];
	for (int round = 0; round < 10; round++) {
		uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
		uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
		c1 = (uint32_t)p1;
		c3 = (uint32_t)p0;
		c0 = n0;
		c2 = n2;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	ret_words[0] = c0;
	ret_words[1] = c1;
	ret_words[2] = c2;
	ret_words[3] = c3;
}

double rand_sample(uint64_t seed, uint32_t choice, uint64_t position)
{
	uint32_t words[4];
	philox4x32((uint32_t[4]){ (uint32_t)position, (uint32_t)(position >> 32), choice, 0 },
		   (uint32_t[2]){ (uint32_t)seed, (uint32_t)(seed >> 32) }, words);
	uint64_t bits = ((uint64_t)words[0] << 32 | words[1]) >> 11;
	return (double)bits * 0x1p-53;
}

uint64_t rand_system(void)
{
	uint64_t value;
	CHECK(getrandom(&value, sizeof value, 0) == sizeof value);
	return value;
}
