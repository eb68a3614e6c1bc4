/* Random numbers. Sampling uses Philox4x32-10 keyed by (seed, choice, position), so a token's
 * draw does not depend on batching, node or failover. splitmix64 is for everything else. */
#ifndef BATON_BASE_RAND_H
#define BATON_BASE_RAND_H

#include <stdint.h>

/* Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11. */
void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t ret_words[4]);

/* Uniform in [0, 1), 53 bits. */
double rand_sample(uint64_t seed, uint32_t choice, uint64_t position);

static inline uint64_t rand_next(uint64_t *state)
{
	uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

uint64_t rand_system(void); /* from the kernel; for seeds, nonces, ids */

#endif
