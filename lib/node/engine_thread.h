/*
 * The engine thread: runs one batch at a time, off the loop. The loop hands it a batch and goes
 * on; layers that became final and the end of the batch come back as callbacks on the loop.
 */
#ifndef BATON_NODE_ENGINE_THREAD_H
#define BATON_NODE_ENGINE_THREAD_H

#include <stdbool.h>
#include <uv.h>

#include "engine/engine.h"

struct engine_thread;

struct engine_thread_callbacks {
	/* The engine is open (status 0) or could not be (negative; @error says why). Once. */
	void (*on_open)(int status, const char *error, void *context);
	/* K/V of all rows of @layer are final; rising, all before on_done. */
	void (*on_layer)(uint32_t layer, void *context);
	void (*on_done)(int status, void *context);
};

/* Opens the engine on its own thread. @config, with what it points to, is kept. */
int engine_thread_start(uv_loop_t *loop, const struct engine_config *config,
			const struct engine_thread_callbacks *callbacks, void *context,
			struct engine_thread **ret_thread);
/* @batch and all it points to are kept until on_done; its on_layer and context are ours. */
void engine_thread_run(struct engine_thread *thread, struct engine_batch *batch);
bool engine_thread_busy(const struct engine_thread *thread);
/* NULL before on_open. */
const struct engine *engine_thread_engine(const struct engine_thread *thread);
/* Waits for the running batch, joins, closes the engine; no callback after it. The memory goes
 * in the async handle's close callback, so the loop must turn once more. */
void engine_thread_stop(struct engine_thread *thread);

#endif
