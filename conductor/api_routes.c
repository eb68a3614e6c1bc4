/* The client API's endpoints. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/settings.h"
#include "conductor/front_private.h"
#include "conductor/text.h"

/* ---- answers ---- */

/* The handler's name, never the raw path: a scanner must not fill the metrics. */
void api_answering(struct front *front, const char *handler, const char *method, uint64_t begin_ns)
{
	front->handler = handler;
	front->method = method;
	front->begin_ns = begin_ns;
}

void api_count_http(struct front *front, struct http_exchange *exchange, int status)
{
	http_set_user(exchange, NULL);
	metric_add(metric_series(front->fronts->http_requests,
				 "handler=\"%s\",method=\"%s\",status=\"%d\"", front->handler,
				 front->method, status),
		   1);
	metric_observe(metric_series(front->fronts->http_seconds, "handler=\"%s\",method=\"%s\"",
				     front->handler, front->method),
		       (double)(clock_now_ns() - front->begin_ns) / 1e9);
}

void api_respond(struct front *front, struct http_exchange *exchange, int status,
		 const char *content_type, const struct buf *body)
{
	api_count_http(front, exchange, status);
	http_respond(exchange, status, content_type, body->data ? body->data : "", body->bytes);
}

void api_respond_error(struct front *front, struct http_exchange *exchange,
		       const struct api_error *error)
{
	struct buf body;
	char seconds[16];
	buf_init(&body, 0);
	api_error_render(error, &body);
	if (error->retry_after_s) {
		snprintf(seconds, sizeof seconds, "%u", error->retry_after_s);
		http_answer_header(exchange, "Retry-After", seconds);
	}
	if (error->status == 401)
		http_answer_header(exchange, "WWW-Authenticate", "Bearer");
	api_respond(front, exchange, error->status, "application/json", &body);
	buf_fini(&body);
}

/* ---- endpoints ---- */

static void get_live(struct front *front, struct http_exchange *exchange,
		     const struct http_request *http)
{
	static const struct buf empty;
	api_respond(front, exchange, 200, NULL, &empty);
}

static void get_ready(struct front *front, struct http_exchange *exchange,
		      const struct http_request *http)
{
	struct bridge *bridge = front->fronts->bridge;
	struct api_error error;
	if (atomic_load(&bridge->ready) && !atomic_load(&bridge->draining)) {
		get_live(front, exchange, http);
		return;
	}
	(void)api_fail(&error, 503, NULL, "%s",
		       atomic_load(&bridge->draining) ?
			       "The service is shutting down." :
			       "No prefill and decode nodes are ready for every model yet.");
	error.retry_after_s = 1;
	api_respond_error(front, exchange, &error);
}

static void get_version(struct front *front, struct http_exchange *exchange,
			const struct http_request *http)
{
	struct buf body;
	buf_init(&body, 0);
	buf_printf(&body, "{\"version\":\"%s\"}", baton_version);
	api_respond(front, exchange, 200, "application/json", &body);
	buf_fini(&body);
}

static void get_metrics(struct front *front, struct http_exchange *exchange,
			const struct http_request *http)
{
	struct buf body;
	buf_init(&body, 0);
	metrics_render(front->fronts->bridge->metrics, &body);
	api_respond(front, exchange, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
	buf_fini(&body);
}

static void put_model(const struct front_model *model, const char *name, struct buf *out)
{
	buf_append_text(out, "{\"id\":");
	text_json_cstr(out, name);
	buf_printf(out, ",\"object\":\"model\",\"created\":%llu,\"owned_by\":\"baton\",\"root\":",
		   (unsigned long long)model->created_s);
	text_json_cstr(out, model->root);
	buf_printf(out, ",\"parent\":null,\"max_model_len\":%u}", model->max_model_len);
}

static void get_models(struct front *front, struct http_exchange *exchange,
		       const struct http_request *http)
{
	const struct fronts_config *config = front->fronts->config;
	struct buf body;
	bool first = true;
	buf_init(&body, 0);
	buf_append_text(&body, "{\"object\":\"list\",\"data\":[");
	for (uint32_t m = 0; m < config->model_count; m++)
		for (uint32_t i = 0; i < config->models[m].name_count; i++) {
			if (!first)
				buf_append(&body, ",", 1);
			first = false;
			put_model(&config->models[m], config->models[m].names[i], &body);
		}
	buf_append_text(&body, "]}");
	api_respond(front, exchange, 200, "application/json", &body);
	buf_fini(&body);
}

static void get_model(struct front *front, struct http_exchange *exchange,
		      const struct http_request *http)
{
	const struct fronts_config *config = front->fronts->config;
	const char *name = http->path + strlen("/v1/models/");
	struct api_error error;
	struct buf body;
	buf_init(&body, 0);
	for (uint32_t m = 0; m < config->model_count && !body.bytes; m++)
		for (uint32_t i = 0; i < config->models[m].name_count && !body.bytes; i++)
			if (!strcmp(config->models[m].names[i], name))
				put_model(&config->models[m], name, &body);
	if (body.bytes) {
		api_respond(front, exchange, 200, "application/json", &body);
	} else {
		(void)api_fail(&error, 404, "model",
			       "model_not_found: the model `%.200s` does not exist.", name);
		api_respond_error(front, exchange, &error);
	}
	buf_fini(&body);
}

static void post_chat(struct front *front, struct http_exchange *exchange,
		      const struct http_request *http)
{
	api_submit(front, exchange, http, API_CHAT);
}

static void post_completion(struct front *front, struct http_exchange *exchange,
			    const struct http_request *http)
{
	api_submit(front, exchange, http, API_COMPLETION);
}

static void put_token_texts(const struct front_model *model, const struct token_ids *ids,
			    struct buf *out)
{
	struct buf piece;
	buf_init(&piece, 0);
	buf_append_text(out, ",\"token_strs\":[");
	for (uint32_t i = 0; i < ids->count; i++) {
		buf_clear(&piece);
		tokenizer_piece(model_tokenizer(model->model), ids->v[i], true, &piece);
		if (i)
			buf_append(out, ",", 1);
		text_json(out, piece.data ? piece.data : "", piece.bytes);
	}
	buf_append(out, "]", 1);
	buf_fini(&piece);
}

/* A boolean member of @body. Return: 0, or -1 with @error filled. */
static int body_bool(const json_t *body, const char *name, bool initial, bool *ret_value,
		     struct api_error *error)
{
	const json_t *value = json_object_get(body, name);
	*ret_value = initial;
	if (!value || json_is_null(value))
		return 0;
	if (!json_is_boolean(value))
		return api_fail(error, 400, name, "%s must be a boolean, got %s.", name,
				api_type_name(value));
	*ret_value = json_is_true(value);
	return 0;
}

static int tokenize_body(const struct fronts_config *config, const json_t *body, struct buf *out,
			 struct api_error *error)
{
	struct front_model *model;
	struct token_ids ids = { 0 };
	bool add_special, want_texts, add_prompt;
	const json_t *prompt = json_object_get(body, "prompt");
	bool chat = json_object_get(body, "messages") && (!prompt || json_is_null(prompt));
	if (api_model_find(config, body, &model, error) ||
	    body_bool(body, "add_special_tokens", true, &add_special, error) ||
	    body_bool(body, "add_generation_prompt", true, &add_prompt, error) ||
	    body_bool(body, "return_token_strs", false, &want_texts, error))
		return -1;
	int result = 0;
	if (chat) {
		static _Thread_local struct api_params params;
		params.kind = API_CHAT;
		params.add_generation_prompt = add_prompt;
		params.template_variables = NULL;
		result = api_chat_tokenize(model, body, &params, &ids, error);
	} else if (!json_is_string(prompt)) {
		result = api_fail(error, 400, "prompt", "prompt must be a string.");
	} else if (tokenize(model_tokenizer(model->model), json_string_value(prompt),
			    json_string_length(prompt),
			    TOKENIZE_SPECIAL | (add_special ? TOKENIZE_ADD_BOS : 0), &ids)) {
		result = api_fail(error, 503, NULL, "out of memory");
	}
	if (!result) {
		buf_printf(out, "{\"count\":%u,\"max_model_len\":%u,\"tokens\":[", ids.count,
			   model->max_model_len);
		for (uint32_t i = 0; i < ids.count; i++)
			buf_printf(out, "%s%u", i ? "," : "", ids.v[i]);
		buf_append(out, "]", 1);
		if (want_texts)
			put_token_texts(model, &ids, out);
		buf_append(out, "}", 1);
	}
	free(ids.v);
	return result;
}

static int detokenize_body(const struct fronts_config *config, const json_t *body, struct buf *out,
			   struct api_error *error)
{
	struct front_model *model;
	const json_t *tokens = json_object_get(body, "tokens");
	json_t *item;
	size_t i;
	struct buf text;
	if (api_model_find(config, body, &model, error))
		return -1;
	if (!json_is_array(tokens))
		return api_fail(error, 400, "tokens", "tokens must be a list of token ids.");
	uint32_t vocab_count = model_config(model->model)->vocab_count;
	uint32_t *ids = malloc((json_array_size(tokens) + 1) * sizeof *ids);
	if (!ids)
		return api_fail(error, 503, NULL, "out of memory");
	json_array_foreach(tokens, i, item) {
		json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
		if (id < 0 || id >= (json_int_t)vocab_count) {
			free(ids);
			return api_fail(error, 400, "tokens",
					"tokens[%zu] must be a token id below %u.", i, vocab_count);
		}
		ids[i] = (uint32_t)id;
	}
	buf_init(&text, 0);
	detokenize(model_tokenizer(model->model), ids, (uint32_t)json_array_size(tokens), true,
		   &text);
	free(ids);
	buf_append_text(out, "{\"prompt\":");
	text_json(out, text.data ? text.data : "", text.bytes);
	buf_append(out, "}", 1);
	buf_fini(&text);
	return 0;
}

/* ---- endpoints whose answer is made of the body alone ---- */

typedef int body_make(const struct fronts_config *, const json_t *, struct buf *,
		      struct api_error *);

struct body_job {
	struct api_owner owner;
	struct api_job job;
	struct front *front;
	struct http_exchange *exchange; /* NULL: the client went */
	const char *handler;
	uint64_t begin_ns;
	body_make *make;
	struct buf out;
	struct api_error error;
	bool failed;
};

static void body_run(struct api_job *job)
{
	struct body_job *body_job = container_of(job, struct body_job, job);
	json_t *body = api_json_load(job->body, job->body_bytes, &body_job->error);
	body_job->failed = !body || body_job->make(body_job->front->fronts->config, body,
						   &body_job->out, &body_job->error);
	json_decref(body);
}

static void body_done(struct api_job *job)
{
	struct body_job *body_job = container_of(job, struct body_job, job);
	struct front *front = body_job->front;
	if (body_job->exchange) {
		api_answering(front, body_job->handler, "POST", body_job->begin_ns);
		if (!body_job->failed && body_job->out.failed)
			(void)api__overloaded(&body_job->error, "out of memory");
		if (body_job->failed || body_job->out.failed)
			api_respond_error(front, body_job->exchange, &body_job->error);
		else
			api_respond(front, body_job->exchange, 200, "application/json",
				    &body_job->out);
	}
	buf_fini(&body_job->out);
	free(body_job);
}

static void body_gone(struct api_owner *owner)
{
	struct body_job *body_job = container_of(owner, struct body_job, owner);
	api_answering(body_job->front, body_job->handler, "POST", body_job->begin_ns);
	api_count_http(body_job->front, body_job->exchange, 499);
	body_job->exchange = NULL;
}

static void answer_body(struct front *front, struct http_exchange *exchange,
			const struct http_request *http, const char *handler, body_make *make)
{
	struct body_job *body_job = calloc(1, sizeof *body_job);
	if (!body_job) {
		struct api_error error = { 0 };
		(void)api__overloaded(&error, "out of memory");
		api_respond_error(front, exchange, &error);
		return;
	}
	body_job->owner.gone = body_gone;
	body_job->front = front;
	body_job->exchange = exchange;
	body_job->handler = handler;
	body_job->begin_ns = clock_now_ns();
	body_job->make = make;
	buf_init(&body_job->out, 0);
	http_set_user(exchange, &body_job->owner);
	api_job_start(&body_job->job, front, http, body_run, body_done);
}

static void post_tokenize(struct front *front, struct http_exchange *exchange,
			  const struct http_request *http)
{
	answer_body(front, exchange, http, "/tokenize", tokenize_body);
}

static void post_detokenize(struct front *front, struct http_exchange *exchange,
			    const struct http_request *http)
{
	answer_body(front, exchange, http, "/detokenize", detokenize_body);
}

/* ---- routes ---- */

static const struct route {
	const char *path; /* ends with / : a prefix */
	const char *method;
	bool keyed;
	void (*handle)(struct front *, struct http_exchange *, const struct http_request *);
} routes[] = {
	{ "/v1/chat/completions", "POST", true, post_chat },
	{ "/v1/completions", "POST", true, post_completion },
	{ "/v1/models", "GET", true, get_models },
	{ "/v1/models/", "GET", true, get_model },
	{ "/tokenize", "POST", true, post_tokenize },
	{ "/detokenize", "POST", true, post_detokenize },
	{ "/health", "GET", false, get_ready },
	{ "/readyz", "GET", false, get_ready },
	{ "/livez", "GET", false, get_live },
	{ "/version", "GET", false, get_version },
	{ "/metrics", "GET", false, get_metrics },
};

static const struct route *find_route(const char *path)
{
	for (size_t i = 0; i < ARRAY_COUNT(routes); i++) {
		size_t bytes = strlen(routes[i].path);
		if (!strcmp(routes[i].path, path) ||
		    (routes[i].path[bytes - 1] == '/' && !strncmp(routes[i].path, path, bytes)))
			return &routes[i];
	}
	return NULL;
}

static void preflight(struct front *front, struct http_exchange *exchange)
{
	static const struct buf empty;
	http_answer_header(exchange, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
	http_answer_header(exchange, "Access-Control-Allow-Headers", "*, authorization, content-type");
	http_answer_header(exchange, "Access-Control-Max-Age", "86400");
	api_respond(front, exchange, 204, NULL, &empty);
}

void api_route(struct front *front, struct http_exchange *exchange,
	       const struct http_request *http)
{
	struct api_error error = { 0 };
	const struct route *route = find_route(http->path);
	bool head = !strcmp(http->method, "HEAD");
	api_answering(front, route ? route->path : "none", http->method, clock_now_ns());
	if (http_header(exchange, "origin"))
		http_answer_header(exchange, "Access-Control-Allow-Origin", "*");
	if (!route) {
		(void)api_fail(&error, 404, NULL, "There is nothing at %.200s.", http->path);
	} else if (!strcmp(http->method, "OPTIONS")) {
		preflight(front, exchange);
		return;
	} else if (strcmp(http->method, route->method) != 0 &&
		   !(head && !strcmp(route->method, "GET"))) {
		http_answer_header(exchange, "Allow", route->method);
		(void)api_fail(&error, 405, NULL, "%s takes %s, not %s.", route->path,
			       route->method, http->method);
	} else if (!route->keyed || !api_authenticate(front, exchange, &error)) {
		route->handle(front, exchange, http);
		return;
	}
	api_respond_error(front, exchange, &error);
}
