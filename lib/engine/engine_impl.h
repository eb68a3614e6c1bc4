/* What every kind of engine embeds first, so that engine.h can find its functions. */
#ifndef BATON_ENGINE_ENGINE_IMPL_H
#define BATON_ENGINE_ENGINE_IMPL_H

#include "engine/engine.h"

struct engine_ops {
	const char *numerics;
	int (*run)(struct engine *engine, const struct engine_batch *batch);
	void (*close)(struct engine *engine);
};

struct engine {
	const struct engine_ops *ops;
	struct engine_config config;
	uint64_t block_bytes;
	char description[96];
};

int engine_cpu_open(const struct engine_config *config, struct engine **ret_engine, char *ret_error,
		    size_t error_bytes);
int engine_sim_open(const struct engine_config *config, struct engine **ret_engine, char *ret_error,
		    size_t error_bytes);

#endif
