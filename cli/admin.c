/* baton stats, trace, drain: questions and commands to the conductor's admin listener. */
#include "cli/cli.h"

#include <errno.h>
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/settings.h"
#include "cli/client.h"
#include "cli/stats.h"

#define ANSWER_BYTES_MAX (64u << 20)

struct admin_config {
	const char *admin, *what, *api_key;
	uint64_t timeout_ns;
	bool json;
};

#define AT(field) .offset = offsetof(struct admin_config, field)
#define ADMIN_ROW                                                                                \
	{ "admin", SETTING_TEXT, "", "http://127.0.0.1:8001", .help = "The conductor's admin listener.", AT(admin) },               \
	{ "api-key", SETTING_TEXT, "", "", .secret = true,                                         \
	  .help = "Key of class admin, which a listener beyond loopback asks for.", AT(api_key) }
#define TIMEOUT_ROW                                                                              \
	{ "timeout", SETTING_DURATION, "s", "10", 1, 86400, .help = "Longest silence of the server.", AT(timeout_ns) }
#define JSON_ROW                                                                                 \
	{ "json", SETTING_BOOL, "", "false", .help = "Prints the server's JSON as it came.", AT(json) }

static const struct setting stats_rows[] = { ADMIN_ROW, TIMEOUT_ROW, JSON_ROW };
static const struct setting trace_rows[] = {
	ADMIN_ROW, TIMEOUT_ROW, JSON_ROW,
	{ "request", SETTING_TEXT, "", "", .help = "The request's id, as in its answer.", AT(what) },
};
static const struct setting drain_rows[] = {
	ADMIN_ROW, TIMEOUT_ROW, JSON_ROW,
	{ "node", SETTING_TEXT, "", "", .help = "The node's name, as in `baton stats`.", AT(what) },
};

static const struct settings stats_settings = { "stats", "shows the cluster as a table.", NULL, stats_rows,
						ARRAY_COUNT(stats_rows), "baton stats" };
static const struct settings trace_settings = { "trace", "shows what happened to a request, when, and why there.",
						"request", trace_rows, ARRAY_COUNT(trace_rows), "baton trace" };
static const struct settings drain_settings = { "drain", "lets a node finish or hand over what it has, and leave.",
						"node", drain_rows, ARRAY_COUNT(drain_rows), "baton drain" };

/* Appends @text percent-encoded. */
static void append_encoded(struct buf *out, const char *text)
{
	for (; *text; text++) {
		unsigned char byte = (unsigned char)*text;
		if ((byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z') ||
		    strchr("-._~", byte))
			buf_append(out, text, 1);
		else
			buf_printf(out, "%%%02X", byte);
	}
}

/* The answer's JSON, or NULL after a line on standard error. */
static json_t *ask(const struct admin_config *config, const char *program, const char *method, const char *path)
{
	const struct client_call call = { .method = method, .path = path, .timeout_ns = config->timeout_ns,
					  .api_key = config->api_key };
	struct client_url url;
	struct buf body;
	int status = 0;

	if (client_url_parse(config->admin, &url)) {
		fprintf(stderr, "%s: --admin: '%s' must read http://HOST:PORT\n", program, config->admin);
		return NULL;
	}
	buf_init(&body, ANSWER_BYTES_MAX);
	int error = client_do(&url, &call, &status, &body);
	json_t *json = error ? NULL : json_loads(body.data ? body.data : "", 0, NULL);
	if (error) {
		fprintf(stderr, "%s: %s: %s\n", program, config->admin, err_text(error));
	} else if (status != 200) {
		const char *message = json_string_value(json_object_get(json_object_get(json, "error"), "message"));
		fprintf(stderr, "%s: status %d: %s\n", program, status, message ? message : "no reason given");
		json_decref(json);
		json = NULL;
	} else if (!json) {
		fprintf(stderr, "%s: %s: the answer is no JSON\n", program, config->admin);
	}
	buf_fini(&body);
	return json;
}

static void print_json(const json_t *json)
{
	json_dumpf(json, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
	putchar('\n');
}

/* Loads settings and asks. @path_format takes the encoded @what. Return: -1, or the exit status. */
static int run(const struct settings *settings, int argc, char **argv, const char *method, const char *path,
	       void (*print)(const json_t *))
{
	struct admin_config config = { 0 };
	struct buf whole;

	int status = settings_load(settings, argc, argv, &config);
	if (status)
		return status < 0 ? 2 : 0;
	if (settings->positional && !*config.what) {
		fprintf(stderr, "%s: --%s is needed\n", settings->program, settings->positional);
		settings_free(settings, &config);
		return 2;
	}
	buf_init(&whole, 0);
	buf_append_text(&whole, path);
	if (settings->positional)
		append_encoded(&whole, config.what);
	json_t *json = ask(&config, settings->program, method, whole.data);
	if (json && config.json)
		print_json(json);
	else if (json)
		print(json);
	status = json ? 0 : 1;
	json_decref(json);
	buf_fini(&whole);
	settings_free(settings, &config);
	return status;
}

int cli_stats(int argc, char **argv)
{
	return run(&stats_settings, argc, argv, "GET", "/stats", stats_print);
}

int cli_trace(int argc, char **argv)
{
	return run(&trace_settings, argc, argv, "GET", "/debug/requests/", trace_print);
}

int cli_drain(int argc, char **argv)
{
	return run(&drain_settings, argc, argv, "POST", "/drain?node=", print_json);
}
