/* The admin listener: questions and commands go to the core, its answers come back. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "conductor/front_private.h"

#define ADMIN_TEXT_MAX 256

static int hex(char c)
{
	return c >= '0' && c <= '9' ? c - '0' :
	       c >= 'a' && c <= 'f' ? c - 'a' + 10 :
	       c >= 'A' && c <= 'F' ? c - 'A' + 10 :
				      -1;
}

/* A parameter of the query string, decoded; "" when absent. */
static void query_value(const char *query, const char *name, char out[ADMIN_TEXT_MAX])
{
	size_t bytes = strlen(name), used = 0;
	const char *p = query;
	out[0] = 0;
	while (*p && !(!strncmp(p, name, bytes) && p[bytes] == '=')) {
		p += strcspn(p, "&");
		p += *p == '&';
	}
	if (!*p)
		return;
	for (p += bytes + 1; *p && *p != '&' && used + 1 < ADMIN_TEXT_MAX; p++) {
		char c = *p == '+' ? ' ' : *p;
		if (c == '%' && hex(p[1]) >= 0 && hex(p[2]) >= 0) {
			c = (char)(hex(p[1]) * 16 + hex(p[2]));
			p += 2;
		}
		out[used++] = c;
	}
	out[used] = 0;
}

static struct admin_query *query_slot(struct front *front, uint64_t reply_to)
{
	for (uint32_t i = 0; i < FRONT_QUERIES_MAX; i++)
		if (front->queries[i].reply_to == reply_to)
			return &front->queries[i];
	return NULL;
}

static void ask_core(struct front *front, struct http_exchange *exchange, enum bridge_query query,
		     const char *text)
{
	struct api_error error = { 0 };
	struct admin_query *slot = query_slot(front, 0);
	struct bridge_message *message = slot ? calloc(1, sizeof *message) : NULL;
	char *copy = message ? strdup(text) : NULL;
	if (!copy) {
		free(message);
		(void)api_fail(&error, 503, NULL, "Too many questions are open.");
		error.retry_after_s = 1;
		api_respond_error(front, exchange, &error);
		return;
	}
	message->kind = BRIDGE_QUERY;
	message->query = query;
	message->text = copy;
	message->reply_to = ++front->query_ids;
	slot->reply_to = message->reply_to;
	slot->exchange = exchange;
	http_set_user(exchange, slot);
	front_tell(front, message);
}

void admin_reply(struct front *front, const struct bridge_message *message)
{
	struct admin_query *slot = query_slot(front, message->reply_to);
	if (!slot || !message->reply_to)
		return; /* who asked has gone */
	struct http_exchange *exchange = slot->exchange;
	*slot = (struct admin_query){ 0 };
	int status = message->status ? message->status : 200;
	const char *text = message->text ? message->text : "{}";
	api_answering(front, "admin", "GET", clock_now_ns());
	api_count_http(front, exchange, status);
	http_respond(exchange, status, "application/json", text, strlen(text));
}

void admin_gone(struct front *front, struct http_exchange *exchange)
{
	for (uint32_t i = 0; i < FRONT_QUERIES_MAX; i++)
		if (front->queries[i].exchange == exchange)
			front->queries[i] = (struct admin_query){ 0 };
}

static void command(struct front *front, struct http_exchange *exchange,
		    const struct http_request *http, enum bridge_query query)
{
	struct api_error error = { 0 };
	char node[ADMIN_TEXT_MAX], role[ADMIN_TEXT_MAX], text[2 * ADMIN_TEXT_MAX + 2];
	query_value(http->query, "node", node);
	query_value(http->query, "role", role);
	if (strcmp(http->method, "POST") != 0) {
		http_answer_header(exchange, "Allow", "POST");
		(void)api_fail(&error, 405, NULL, "%s takes POST.", http->path);
	} else if (!*node) {
		(void)api_fail(&error, 400, "node", "node is missing: %s?node=NAME.", http->path);
	} else if (query == QUERY_ROLE && strcmp(role, "prefill") && strcmp(role, "decode") &&
		   strcmp(role, "both")) {
		(void)api_fail(&error, 400, "role", "role must be prefill, decode or both.");
	} else {
		snprintf(text, sizeof text, query == QUERY_ROLE ? "%s %s" : "%s", node, role);
		ask_core(front, exchange, query, text);
		return;
	}
	api_respond_error(front, exchange, &error);
}

void admin_route(struct front *front, struct http_exchange *exchange,
		 const struct http_request *http)
{
	static const struct {
		const char *path;
		enum bridge_query query;
	} commands[] = {
		{ "/drain", QUERY_DRAIN },
		{ "/undrain", QUERY_UNDRAIN },
		{ "/role", QUERY_ROLE },
	};
	static const char trace[] = "/debug/requests/";
	static const char *const shared[] = { "/metrics", "/health", "/livez", "/readyz",
					      "/version" };
	struct api_error error = { 0 };
	bool get = !strcmp(http->method, "GET") || !strcmp(http->method, "HEAD");
	api_answering(front, "admin", http->method, clock_now_ns());
	for (size_t i = 0; i < ARRAY_COUNT(shared); i++)
		if (!strcmp(http->path, shared[i])) {
			api_route(front, exchange, http);
			return;
		}
	if (api_authenticate_admin(front, exchange, &error)) {
		api_respond_error(front, exchange, &error);
		return;
	}
	for (size_t i = 0; i < ARRAY_COUNT(commands); i++)
		if (!strcmp(http->path, commands[i].path)) {
			command(front, exchange, http, commands[i].query);
			return;
		}
	if (!strcmp(http->path, "/stats") && get) {
		ask_core(front, exchange, QUERY_STATS, "");
	} else if (!strncmp(http->path, trace, sizeof trace - 1) && get) {
		ask_core(front, exchange, QUERY_TRACE, http->path + sizeof trace - 1);
	} else {
		(void)api_fail(&error, 404, NULL, "There is nothing at %.200s.", http->path);
		api_respond_error(front, exchange, &error);
	}
}
