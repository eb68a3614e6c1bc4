#include "conductor/config.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/check.h"
#include "base/settings.h"
#include "conductor/bridge.h"

static const char *const policies[] = { "round-robin", "least-loaded", NULL };
static const char *const levels[] = { "error", "warning", "info", "debug", NULL };

#define AT(field) .offset = offsetof(struct config, field)

static const struct setting rows[] = {
	{ "model", SETTING_LIST, "", "", .help = "GGUF file or Hugging Face folder; only its config, tokenizer and template are read.",
	  AT(models) },
	{ "served-model-name", SETTING_LIST, "", "",
	  .help = "Name that requests use; the file's own name when empty. With one model, further ones are aliases.",
	  AT(served_model_names) },
	{ "chat-template", SETTING_TEXT, "", "",
	  .help = "File with a chat template, or the name chatml; the model's own when empty.",
	  AT(chat_template) },
	{ "host", SETTING_TEXT, "", "127.0.0.1", .help = "Address of the client API.", AT(host) },
	{ "port", SETTING_COUNT, "", "8000", 0, 65535, .help = "Its port; 0 picks a free one.", AT(port) },
	{ "api-key", SETTING_LIST, "", "", .secret = true,
	  .help = "Key of the tenant default, of class admin; may be given several times. Neither this, a file nor redis: no key is asked for.",
	  AT(api_keys) },
	{ "api-keys-file", SETTING_TEXT, "", "",
	  .help = "File of API keys, as `baton keys` writes it; changes take effect within 2 s.",
	  AT(api_keys_file) },
	{ "redis", SETTING_TEXT, "", "",
	  .help = "HOST:PORT[/PREFIX] of a Redis with the API keys, shared by several conductors, instead of the file.",
	  AT(redis) },
	{ "metrics-tenants", SETTING_COUNT, "tenants", "0", 0, 1000,
	  .help = "As many tenants get metrics of their own, further ones share tenant=\"(others)\"; 0: none.",
	  AT(metrics_tenants) },
	{ "admin-host", SETTING_TEXT, "", "127.0.0.1",
	  .help = "Address of the admin listener: stats, traces, drain, roles.", AT(admin_host) },
	{ "admin-port", SETTING_COUNT, "", "8001", 0, 65535, .help = "Its port; 0 picks a free one.",
	  AT(admin_port) },
	{ "control-host", SETTING_TEXT, "", "127.0.0.1", .help = "Address where nodes connect.",
	  AT(control_host) },
	{ "control-port", SETTING_COUNT, "", "7600", 0, 65535, .help = "Its port; 0 picks a free one.",
	  AT(control_port) },
	{ "cluster-key-file", SETTING_TEXT, "", "",
	  .help = "File with the key that every process of the cluster holds.", AT(cluster_key_file) },
	{ "allow-open-network", SETTING_BOOL, "", "false",
	  .help = "Listen beyond loopback even without a cluster key (control) or an API key (admin).",
	  AT(allow_open) },
	{ "node", SETTING_TEXT, "", "conductor", .help = "This conductor's name in the cluster.", AT(node) },
	{ "policy", SETTING_TEXT, "", "least-loaded",
	  .help = "How a request's prefill and decode node are chosen: round-robin or least-loaded.",
	  AT(policy) },
	{ "policy-seed", SETTING_COUNT, "", "0", .help = "Makes a policy's choices repeatable.",
	  AT(policy_seed) },
	{ "max-model-len", SETTING_COUNT, "tokens", "0", 0, 1 << 24,
	  .help = "Longest context, prompt and output together; 0: the model's.", AT(max_model_len) },
	{ "block-size", SETTING_COUNT, "tokens", "64", 16, 256,
	  .help = "Tokens of a KV block, a multiple of 16; one value per model in the cluster.",
	  AT(block_tokens) },
	{ "front-threads", SETTING_COUNT, "threads", "2", 1, BRIDGE_FRONTS_MAX,
	  .help = "Threads that speak HTTP, tokenise and render.", AT(front_threads) },
	{ "max-num-queued-reqs", SETTING_COUNT, "requests", "4096", 1, 65536,
	  .help = "Open requests, running ones included; further ones are answered 429.",
	  AT(max_num_queued) },
	{ "max-body-bytes", SETTING_BYTES, "bytes", "32M", 1024, 1e9,
	  .help = "Largest request body; larger ones are answered 413.", AT(max_body_bytes) },
	{ "max-connections", SETTING_COUNT, "connections", "10000", 1, 1e6,
	  .help = "Client connections of each front thread; further ones are answered 503.",
	  AT(max_connections) },
	{ "predicted-tokens", SETTING_COUNT, "tokens", "64", 1, 1 << 20,
	  .help = "Output that a decode node makes room for in advance: min(max_tokens, this).",
	  AT(predicted_tokens) },
	{ "heartbeat", SETTING_DURATION, "ms", "500ms", 1, 60000, .help = "Between two reports of a node.",
	  AT(heartbeat_ns) },
	/* Nodes look at the clock ten times a second, so a much shorter one would run out by itself. */
	{ "lease", SETTING_DURATION, "ms", "3s", 500, 600000,
	  .help = "A node that is silent for this long is taken out; its requests resume elsewhere.",
	  AT(lease_ns) },
	{ "resume-wait", SETTING_DURATION, "ms", "10s", 0, 3600000,
	  .help = "How long a request waits for a node to run on before it ends with an error.",
	  AT(resume_wait_ns) },
	{ "header-timeout", SETTING_DURATION, "ms", "30s", 1, 3600000,
	  .help = "A request's header must be complete after this.", AT(header_timeout_ns) },
	{ "body-timeout", SETTING_DURATION, "ms", "30s", 1, 3600000,
	  .help = "A request's body may stand still for this long.", AT(body_timeout_ns) },
	{ "keep-alive-timeout", SETTING_DURATION, "ms", "75s", 1, 3600000,
	  .help = "An idle client connection is closed after this.", AT(idle_timeout_ns) },
	{ "send-timeout", SETTING_DURATION, "ms", "60s", 1, 3600000,
	  .help = "A client that takes nothing for this long is let go.", AT(send_timeout_ns) },
	{ "shutdown-timeout", SETTING_DURATION, "ms", "5s", 0, 3600000,
	  .help = "How long SIGTERM waits for requests to finish.", AT(shutdown_timeout_ns) },
	{ "log-level", SETTING_CHOICE, "", "info", .choices = levels,
	  .help = "error, warning, info or debug.", AT(log_level) },
};

static const struct settings settings = {
	.daemon = "conductor",
	.summary = "takes OpenAI-style requests and hands each one to a prefill and a decode node",
	.positional = "model",
	.rows = rows,
	.row_count = ARRAY_COUNT(rows),
};

int config_load(struct config *config, int argc, char **argv)
{
	return settings_load(&settings, argc, argv, config);
}

void config_free(struct config *config)
{
	settings_free(&settings, config);
}

static bool is_loopback(const char *host)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE };
	struct addrinfo *found = NULL;
	bool loopback = true;
	if (getaddrinfo(*host ? host : NULL, "0", &hints, &found) || !found)
		return false;
	for (struct addrinfo *at = found; at; at = at->ai_next) {
		if (at->ai_family == AF_INET) {
			uint32_t ip = ntohl(((struct sockaddr_in *)at->ai_addr)->sin_addr.s_addr);
			loopback = loopback && ip >> 24 == 127;
		} else {
			struct sockaddr_in6 *address = (struct sockaddr_in6 *)at->ai_addr;
			loopback = loopback && IN6_IS_ADDR_LOOPBACK(&address->sin6_addr);
		}
	}
	freeaddrinfo(found);
	return loopback;
}

static int refuse(const char *format, const char *text)
{
	fputs("baton-conductor: ", stderr);
	fprintf(stderr, format, text);
	fputc('\n', stderr);
	return -EINVAL;
}

static bool has_keys(const struct config *config)
{
	return *config->api_keys || *config->api_keys_file || *config->redis;
}

bool config_admin_is_local(const struct config *config)
{
	return is_loopback(config->admin_host);
}

int config_check(const struct config *config)
{
	if (!*config->models)
		return refuse("no model is given: --model FILE%s", "");
	if (config->block_tokens % 16)
		return refuse("--block-size must be a multiple of 16%s", "");
	if (config->lease_ns < 2 * config->heartbeat_ns)
		return refuse("--lease must be at least twice --heartbeat%s", "");
	bool known = false;
	for (size_t i = 0; policies[i]; i++)
		known = known || !strcmp(policies[i], config->policy);
	if (!known)
		return refuse("--policy %s: there are round-robin and least-loaded", config->policy);
	if (!*config->cluster_key_file && !config->allow_open && !is_loopback(config->control_host))
		return refuse("--control-host %s is not loopback: give --cluster-key-file, or say "
			      "--allow-open-network to let anyone in that network join the cluster",
			      config->control_host);
	if (*config->api_keys_file && *config->redis)
		return refuse("--redis %s: --api-keys-file is given too; keys have one home", config->redis);
	if (!has_keys(config) && !config->allow_open && !is_loopback(config->admin_host))
		return refuse("--admin-host %s is not loopback: give --api-key, --api-keys-file or --redis, or say "
			      "--allow-open-network to let anyone in that network command the "
			      "cluster",
			      config->admin_host);
	return 0;
}

int config_list_init(struct config_list *list, const char *joined)
{
	uint32_t capacity = 1;
	*list = (struct config_list){ 0 };
	for (const char *p = joined; *p; p++)
		capacity += *p == '\n';
	list->text = strdup(joined);
	list->items = calloc(capacity, sizeof *list->items);
	if (!list->text || !list->items) {
		config_list_fini(list);
		return -ENOMEM;
	}
	char *save = NULL;
	for (char *item = strtok_r(list->text, "\n", &save); item; item = strtok_r(NULL, "\n", &save))
		list->items[list->count++] = item;
	return 0;
}

void config_list_fini(struct config_list *list)
{
	free(list->text);
	free(list->items);
	*list = (struct config_list){ 0 };
}
