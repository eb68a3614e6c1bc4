/*
 * Fork-join over a few threads. The caller of pool_run() is thread 0. A waiting thread spins for
 * at most 20 us, then sleeps on a futex, so two engines may share two cores; one that sees its
 * partner on its own CPU sleeps at once, since spinning there only keeps the partner away.
 */
#ifndef BATON_ENGINE_CPU_THREADS_H
#define BATON_ENGINE_CPU_THREADS_H

#include <stdatomic.h>
#include <stdint.h>

#define POOL_THREADS_MAX 256

struct pool;

typedef void (*pool_fn)(void *context, uint32_t thread);

int pool_new(uint32_t thread_count, struct pool **ret_pool);
void pool_free(struct pool *pool);
uint32_t pool_thread_count(const struct pool *pool);
/* Runs @fn on every thread and returns when all have. */
void pool_run(struct pool *pool, pool_fn fn, void *context);

/* Items handed out in runs of @step; each thread calls until it gets false. */
struct work {
	atomic_uint next;
	uint32_t count, step;
};

static inline void work_init(struct work *work, uint32_t count, uint32_t threads)
{
	/* 8 to 16 runs per thread: free when quiet, and evens out a disturbed thread. */
	atomic_store_explicit(&work->next, 0, memory_order_relaxed);
	work->count = count;
	work->step = count / (threads * 12) ? count / (threads * 12) : 1;
}

static inline int work_take(struct work *work, uint32_t *ret_first, uint32_t *ret_end)
{
	uint32_t first = atomic_fetch_add_explicit(&work->next, work->step, memory_order_relaxed);
	if (first >= work->count)
		return 0;
	*ret_first = first;
	*ret_end = work->count - first < work->step ? work->count : first + work->step;
	return 1;
}

#endif
