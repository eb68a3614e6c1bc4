#include "node/engine_thread.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"

struct engine_thread {
	/* loop thread */
	uv_async_t wake;
	const struct engine_thread_callbacks *callbacks;
	void *context;
	bool busy, opened;
	uint32_t layers_told;
	uv_thread_t thread;
	/* both: the semaphores hand over all plain fields */
	uv_sem_t work;
	const struct engine_config *config;
	struct engine_batch *batch; /* NULL: stop */
	struct engine *engine;
	char error[256];
	int status;
	_Atomic uint32_t layers_done;
	_Atomic uint32_t finished; /* open and batches: one each */
	uint32_t finished_told;
};

static void thread_on_layer(void *context, uint32_t layer)
{
	struct engine_thread *thread = context;
	atomic_store_explicit(&thread->layers_done, layer + 1, memory_order_release);
	uv_async_send(&thread->wake);
}

static void thread_main(void *context)
{
	struct engine_thread *thread = context;
	thread->status = engine_open(thread->config, &thread->engine, thread->error, sizeof thread->error);
	for (;;) {
		atomic_fetch_add_explicit(&thread->finished, 1, memory_order_release);
		uv_async_send(&thread->wake);
		uv_sem_wait(&thread->work);
		if (!thread->batch)
			break;
		thread->status = engine_run(thread->engine, thread->batch);
	}
	engine_close(thread->engine);
}

/* Wake-ups coalesce: tell every layer that is final by now, then the end if it has come. */
static void thread_on_wake(uv_async_t *async)
{
	struct engine_thread *thread = async->data;
	/* Read `finished` first: a finished batch has all its layers counted. */
	uint32_t finished = atomic_load_explicit(&thread->finished, memory_order_acquire);
	uint32_t layers = atomic_load_explicit(&thread->layers_done, memory_order_acquire);

	while (thread->busy && thread->layers_told < layers)
		thread->callbacks->on_layer(thread->layers_told++, thread->context);
	if (finished == thread->finished_told)
		return;
	thread->finished_told = finished;
	if (!thread->opened) {
		thread->opened = true;
		thread->callbacks->on_open(thread->status, thread->error, thread->context);
	} else {
		thread->busy = false;
		thread->callbacks->on_done(thread->status, thread->context);
	}
}

int engine_thread_start(uv_loop_t *loop, const struct engine_config *config,
			const struct engine_thread_callbacks *callbacks, void *context,
			struct engine_thread **ret_thread)
{
	struct engine_thread *thread = calloc(1, sizeof *thread);
	if (!thread)
		return -ENOMEM;
	thread->config = config;
	thread->callbacks = callbacks;
	thread->context = context;
	CHECK(uv_sem_init(&thread->work, 0) == 0);
	CHECK(uv_async_init(loop, &thread->wake, thread_on_wake) == 0);
	thread->wake.data = thread;
	int status = uv_thread_create(&thread->thread, thread_main, thread);
	CHECK(status == 0); /* one thread at start; without it there is no node */
	*ret_thread = thread;
	return 0;
}

void engine_thread_run(struct engine_thread *thread, struct engine_batch *batch)
{
	CHECK(thread->opened && !thread->busy && thread->engine);
	batch->on_layer = thread_on_layer;
	batch->context = thread;
	thread->busy = true;
	thread->layers_told = 0;
	atomic_store_explicit(&thread->layers_done, 0, memory_order_relaxed);
	thread->batch = batch;
	uv_sem_post(&thread->work);
}

bool engine_thread_busy(const struct engine_thread *thread)
{
	return thread->busy;
}

const struct engine *engine_thread_engine(const struct engine_thread *thread)
{
	return thread->opened ? thread->engine : NULL;
}

static void thread_on_closed(uv_handle_t *handle)
{
	free(handle->data);
}

void engine_thread_stop(struct engine_thread *thread)
{
	if (!thread)
		return;
	/* A second post while a batch runs is taken after it: wait for that end first. */
	uint32_t target = thread->finished_told + (thread->busy || !thread->opened ? 1 : 0);
	while (atomic_load_explicit(&thread->finished, memory_order_acquire) < target)
		uv_sleep(1);
	thread->batch = NULL;
	uv_sem_post(&thread->work);
	uv_thread_join(&thread->thread);
	uv_sem_destroy(&thread->work);
	uv_close((uv_handle_t *)&thread->wake, thread_on_closed);
}
