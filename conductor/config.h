/* The conductor's settings. */
#ifndef BATON_CONDUCTOR_CONFIG_H
#define BATON_CONDUCTOR_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

struct config {
	const char *models, *served_model_names, *chat_template;
	const char *host, *admin_host, *control_host, *cluster_key_file, *node, *policy, *api_keys;
	const char *api_keys_file, *redis;
	uint64_t port, admin_port, control_port, policy_seed, max_model_len, block_tokens;
	uint64_t front_threads, max_num_queued, max_body_bytes, max_connections;
	uint64_t predicted_tokens;
	uint64_t heartbeat_ns, lease_ns, resume_wait_ns, shutdown_timeout_ns;
	uint64_t header_timeout_ns, body_timeout_ns, idle_timeout_ns, send_timeout_ns;
	uint64_t log_level, metrics_tenants;
	bool allow_open;
};

/* As settings_load(): 0, 1 when something was printed, negative after one line of error. */
int config_load(struct config *config, int argc, char **argv);
void config_free(struct config *config);
/* What cannot be right together. Return: 0, or -EINVAL after one line of error. */
int config_check(const struct config *config);

/* Whether the admin listener can be reached from this machine only. */
bool config_admin_is_local(const struct config *config);

/* Parts of a list setting, each NUL-terminated, in memory of their own. */
struct config_list {
	char *text;
	const char **items;
	uint32_t count;
};
int config_list_init(struct config_list *list, const char *joined);
void config_list_fini(struct config_list *list);

#endif
