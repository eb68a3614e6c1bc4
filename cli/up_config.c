#include "cli/up_config.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/settings.h"

const char *const up_engines[] = { "cpu", "sim", NULL };
const char *const up_transports[] = { "auto", "shm", "tcp", NULL };

#define AT(field) .offset = offsetof(struct up_config, field)

static const struct setting rows[] = {
	{ "model", SETTING_TEXT, "", "", .help = "GGUF file or Hugging Face folder that all nodes load.", AT(model) },
	{ "engine", SETTING_CHOICE, "", "cpu", .choices = up_engines,
	  .help = "What computes: cpu, or sim (modelled time, made-up tokens).", AT(engine) },
	{ "prefill", SETTING_COUNT, "nodes", "0", 0, UP_NODES_MAX,
	  .help = "Prefill nodes; without --both there is at least 1.", AT(prefill) },
	{ "decode", SETTING_COUNT, "nodes", "0", 0, UP_NODES_MAX,
	  .help = "Decode nodes; without --both there is at least 1.", AT(decode) },
	{ "both", SETTING_COUNT, "nodes", "0", 0, UP_NODES_MAX, .help = "Nodes that prefill and decode, without transfer.",
	  AT(both) },
	{ "host", SETTING_TEXT, "", "127.0.0.1", .help = "Address of the client API.", AT(host) },
	{ "port", SETTING_COUNT, "", "8000", 0, 65535, .help = "Its port; 0 picks a free one.", AT(port) },
	{ "admin-port", SETTING_COUNT, "", "0", 0, 65535,
	  .help = "Port of the admin listener on loopback; 0: the one after --port, or a free one.", AT(admin_port) },
	{ "transport", SETTING_CHOICE, "", "auto", .choices = up_transports,
	  .help = "How KV travels between nodes; auto: shm on one machine.", AT(transport) },
	{ "threads", SETTING_COUNT, "threads", "0", 0, 256, .help = "Engine threads of each node; 0: one per CPU.",
	  AT(threads) },
	{ "state-dir", SETTING_TEXT, "", "",
	  .help = "Folder for logs, key and sockets; a temporary one that goes with the cluster when empty.",
	  AT(state_dir) },
	{ "set", SETTING_LIST, "", "",
	  .help = "DAEMON.SETTING=VALUE passes --SETTING VALUE on. DAEMON is conductor, node (all nodes), "
		  "prefill-node, decode-node, or one node's name such as prefill-0.",
	  AT(sets) },
	{ "daemon-dir", SETTING_TEXT, "", "", .help = "Folder of the daemons; looked for beside this program when empty.",
	  AT(daemon_dir) },
	{ "start-timeout", SETTING_DURATION, "s", "120", 1, 86400, .help = "How long a daemon may take to get ready.",
	  AT(start_timeout_ns) },
	{ "stop-timeout", SETTING_DURATION, "s", "20", 1, 86400, .help = "How long a daemon may take to stop before it is killed.",
	  AT(stop_timeout_ns) },
	{ "verbose", SETTING_BOOL, "", "false", .help = "The daemons' logs go to standard error instead of files.",
	  AT(verbose) },
};

static const struct settings settings = {
	.daemon = "up",
	.program = "baton up",
	.summary = "starts and supervises a local cluster; Ctrl-C stops it and checks that nothing leaked.",
	.positional = "model",
	.rows = rows,
	.row_count = ARRAY_COUNT(rows),
};

bool up_set_applies(const char *target, size_t target_bytes, const char *daemon, const char *name)
{
	const char *const fits[] = { daemon, name, strcmp(daemon, "conductor") ? "node" : daemon };

	for (size_t i = 0; i < ARRAY_COUNT(fits); i++)
		if (strlen(fits[i]) == target_bytes && !strncmp(fits[i], target, target_bytes))
			return true;
	return false;
}

static bool target_exists(const struct up_config *config, const char *target, size_t bytes)
{
	const struct {
		const char *role, *daemon;
		uint64_t count;
	} kinds[] = {
		{ "prefill", "prefill-node", config->prefill },
		{ "decode", "decode-node", config->decode },
		{ "both", "prefill-node", config->both },
	};
	char name[32];

	/* A kind of daemon may be named even where this cluster has none of it. */
	if (up_set_applies(target, bytes, "conductor", "") || up_set_applies(target, bytes, "prefill-node", "") ||
	    up_set_applies(target, bytes, "decode-node", ""))
		return true;
	for (size_t i = 0; i < ARRAY_COUNT(kinds); i++)
		for (uint64_t j = 0; j < kinds[i].count; j++) {
			snprintf(name, sizeof name, "%s-%d", kinds[i].role, (int)j);
			if (up_set_applies(target, bytes, kinds[i].daemon, name))
				return true;
		}
	return false;
}

static int refuse(const char *format, const char *what, size_t bytes)
{
	fprintf(stderr, "baton up: ");
	fprintf(stderr, format, (int)bytes, what);
	fprintf(stderr, "\n");
	return -EINVAL;
}

static int check_sets(const struct up_config *config)
{
	const char *set = config->sets;

	while (*set) {
		size_t bytes = strcspn(set, "\n"), equals = strcspn(set, "="), dot = strcspn(set, ".");
		if (equals >= bytes || dot + 1 >= equals || !dot)
			return refuse("--set: '%.*s' must read DAEMON.SETTING=VALUE", set, bytes);
		if (!target_exists(config, set, dot))
			return refuse("--set: this cluster has no daemon '%.*s'", set, dot);
		set += bytes + (set[bytes] == '\n');
	}
	return 0;
}

static int check(struct up_config *config)
{
	if (!config->model[0])
		return refuse("%.*s", "--model FILE is needed", 99);
	if (access(config->model, R_OK) < 0)
		return refuse("--model: cannot read %.*s", config->model, strlen(config->model));
	if (!config->both) {
		config->prefill = MAX(config->prefill, UINT64_C(1));
		config->decode = MAX(config->decode, UINT64_C(1));
	}
	if (config->prefill + config->decode + config->both > UP_NODES_MAX)
		return refuse("%.*s", "at most 64 nodes", 99);
	if (!config->admin_port && config->port)
		config->admin_port = config->port + 1 <= 65535 ? config->port + 1 : 0;
	return check_sets(config);
}

int up_config_load(struct up_config *config, int argc, char **argv)
{
	int status = settings_load(&settings, argc, argv, config);
	if (status)
		return status;
	status = check(config);
	if (status)
		settings_free(&settings, config);
	return status;
}

void up_config_free(struct up_config *config)
{
	settings_free(&settings, config);
}
