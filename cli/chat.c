/* baton chat: questions to a running cluster over its OpenAI API, answers streamed to the terminal. */
#include "cli/cli.h"

#include <errno.h>
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/settings.h"
#include "cli/client.h"

#define ANSWER_BYTES_MAX (16u << 20)
#define EVENT_BYTES_MAX (1u << 20)
/* Of a request's id, which goes into a path. */
#define ID_CHARACTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

struct chat_config {
	const char *url, *once, *system, *admin, *api_key;
	uint64_t max_tokens, timeout_ns;
	double temperature;
	bool timing;
};

#define AT(field) .offset = offsetof(struct chat_config, field)

static const struct setting rows[] = {
	{ "url", SETTING_TEXT, "", "http://127.0.0.1:8000", .help = "The cluster's client API.", AT(url) },
	{ "api-key", SETTING_TEXT, "", "", .secret = true, .help = "Where the cluster asks for one.", AT(api_key) },
	{ "once", SETTING_TEXT, "", "", .help = "Asks this and ends; without it questions are read line by line.", AT(once) },
	{ "system", SETTING_TEXT, "", "", .help = "The system message; the model's own when empty.", AT(system) },
	{ "max-tokens", SETTING_COUNT, "tokens", "512", 1, 1 << 24, .help = "Longest answer.", AT(max_tokens) },
	{ "temperature", SETTING_REAL, "", "0", 0, 2, .help = "0 always takes the likeliest token.", AT(temperature) },
	{ "timing", SETTING_BOOL, "", "true", .help = "Prints time to first token and between tokens after the answer.",
	  AT(timing) },
	{ "admin", SETTING_TEXT, "", "", .help = "The admin listener; with it the line also says how many KV bytes crossed, by transport.",
	  AT(admin) },
	{ "timeout", SETTING_DURATION, "s", "120", 1, 86400, .help = "Longest silence of the server.", AT(timeout_ns) },
};

static const struct settings settings = {
	.daemon = "chat",
	.program = "baton chat",
	.summary = "asks a running cluster and streams the answer.",
	.positional = "once",
	.rows = rows,
	.row_count = ARRAY_COUNT(rows),
};

struct answer {
	struct buf event; /* the line that is arriving */
	struct buf text;
	uint64_t asked_ns, first_ns, last_ns;
	uint64_t pieces; /* events with text: one token each, or more when frames were merged */
	json_int_t tokens, prompt_tokens, cached_tokens; /* from the usage event */
	char problem[512], id[128];
};

static const char *text_at(const json_t *value, const char *key)
{
	const char *text = json_string_value(json_object_get(value, key));
	return text ? text : "";
}

static void take_usage(struct answer *answer, const json_t *usage)
{
	answer->tokens = json_integer_value(json_object_get(usage, "completion_tokens"));
	answer->prompt_tokens = json_integer_value(json_object_get(usage, "prompt_tokens"));
	answer->cached_tokens = json_integer_value(
		json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
}

static int take_event(struct answer *answer, const char *data)
{
	if (!strcmp(data, "[DONE]"))
		return 0;
	json_t *event = json_loads(data, 0, NULL);
	if (!event)
		return -EPROTO;
	const json_t *error = json_object_get(event, "error");
	const char *content = text_at(
		json_object_get(json_array_get(json_object_get(event, "choices"), 0), "delta"), "content");
	if (!*answer->id)
		snprintf(answer->id, sizeof answer->id, "%s", text_at(event, "id"));
	if (error)
		snprintf(answer->problem, sizeof answer->problem, "%s", text_at(error, "message"));
	if (json_is_object(json_object_get(event, "usage")))
		take_usage(answer, json_object_get(event, "usage"));
	if (*content) {
		answer->last_ns = clock_now_ns();
		if (!answer->pieces++)
			answer->first_ns = answer->last_ns;
		buf_append_text(&answer->text, content);
		fputs(content, stdout);
		fflush(stdout);
	}
	json_decref(event);
	return error ? -EREMOTEIO : answer->text.failed ? -EMSGSIZE : 0;
}

static int on_body(const char *data, size_t bytes, void *context)
{
	struct answer *answer = context;
	char *end;

	buf_append(&answer->event, data, bytes);
	if (answer->event.failed)
		return -EMSGSIZE;
	while ((end = memchr(answer->event.data, '\n', answer->event.bytes))) {
		*end = 0;
		char *line = answer->event.data;
		int error = strncmp(line, "data: ", 6) ? 0 : take_event(answer, line + 6);
		if (error)
			return error;
		buf_consume(&answer->event, (size_t)(end - line) + 1);
	}
	return 0;
}

/* The model to name in requests: the first that the server serves. */
static int find_model(const struct client_url *url, const struct chat_config *config, char *out, size_t capacity)
{
	const struct client_call call = { .method = "GET", .path = "/v1/models", .timeout_ns = config->timeout_ns,
					  .api_key = config->api_key };
	struct buf body;
	int status = 0;

	buf_init(&body, ANSWER_BYTES_MAX);
	int error = client_do(url, &call, &status, &body);
	json_t *list = error ? NULL : json_loads(body.data ? body.data : "", 0, NULL);
	const char *id = text_at(json_array_get(json_object_get(list, "data"), 0), "id");
	if (!error && (status != 200 || !*id || strlen(id) >= capacity))
		error = -EPROTO;
	if (!error)
		strcpy(out, id);
	json_decref(list);
	buf_fini(&body);
	return error;
}

/* What the conductor knows of the request: NULL when it does not say. */
static json_t *find_trace(const struct chat_config *config, const char *id)
{
	char path[256];
	struct client_url url;
	struct buf body;
	json_t *trace = NULL;
	int status = 0;

	if (!*config->admin || client_url_parse(config->admin, &url) || strspn(id, ID_CHARACTERS) != strlen(id))
		return NULL;
	snprintf(path, sizeof path, "/debug/requests/%.200s", id);
	const struct client_call call = { .method = "GET", .path = path, .timeout_ns = config->timeout_ns,
					  .api_key = config->api_key };
	buf_init(&body, ANSWER_BYTES_MAX);
	if (!client_do(&url, &call, &status, &body) && status == 200)
		trace = json_loads(body.data ? body.data : "", 0, NULL);
	buf_fini(&body);
	return trace;
}

static void print_timing(const struct answer *answer, const struct chat_config *config)
{
	json_t *trace = find_trace(config, answer->id);
	const json_t *timings = json_object_get(trace, "timings");
	json_int_t bytes = json_integer_value(json_object_get(timings, "transfer_bytes"));

	fprintf(stderr, "[TTFT %.0f ms", (double)(answer->first_ns - answer->asked_ns) / 1e6);
	if (answer->tokens > 1)
		fprintf(stderr, ", TBT %.1f ms",
			(double)(answer->last_ns - answer->first_ns) / 1e6 / (double)(answer->tokens - 1));
	fprintf(stderr, "; %lld prompt tokens (%lld cached), %lld generated", (long long)answer->prompt_tokens,
		(long long)answer->cached_tokens, (long long)answer->tokens);
	if (bytes)
		fprintf(stderr, "; %lld KV bytes went from %s to %s over %s", (long long)bytes,
			text_at(trace, "prefill_node"), text_at(trace, "decode_node"), text_at(timings, "transport"));
	fprintf(stderr, "]\n");
	json_decref(trace);
}

static void explain(const struct answer *answer, int error, int status, const struct buf *body)
{
	json_t *reply = json_loads(body->data ? body->data : "", 0, NULL);
	const char *message = text_at(json_object_get(reply, "error"), "message");

	if (*answer->problem)
		fprintf(stderr, "baton chat: %s\n", answer->problem);
	else if (error)
		fprintf(stderr, "baton chat: %s\n", err_text(error));
	else
		fprintf(stderr, "baton chat: status %d: %s\n", status, *message ? message : "no reason given");
	json_decref(reply);
}

/* Asks with the whole conversation; the answer joins it. */
static int ask(const struct client_url *url, const struct chat_config *config, const char *model, json_t *messages)
{
	struct answer answer = { .asked_ns = clock_now_ns() };
	struct buf body;
	int status = 0;

	json_t *request = json_pack("{s:s, s:O, s:b, s:I, s:f, s:{s:b}}", "model", model, "messages", messages,
				    "stream", 1, "max_tokens", (json_int_t)config->max_tokens, "temperature",
				    config->temperature, "stream_options", "include_usage", 1);
	char *text = request ? json_dumps(request, JSON_COMPACT) : NULL;
	const struct client_call call = { "POST", "/v1/chat/completions", text, config->timeout_ns, on_body, &answer,
					  config->api_key };
	buf_init(&body, ANSWER_BYTES_MAX);
	buf_init(&answer.event, EVENT_BYTES_MAX);
	buf_init(&answer.text, ANSWER_BYTES_MAX);
	answer.asked_ns = clock_now_ns();
	int error = text ? client_do(url, &call, &status, &body) : -ENOMEM;
	if (answer.pieces)
		putchar('\n');
	fflush(stdout);
	if (error || status != 200)
		explain(&answer, error, status, &body);
	else if (config->timing && answer.pieces)
		print_timing(&answer, config);
	if (!error && status == 200)
		json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "assistant", "content",
							  answer.text.data ? answer.text.data : ""));
	json_decref(request);
	free(text);
	buf_fini(&answer.event);
	buf_fini(&answer.text);
	buf_fini(&body);
	return error ? error : status == 200 ? 0 : -EREMOTEIO;
}

static void add_message(json_t *messages, const char *role, const char *content)
{
	json_t *message = json_pack("{s:s, s:s}", "role", role, "content", content);
	if (message)
		json_array_append_new(messages, message);
	else
		fprintf(stderr, "baton chat: this is no UTF-8 text\n");
}

static int talk(const struct client_url *url, const struct chat_config *config, const char *model)
{
	json_t *messages = json_array();
	char *line = NULL;
	size_t capacity = 0;
	int error = 0;

	if (*config->system)
		add_message(messages, "system", config->system);
	if (*config->once) {
		add_message(messages, "user", config->once);
		error = ask(url, config, model, messages);
	}
	while (!*config->once) {
		if (isatty(0))
			fputs("> ", stderr);
		ssize_t bytes = getline(&line, &capacity, stdin);
		if (bytes < 0)
			break;
		line[strcspn(line, "\r\n")] = 0;
		if (!*line)
			continue;
		add_message(messages, "user", line);
		error = ask(url, config, model, messages);
		if (error)
			json_array_remove(messages, json_array_size(messages) - 1);
	}
	free(line);
	json_decref(messages);
	return error;
}

int cli_chat(int argc, char **argv)
{
	struct chat_config config;
	struct client_url url;
	char model[512];

	int status = settings_load(&settings, argc, argv, &config);
	if (status)
		return status < 0 ? 2 : 0;
	int error = client_url_parse(config.url, &url);
	if (error)
		fprintf(stderr, "baton chat: --url: '%s' must read http://HOST:PORT\n", config.url);
	if (!error) {
		error = find_model(&url, &config, model, sizeof model);
		if (error)
			fprintf(stderr, "baton chat: %s: %s\n", config.url, err_text(error));
	}
	if (!error)
		error = talk(&url, &config, model);
	settings_free(&settings, &config);
	return error ? 1 : 0;
}
