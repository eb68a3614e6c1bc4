#include "conductor/quota.h"

#include <sys/param.h>

/* Of @amount units, rounded up: rounding down would give more than the rate. */
static uint64_t span_ns(uint64_t amount, uint32_t per_minute)
{
	unsigned __int128 ns = (unsigned __int128)amount * QUOTA_BUCKET_NS + per_minute - 1;
	ns /= per_minute;
	/* Ten years are as good as never, and leave room to add. */
	return (uint64_t)MIN(ns, (unsigned __int128)QUOTA_BUCKET_NS * 60 * 24 * 3650);
}

uint64_t quota_wait_ns(uint64_t full_ns, uint32_t per_minute, uint64_t now_ns)
{
	if (!per_minute)
		return 0;
	uint64_t after_ns = MAX(full_ns, now_ns) + span_ns(1, per_minute);
	uint64_t bound_ns = now_ns + QUOTA_BUCKET_NS;
	return after_ns > bound_ns ? after_ns - bound_ns : 0;
}

uint64_t quota_take(uint64_t full_ns, uint32_t per_minute, uint64_t amount, uint64_t now_ns)
{
	if (!per_minute)
		return full_ns;
	return MAX(full_ns, now_ns) + span_ns(amount, per_minute);
}
