/* Options of `baton up`. */
#ifndef BATON_CLI_UP_CONFIG_H
#define BATON_CLI_UP_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UP_NODES_MAX 64

struct up_config {
	const char *model, *host, *state_dir, *daemon_dir;
	const char *sets; /* DAEMON.SETTING=VALUE, joined by newlines */
	uint64_t engine, transport;
	uint64_t prefill, decode, both; /* nodes of each role */
	uint64_t port, admin_port, threads;
	uint64_t start_timeout_ns, stop_timeout_ns;
	bool verbose;
};

extern const char *const up_engines[], *const up_transports[];

/* As settings_load(), and checks what the rows cannot: the model, counts, --set. */
int up_config_load(struct up_config *config, int argc, char **argv);
void up_config_free(struct up_config *config);

/* Does a --set for @target go to the daemon @daemon ("conductor", "prefill-node", ...) called @name? */
bool up_set_applies(const char *target, size_t target_bytes, const char *daemon, const char *name);

#endif
