/* baton keys: API keys in a file or in Redis, where conductors find them within two seconds. */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/settings.h"
#include "net/api_key.h"
#include "net/store.h"

#define REDIS_TIMEOUT_NS (3 * NS_PER_S)

struct keys_config {
	const char *what, *file, *redis, *tenant;
	uint64_t expires_ns, requests_per_minute, tokens_per_minute, class;
	double priority;
	bool json;
};

static const char *const classes[] = { "client", "admin", NULL };

#define AT(field) .offset = offsetof(struct keys_config, field)
#define STORE_ROWS                                                                               \
	{ "file", SETTING_TEXT, "", "", .help = "The conductors' --api-keys-file.", AT(file) },    \
	{ "redis", SETTING_TEXT, "", "", .help = "The conductors' --redis: HOST:PORT[/PREFIX].", AT(redis) }

static const struct setting add_rows[] = {
	STORE_ROWS,
	{ "name", SETTING_TEXT, "", "", .help = "What the key is called; names need not differ.", AT(what) },
	{ "tenant", SETTING_TEXT, "", "default",
	  .help = "Whose key it is. Tenants do not see each other's cached prompts.", AT(tenant) },
	{ "expires", SETTING_DURATION, "h", "0", 0, 876000, .help = "From now on; 0: never.", AT(expires_ns) },
	{ "class", SETTING_CHOICE, "", "client", .choices = classes,
	  .help = "admin also opens an admin listener beyond loopback.", AT(class) },
	{ "priority", SETTING_REAL, "", "0", -2147483648.0, 2147483647, .help = "Of its requests that name none.",
	  AT(priority) },
	{ "requests-per-minute", SETTING_COUNT, "requests", "0", 0, API_KEY_RATE_MAX, .help = "0: no bound.",
	  AT(requests_per_minute) },
	{ "tokens-per-minute", SETTING_COUNT, "tokens", "0", 0, API_KEY_RATE_MAX,
	  .help = "Of prompts and answers together; 0: no bound.", AT(tokens_per_minute) },
};
static const struct setting ls_rows[] = {
	STORE_ROWS,
	{ "json", SETTING_BOOL, "", "false", .help = "Prints the records as they are stored, one a line.", AT(json) },
};
static const struct setting revoke_rows[] = {
	STORE_ROWS,
	{ "id", SETTING_TEXT, "", "", .help = "The key's id, as in `baton keys ls`.", AT(what) },
};

static const struct settings add_settings = { "keys", "makes an API key and prints its secret, which is kept nowhere.",
					      "name", add_rows, ARRAY_COUNT(add_rows), "baton keys add" };
static const struct settings ls_settings = { "keys", "lists the API keys.", NULL, ls_rows, ARRAY_COUNT(ls_rows),
					     "baton keys ls" };
static const struct settings revoke_settings = { "keys", "ends an API key within two seconds.", "id", revoke_rows,
						 ARRAY_COUNT(revoke_rows), "baton keys revoke" };

static const char *place(const struct keys_config *config)
{
	return *config->file ? config->file : config->redis;
}

static int open_store(const struct keys_config *config, const char *program, struct store **ret_store)
{
	if (!*config->file == !*config->redis) {
		fprintf(stderr, "%s: either --file or --redis is needed\n", program);
		return -EINVAL;
	}
	int result = *config->file ? store_file_open(config->file, ret_store) :
				     store_redis_open(config->redis, REDIS_TIMEOUT_NS, ret_store);
	if (result == -EINVAL)
		fprintf(stderr, "%s: --redis: '%s' must read HOST:PORT or HOST:PORT/PREFIX\n", program, config->redis);
	else if (result)
		fprintf(stderr, "%s: %s: %s\n", program, place(config), err_text(result));
	return result;
}

/* A failure of the store, in words; -ENOENT and its like are the caller's to explain. */
static void explain(const struct keys_config *config, const char *program, int error)
{
	if (error == -EBADMSG)
		fprintf(stderr, "%s: %s: not every line is a record; it is left as it is\n", program, place(config));
	else
		fprintf(stderr, "%s: %s: %s\n", program, place(config), err_text(error));
}

/* ---- add ---- */

struct addition {
	struct api_key key;
	char secret[API_KEY_TEXT_BYTES + 1];
};

static int change_add(struct store_table *table, void *context)
{
	struct addition *addition = context;
	return api_key_issue(table, &addition->key, addition->secret);
}

static int add(const struct keys_config *config, struct store *store)
{
	static const char *program = "baton keys add";
	struct addition addition = { .key = {
		.created_s = clock_wall_us() / 1000000,
		.class = config->class ? API_KEY_ADMIN : API_KEY_CLIENT,
		.priority = (int32_t)config->priority,
		.requests_per_minute = (uint32_t)config->requests_per_minute,
		.tokens_per_minute = (uint32_t)config->tokens_per_minute,
	} };
	if (!api_key_name_ok(config->what) || !api_key_name_ok(config->tenant)) {
		fprintf(stderr, "%s: --%s must have 1 to %d letters, digits or characters of - _ . @\n", program,
			api_key_name_ok(config->what) ? "tenant" : "name", API_KEY_NAME_MAX);
		return 2;
	}
	if (config->expires_ns)
		addition.key.expires_s = addition.key.created_s + DIV_UP(config->expires_ns, NS_PER_S);
	snprintf(addition.key.name, sizeof addition.key.name, "%s", config->what);
	snprintf(addition.key.tenant, sizeof addition.key.tenant, "%s", config->tenant);
	int error = store_update(store, change_add, &addition);
	if (error) {
		explain(config, program, error);
		return 1;
	}
	printf("%s\n", addition.secret);
	fprintf(stderr, "key %016" PRIx64 " of tenant %s; its secret is not kept and will not be shown again\n",
		addition.key.id, addition.key.tenant);
	return 0;
}

/* ---- ls ---- */

static void put_time(uint64_t time_s, char *out, size_t capacity)
{
	time_t at = (time_t)time_s;
	struct tm parts;
	if (!time_s || !gmtime_r(&at, &parts) || !strftime(out, capacity, "%Y-%m-%dT%H:%MZ", &parts))
		snprintf(out, capacity, "-");
}

static void print_key(const struct api_key *key, uint64_t now_s)
{
	char created[32], expires[32];
	put_time(key->created_s, created, sizeof created);
	put_time(key->expires_s, expires, sizeof expires);
	const char *state = key->revoked_s ? "revoked" :
			    key->expires_s && key->expires_s <= now_s ? "expired" : "valid";
	printf("%016" PRIx64 "  %-16s %-16s %-7s %-7s %-17s %-17s %10u %10u\n", key->id, key->name, key->tenant,
	       key->class == API_KEY_ADMIN ? "admin" : "client", state, created, expires,
	       key->requests_per_minute, key->tokens_per_minute);
}

static int list(const struct keys_config *config, struct store *store)
{
	static const char *program = "baton keys ls";
	struct store_table table = { 0 };
	int status = 0;
	int error = store_read(store, &table);
	if (error && error != -ENOENT) {
		explain(config, program, error);
		return 1;
	}
	if (!config->json)
		printf("%-16s  %-16s %-16s %-7s %-7s %-17s %-17s %10s %10s\n", "ID", "NAME", "TENANT", "CLASS",
		       "STATE", "CREATED", "EXPIRES", "REQ/MIN", "TOK/MIN");
	for (uint32_t i = 0; i < table.count; i++) {
		struct api_key key;
		if (config->json) {
			printf("%s\n", table.records[i].value);
		} else if (api_key_parse(table.records[i].value, &key)) {
			fprintf(stderr, "%s: record %s is no key of this version\n", program, table.records[i].id);
			status = 1;
		} else {
			print_key(&key, clock_wall_us() / 1000000);
		}
	}
	store_table_fini(&table);
	return status;
}

/* ---- revoke ---- */

static int change_revoke(struct store_table *table, void *context)
{
	return api_key_revoke(table, context, clock_wall_us() / 1000000);
}

static int end(const struct keys_config *config, struct store *store)
{
	static const char *program = "baton keys revoke";
	int error = store_update(store, change_revoke, (void *)config->what);
	if (!error)
		fprintf(stderr, "key %s is revoked\n", config->what);
	else if (error == -EALREADY)
		fprintf(stderr, "%s: key %s was revoked before\n", program, config->what);
	else if (error == -ENOENT)
		fprintf(stderr, "%s: there is no key '%s'; baton keys ls lists them\n", program, config->what);
	else
		explain(config, program, error);
	return error && error != -EALREADY;
}

static const struct {
	const char *name;
	const struct settings *settings;
	int (*run)(const struct keys_config *config, struct store *store);
} actions[] = {
	{ "add", &add_settings, add },
	{ "ls", &ls_settings, list },
	{ "revoke", &revoke_settings, end },
};

int cli_keys(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";
	struct keys_config config = { 0 };
	struct store *store = NULL;
	size_t i = 0;
	while (i < ARRAY_COUNT(actions) && strcmp(actions[i].name, name) != 0)
		i++;
	if (i == ARRAY_COUNT(actions)) {
		fprintf(stderr, "baton keys: add, ls or revoke must follow; baton keys add --help lists its options\n");
		return 2;
	}
	int status = settings_load(actions[i].settings, argc - 1, argv + 1, &config);
	if (status)
		return status < 0 ? 2 : 0;
	if (actions[i].settings->positional && !*config.what) {
		fprintf(stderr, "%s: --%s is needed\n", actions[i].settings->program, actions[i].settings->positional);
		status = 2;
	} else if (open_store(&config, actions[i].settings->program, &store)) {
		status = 2;
	} else {
		status = actions[i].run(&config, store);
	}
	store_close(store);
	settings_free(actions[i].settings, &config);
	return status;
}
