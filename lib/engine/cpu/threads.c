#include "engine/cpu/threads.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"

#define SPIN_NS 20000
#define CHECK_EVERY 32 /* pauses between looks at the clock */

struct pool_thread {
	pthread_t handle;
	struct pool *pool;
	uint32_t index;
	_Alignas(64) atomic_int cpu; /* where it took up the current job; -1 when it waits */
};

struct pool {
	uint32_t count;
	pool_fn fn;
	void *context;
	bool stop;
	/* Raised for each job. Workers sleep on it; `sleepers` counts those that may. */
	_Alignas(64) atomic_uint epoch;
	_Alignas(64) atomic_uint sleepers;
	/* Workers still in the job. Thread 0 sleeps on it after setting `caller_sleeps`. */
	_Alignas(64) atomic_uint pending;
	atomic_uint caller_sleeps;
	struct pool_thread threads[]; /* [count]; [0] is the caller */
};

static void futex_wait(atomic_uint *word, uint32_t value)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word, int count)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool shares_cpu(struct pool *pool, uint32_t self)
{
	int cpu = sched_getcpu();
	if (self)
		return atomic_load_explicit(&pool->threads[0].cpu, memory_order_relaxed) == cpu;
	for (uint32_t i = 1; i < pool->count; i++)
		if (atomic_load_explicit(&pool->threads[i].cpu, memory_order_relaxed) == cpu)
			return true;
	return false;
}

/* Spins until *word differs from @value (or equals @target): true when that came in time. */
static bool spin(struct pool *pool, uint32_t self, atomic_uint *word, uint32_t value, bool until_equal)
{
	uint64_t end = 0;
	for (uint32_t i = 1;; i++) {
		uint32_t seen = atomic_load_explicit(word, memory_order_acquire);
		if ((seen == value) == until_equal)
			return true;
		__builtin_ia32_pause();
		if (i % CHECK_EVERY)
			continue;
		uint64_t now = now_ns();
		if (!end)
			end = now + SPIN_NS;
		if (now >= end || shares_cpu(pool, self))
			return false;
	}
}

static void *worker_main(void *argument)
{
	struct pool_thread *self = argument;
	struct pool *pool = self->pool;
	uint32_t seen = 0;
	for (;;) {
		if (!spin(pool, self->index, &pool->epoch, seen, false)) {
			atomic_fetch_add(&pool->sleepers, 1);
			while (atomic_load(&pool->epoch) == seen)
				futex_wait(&pool->epoch, seen);
			atomic_fetch_sub(&pool->sleepers, 1);
		}
		seen = atomic_load_explicit(&pool->epoch, memory_order_acquire);
		if (pool->stop)
			return NULL;
		atomic_store_explicit(&self->cpu, sched_getcpu(), memory_order_relaxed);
		pool->fn(pool->context, self->index);
		atomic_store_explicit(&self->cpu, -1, memory_order_relaxed);
		if (atomic_fetch_sub(&pool->pending, 1) == 1 && atomic_load(&pool->caller_sleeps))
			futex_wake(&pool->pending, 1);
	}
}

static void pool_start_job(struct pool *pool)
{
	atomic_store(&pool->pending, pool->count - 1);
	atomic_fetch_add(&pool->epoch, 1);
	if (atomic_load(&pool->sleepers))
		futex_wake(&pool->epoch, (int)pool->count);
}

void pool_run(struct pool *pool, pool_fn fn, void *context)
{
	if (pool->count == 1) {
		fn(context, 0);
		return;
	}
	pool->fn = fn;
	pool->context = context;
	atomic_store_explicit(&pool->threads[0].cpu, sched_getcpu(), memory_order_relaxed);
	pool_start_job(pool);
	fn(context, 0);
	if (!spin(pool, 0, &pool->pending, 0, true)) {
		uint32_t left;
		atomic_store(&pool->caller_sleeps, 1);
		while ((left = atomic_load(&pool->pending)) != 0)
			futex_wait(&pool->pending, left);
		atomic_store(&pool->caller_sleeps, 0);
	}
	atomic_store_explicit(&pool->threads[0].cpu, -1, memory_order_relaxed);
}

static void pool_join(struct pool *pool, uint32_t started)
{
	pool->stop = true;
	atomic_fetch_add(&pool->epoch, 1);
	futex_wake(&pool->epoch, (int)pool->count);
	for (uint32_t i = 1; i < started; i++)
		pthread_join(pool->threads[i].handle, NULL);
}

int pool_new(uint32_t thread_count, struct pool **ret_pool)
{
	CHECK(thread_count >= 1 && thread_count <= POOL_THREADS_MAX);
	size_t bytes = sizeof(struct pool) + thread_count * sizeof(struct pool_thread);
	struct pool *pool = aligned_alloc(64, ALIGN_UP(bytes, 64));
	if (!pool)
		return -ENOMEM;
	*pool = (struct pool){ .count = thread_count };
	for (uint32_t i = 0; i < thread_count; i++) {
		pool->threads[i] = (struct pool_thread){ .pool = pool, .index = i };
		atomic_init(&pool->threads[i].cpu, -1);
	}
	for (uint32_t i = 1; i < thread_count; i++) {
		int error = pthread_create(&pool->threads[i].handle, NULL, worker_main, &pool->threads[i]);
		if (error) {
			pool_join(pool, i);
			free(pool);
			return -error;
		}
	}
	*ret_pool = pool;
	return 0;
}

void pool_free(struct pool *pool)
{
	if (!pool)
		return;
	pool_join(pool, pool->count);
	free(pool);
}

uint32_t pool_thread_count(const struct pool *pool)
{
	return pool->count;
}
