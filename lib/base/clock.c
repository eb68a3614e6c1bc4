#include "base/clock.h"

#include <time.h>

static uint64_t clock_read(clockid_t id)
{
	struct timespec now;
	clock_gettime(id, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t clock_now_ns(void)
{
	return clock_read(CLOCK_BOOTTIME);
}

uint64_t clock_wall_us(void)
{
	return clock_read(CLOCK_REALTIME) / NS_PER_US;
}

uint64_t clock_thread_cpu_ns(void)
{
	return clock_read(CLOCK_THREAD_CPUTIME_ID);
}
