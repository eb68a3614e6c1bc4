#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "conductor/quota.h"

#define S UINT64_C(1000000000)

/* One request, as a caller does it. */
static bool request(uint64_t *full, uint32_t rate, uint64_t now)
{
	if (quota_wait_ns(*full, rate, now))
		return false;
	*full = quota_take(*full, rate, 1, now);
	return true;
}

static void test_burst_and_rate(void **state)
{
	uint64_t full = 0, now = 1000 * S;
	for (int i = 0; i < 6; i++)
		assert_true(request(&full, 6, now));
	assert_false(request(&full, 6, now));
	/* Truthful: a nanosecond before it is refused, then it is not. */
	uint64_t wait = quota_wait_ns(full, 6, now);
	assert_true(wait == 10 * S);
	assert_false(request(&full, 6, now + wait - 1));
	assert_true(request(&full, 6, now + wait));
	assert_false(request(&full, 6, now + wait));
	/* Over an hour: the bucket and the rate, never more. */
	uint64_t count = 0;
	full = 0;
	for (uint64_t at = now; at < now + 3600 * S; at += S / 7)
		count += request(&full, 6, at);
	assert_true(count >= 6 + 359 && count <= 6 + 360);
	/* Idle time fills the bucket once, not twice. */
	now += 100000 * S;
	count = 0;
	while (request(&full, 6, now))
		count++;
	assert_int_equal(count, 6);
}

static void test_debt(void **state)
{
	uint64_t full = 0, now = 5 * S;
	/* 1000 a minute, 3000 taken at once: two minutes of debt, and one token's time. */
	full = quota_take(full, 1000, 3000, now);
	assert_true(quota_wait_ns(full, 1000, now) == 120 * S + 60 * S / 1000);
	assert_int_equal(quota_wait_ns(full, 1000, now + 120 * S + 60 * S / 1000), 0);
	/* More debt, more wait, by as much. */
	full = quota_take(full, 1000, 500, now);
	assert_true(quota_wait_ns(full, 1000, now) == 150 * S + 60 * S / 1000);
}

static void test_edges(void **state)
{
	uint64_t now = 77 * S, full = 12345;
	assert_int_equal(quota_wait_ns(UINT64_MAX / 4, 0, now), 0);
	assert_true(quota_take(full, 0, 1u << 30, now) == full);
	assert_true(quota_wait_ns(0, 1, now) == 0);
	full = quota_take(0, 1, 1, now);
	assert_true(quota_wait_ns(full, 1, now) == 60 * S);
	/* Huge amounts saturate instead of wrapping to a free pass. */
	full = quota_take(0, 1, UINT64_MAX, now);
	full = quota_take(full, 1, UINT64_MAX, now);
	assert_true(quota_wait_ns(full, 1, now) > 86400 * S);
	/* The fastest rate still takes something. */
	full = quota_take(0, QUOTA_RATE_MAX, 1, now);
	assert_true(full > now);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_burst_and_rate),
		cmocka_unit_test(test_debt),
		cmocka_unit_test(test_edges),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
