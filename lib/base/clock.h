/* Time is uint64_t nanoseconds. Cores never call these: their events carry now_ns. Leases use
 * CLOCK_BOOTTIME, so a machine that slept knows it. */
#ifndef BATON_BASE_CLOCK_H
#define BATON_BASE_CLOCK_H

#include <stdint.h>

#define NS_PER_US UINT64_C(1000)
#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S UINT64_C(1000000000)

uint64_t clock_now_ns(void);      /* CLOCK_BOOTTIME */
uint64_t clock_wall_us(void);     /* CLOCK_REALTIME, for incarnations and `created` only */
uint64_t clock_thread_cpu_ns(void);

#endif
