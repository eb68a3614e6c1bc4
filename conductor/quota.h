/*
 * Token buckets in one number each, so that several threads share one by compare-and-swap. Pure.
 *
 * A bucket holds one minute's worth and fills evenly. Its state is the instant at which it will be
 * full again if nothing more is taken; an instant in the past is a full bucket, one more than a
 * minute ahead an overdrawn one. Rates are per minute, 1 to QUOTA_RATE_MAX; 0 is no bound.
 */
#ifndef BATON_CONDUCTOR_QUOTA_H
#define BATON_CONDUCTOR_QUOTA_H

#include <stdint.h>

#define QUOTA_RATE_MAX 1000000000u
#define QUOTA_BUCKET_NS UINT64_C(60000000000)

/* How long until the bucket holds one unit; 0: it does. Exact if nobody takes anything meanwhile. */
uint64_t quota_wait_ns(uint64_t full_ns, uint32_t per_minute, uint64_t now_ns);
/* The state after @amount is taken, whether it was there or not. */
uint64_t quota_take(uint64_t full_ns, uint32_t per_minute, uint64_t amount, uint64_t now_ns);

#endif
