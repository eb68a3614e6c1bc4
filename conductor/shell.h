/*
 * The conductor's core thread: node connections, the pure core (core/), the bridge to the fronts.
 */
#ifndef BATON_CONDUCTOR_SHELL_H
#define BATON_CONDUCTOR_SHELL_H

#include <stdint.h>
#include <uv.h>

#include "conductor/bridge.h"
#include "model/model.h"
#include "net/wire.h"

struct shell;

struct shell_model {
	const char *name; /* as served */
	const struct model *model;
	uint32_t block_tokens;
	uint32_t max_model_len;
};

struct shell_config {
	const char *node; /* this conductor's name */
	const char *control_host;
	uint16_t control_port; /* 0: any */
	struct wire_key cluster_key;
	const struct shell_model *models;
	uint32_t model_count;
	const char *policy; /* "round-robin", "least-loaded" */
	uint64_t policy_seed;
	uint32_t requests_max;
	uint64_t heartbeat_ns, lease_ns, resume_wait_ns;
	uint32_t predicted_tokens; /* output that Reserve asks room for: min(max_tokens, this) */
};

/* Runs on @loop (the core thread's). @bridge: fronts' rings are set up; wake_core is inited here. */
int shell_open(uv_loop_t *loop, const struct shell_config *config, struct bridge *bridge,
	       struct shell **ret_shell, uint16_t *ret_control_port);
/* Stops: ends what is open with an error, waits for nothing; @on_closed once handles are closed.
 * Return: 0, or -EBUSY when something leaked (logged by name). */
int shell_close(struct shell *shell, void (*on_closed)(void *), void *context);

#endif
