/*
 * How a completion request begins: gates, the body into parameters and prompts, and one
 * request_spec for each prompt. Reading the body is pure and may happen on another thread
 * (api_job.c); everything else is the front's own.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/rand.h"
#include "conductor/front_private.h"

/* The client's id when it is fit to print, else a random one. */
static void name_request(struct api_request *request)
{
	const char *prefix = request->kind == API_CHAT ? "chatcmpl" : "cmpl";
	const char *wish = http_header(request->exchange, "x-request-id");
	size_t bytes = wish ? strlen(wish) : 0;
	bool fit = bytes >= 1 && bytes <= 36;
	for (size_t i = 0; fit && i < bytes; i++)
		fit = strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.",
			     wish[i]);
	if (fit)
		snprintf(request->name, sizeof request->name, "%s-%s", prefix, wish);
	else
		snprintf(request->name, sizeof request->name, "%s-%016llx%016llx", prefix,
			 (unsigned long long)rand_system(), (unsigned long long)rand_system());
}

static void take_params(struct api_request *request, const struct api_params *params)
{
	request->n = (uint32_t)params->n;
	request->top_logprobs = params->want_logprobs ? (uint32_t)params->top_logprobs : 0;
	request->want_logprobs = params->want_logprobs;
	request->min_tokens = (uint32_t)params->min_tokens;
	request->stream = params->stream;
	request->include_usage = params->include_usage;
	request->continuous_usage = params->include_usage && params->continuous_usage;
	request->include_stop = params->include_stop;
	request->skip_special = params->skip_special;
	request->return_token_ids = params->return_token_ids;
	memcpy(request->user_stop_ids, params->stop_ids, sizeof params->stop_ids);
	request->user_stop_id_count = params->stop_id_count;
}

/* The exact gate: prompt and output must fit the context. */
static int resolve_max_tokens(const struct front_model *model, const struct api_params *params,
			      uint32_t prompt_count, uint32_t *ret_max, struct api_error *error)
{
	const char *field = params->max_completion_tokens >= 0 ? "max_completion_tokens" :
								 "max_tokens";
	int64_t wanted = params->max_completion_tokens >= 0 ? params->max_completion_tokens :
							      params->max_tokens;
	uint32_t limit = model->max_model_len;
	if (prompt_count >= limit)
		return api_fail(error, 400, params->kind == API_CHAT ? "messages" : "prompt",
				"This model's maximum context length is %u tokens, but the prompt "
				"has %u. Please shorten it.",
				limit, prompt_count);
	uint32_t room = limit - prompt_count;
	if (wanted > (int64_t)room)
		return api_fail(error, 400, field,
				"This model's maximum context length is %u tokens. However, you "
				"requested %llu tokens (%u in the prompt, %lld in the completion). "
				"Please shorten the prompt or lower %s.",
				limit, (unsigned long long)wanted + prompt_count, prompt_count,
				(long long)wanted, field);
	if (wanted < 0)
		wanted = params->kind == API_COMPLETION ? MIN(16, (int64_t)room) : (int64_t)room;
	*ret_max = (uint32_t)wanted;
	if (params->min_tokens > wanted)
		return api_fail(error, 400, "min_tokens",
				"min_tokens must not exceed the %lld tokens that may be generated.",
				(long long)wanted);
	return 0;
}

static struct request_spec *spec_new(const struct api_request *request,
				     const struct api_params *params, struct api_prompt *prompt,
				     uint32_t index, uint32_t max_tokens)
{
	struct request_spec *spec = calloc(1, sizeof *spec);
	if (!spec)
		return NULL;
	const struct fronts_config *config = request->front->fronts->config;
	uint8_t kv_format[32];
	if (request->part_count > 1)
		snprintf(spec->name, sizeof spec->name, "%.41s-%u", request->name,
			 (uint16_t)index);
	else
		snprintf(spec->name, sizeof spec->name, "%s", request->name);
	spec->model = (uint32_t)(request->model - config->models);
	spec->prompt = prompt->ids.v;
	spec->prompt_count = prompt->ids.count;
	prompt->ids = (struct token_ids){ 0 };
	spec->choice_count = request->n;
	spec->max_tokens = max_tokens;
	spec->min_tokens = (uint32_t)params->min_tokens;
	spec->temperature = (float)params->temperature;
	/* 0 keeps the likeliest token only, which any tiny value does. */
	spec->top_p = params->top_p > 1e-9 ? (float)params->top_p : 1e-9f;
	spec->min_p = (float)params->min_p;
	spec->top_k = params->top_k > 0 ? (uint32_t)params->top_k : 0;
	spec->seed = params->has_seed ? (uint64_t)params->seed : rand_system();
	spec->want_logprobs = params->want_logprobs;
	spec->top_logprobs = request->top_logprobs;
	spec->ignore_eos = params->ignore_eos;
	memcpy(spec->stop_ids, params->stop_ids, sizeof spec->stop_ids);
	spec->stop_id_count = params->stop_id_count;
	bridge_kv_format(request->front->fronts->bridge, spec->model, kv_format);
	kv_key_root(kv_format, request->tenant_salt, params->cache_salt ? params->cache_salt : "",
		    &spec->root_key);
	spec->priority = params->priority ? (int32_t)params->priority : request->key_priority;
	spec->arrival_ns = request->arrival_ns;
	return spec;
}

static int part_init(struct api_request *request, struct api_part *part, uint32_t index,
		     const struct api_prompt *prompt)
{
	part->request = request;
	part->index = index;
	part->prompt_count = prompt->ids.count;
	part->choices = calloc(request->n, sizeof *part->choices);
	if (!part->choices)
		return -1;
	for (uint32_t c = 0; c < request->n; c++)
		if (stop_state_init(&part->choices[c].stop, &request->stops))
			return -1;
	if (request->return_token_ids) {
		part->prompt = malloc(part->prompt_count * sizeof *part->prompt);
		if (!part->prompt)
			return -1;
		memcpy(part->prompt, prompt->ids.v, part->prompt_count * sizeof *part->prompt);
	}
	return 0;
}

static int part_submit(struct api_part *part, struct request_spec *spec)
{
	struct front *front = part->request->front;
	struct bridge *bridge = front->fronts->bridge;
	struct bridge_message *message = calloc(1, sizeof *message);
	if (!message) {
		request_spec_free(spec);
		return -1;
	}
	part->id = spec->id = (uint64_t)front->index << 56 | ++front->ids;
	message->kind = BRIDGE_SUBMIT;
	message->id = part->id;
	message->spec = spec;
	if (map_put(&front->parts, part->id, (uint64_t)(uintptr_t)part)) {
		bridge_message_free(message);
		return -1;
	}
	part->counted = true;
	atomic_fetch_add(&bridge->requests_open, 1);
	if (bridge_to_core(bridge, front->index, message))
		return 0;
	atomic_fetch_sub(&bridge->requests_open, 1);
	api__part_over(part);
	bridge_message_free(message);
	return -1;
}

int api__overloaded(struct api_error *error, const char *what)
{
	(void)api_fail(error, 503, NULL, "The service is overloaded: %s.", what);
	error->retry_after_s = 1;
	return -1;
}

static int request_submit(struct api_request *request, const struct api_params *params,
			  struct api_prompt prompts[], uint32_t count, struct api_error *error)
{
	uint32_t max_tokens[API_PROMPTS_MAX];
	if ((uint64_t)count * request->n > API_CHOICES_MAX)
		return api_fail(error, 400, "n", "prompts times n must not exceed %d choices.",
				API_CHOICES_MAX);
	if (stop_set_init(&request->stops, params->stops, params->stop_count))
		return api__overloaded(error, "out of memory");
	request->parts = calloc(count, sizeof *request->parts);
	if (!request->parts)
		return api__overloaded(error, "out of memory");
	request->part_count = count;
	request->choice_count = count * request->n;
	for (uint32_t i = 0; i < count; i++) {
		if (resolve_max_tokens(request->model, params, prompts[i].ids.count,
				       &max_tokens[i], error))
			return -1;
		request->max_tokens = MAX(request->max_tokens, max_tokens[i]);
		if (part_init(request, &request->parts[i], i, &prompts[i]))
			return api__overloaded(error, "out of memory");
	}
	uint64_t prompt_tokens = 0;
	for (uint32_t i = 0; i < count; i++)
		prompt_tokens += prompts[i].ids.count;
	for (uint32_t i = 0; i < count; i++) {
		struct request_spec *spec =
			spec_new(request, params, &prompts[i], i, max_tokens[i]);
		if (!spec || part_submit(&request->parts[i], spec)) {
			for (uint32_t j = 0; j < i; j++)
				api__part_cancel(&request->parts[j]);
			return api__overloaded(error, "the queue to the scheduler is full");
		}
	}
	request->submitted = true;
	if (request->use)
		key_use_prompt(request->use, prompt_tokens, clock_now_ns());
	return 0;
}

static int gate(struct front *front, struct http_exchange *exchange, struct api_error *error)
{
	struct bridge *bridge = front->fronts->bridge;
	const char *coding = http_header(exchange, "content-encoding");
	if (coding && strcasecmp(coding, "identity") != 0)
		return api_fail(error, 415, NULL, "Content-Encoding %.40s is not supported.", coding);
	if (atomic_load(&bridge->draining)) {
		(void)api_fail(error, 503, NULL, "The service is shutting down.");
		error->retry_after_s = 5;
		return -1;
	}
	if (atomic_load(&bridge->requests_open) >= front->fronts->config->requests_max) {
		(void)api_fail(error, 429, NULL, "Too many requests are open (%u). Try again later.",
			       front->fronts->config->requests_max);
		error->retry_after_s = 1;
		return -1;
	}
	return api_admit_caller(front, error);
}

static void take_caller(struct api_request *request, const struct api_caller *caller)
{
	snprintf(request->tenant_salt, sizeof request->tenant_salt, "%s", caller->tenant_salt);
	request->use = key_use_ref(caller->use);
	request->key_priority = caller->priority;
}

/* ---- reading the body ---- */

/* What is read of a body, by whichever thread reads it. */
struct begin_job {
	struct api_job job;
	struct api_request *request; /* NULL: the client went meanwhile */
	const struct fronts_config *config;
	enum api_kind kind;
	json_t *body; /* what params points into */
	struct front_model *model;
	struct api_params params;
	struct api_prompt prompts[API_PROMPTS_MAX];
	uint32_t prompt_count;
	struct api_error error;
	bool failed;
};

/* Only what params point into is needed from here on. Freeing a large tree takes long, so it
 * is done where it was made. */
static void prune(json_t *body)
{
	const char *key;
	json_t *value;
	void *after;
	json_object_foreach_safe(body, after, key, value)
		if (strcmp(key, "stop") != 0 && strcmp(key, "cache_salt") != 0)
			json_object_del(body, key);
}

/* Any thread: touches the job and what never changes. */
static void begin_run(struct api_job *job)
{
	struct begin_job *begin = container_of(job, struct begin_job, job);
	begin->failed = true;
	begin->body = api_json_load(job->body, job->body_bytes, &begin->error);
	if (!begin->body ||
	    api_model_find(begin->config, begin->body, &begin->model, &begin->error) ||
	    api_params_parse(begin->body, begin->kind,
			     model_config(begin->model->model)->vocab_count, &begin->params,
			     &begin->error) ||
	    api_prompts_parse(begin->model, begin->body, &begin->params, begin->prompts,
			      &begin->prompt_count, &begin->error))
		return;
	begin->failed = false;
	begin->params.template_variables = NULL;
	prune(begin->body);
}

static int begin_submit(struct begin_job *begin)
{
	struct api_request *request = begin->request;
	struct http_exchange *exchange = request->exchange;
	if (begin->failed)
		return -1;
	request->model = begin->model;
	request->metrics = &request->front->fronts->metrics[begin->model - begin->config->models];
	take_params(request, &begin->params);
	name_request(request);
	api_render_head(request);
	if (request_submit(request, &begin->params, begin->prompts, begin->prompt_count,
			   &begin->error))
		return -1;
	const char *wish = http_header(exchange, "x-request-id");
	bool kept = wish && strlen(wish) <= 36 && strstr(request->name, wish);
	http_answer_header(exchange, "X-Request-Id", kept ? wish : request->name);
	metric_observe(request->metrics->request_n, request->n);
	metric_observe(request->metrics->request_max_tokens, request->max_tokens);
	return 0;
}

static void begin_done(struct api_job *job)
{
	struct begin_job *begin = container_of(job, struct begin_job, job);
	struct api_request *request = begin->request;
	if (request) {
		struct front *front = request->front;
		struct http_exchange *exchange = request->exchange;
		request->begin = NULL;
		if (begin_submit(begin)) {
			api__answering(request);
			api__request_free(request);
			api_respond_error(front, exchange, &begin->error);
		}
	}
	for (uint32_t i = 0; i < begin->prompt_count; i++)
		free(begin->prompts[i].ids.v);
	json_decref(begin->body);
	free(begin);
}

void api__begin_forget(struct begin_job *begin)
{
	if (begin)
		begin->request = NULL;
}

static void request_gone(struct api_owner *owner)
{
	api_gone(container_of(owner, struct api_request, owner));
}

void api_submit(struct front *front, struct http_exchange *exchange,
		const struct http_request *http, enum api_kind kind)
{
	struct api_error error = { 0 };
	struct api_request *request = calloc(1, sizeof *request);
	struct begin_job *begin = calloc(1, sizeof *begin);
	if (!request || !begin)
		(void)api__overloaded(&error, "out of memory");
	if (!request || !begin || gate(front, exchange, &error)) {
		free(request);
		free(begin);
		api_respond_error(front, exchange, &error);
		return;
	}
	request->owner.gone = request_gone;
	request->front = front;
	request->exchange = exchange;
	request->kind = kind;
	request->arrival_ns = clock_now_ns();
	request->created_s = clock_wall_us() / 1000000;
	request->begin = begin;
	take_caller(request, &front->caller);
	list_init(&request->dirty);
	list_push_back(&front->requests, &request->link);
	atomic_fetch_add(&front->fronts->open, 1);
	http_set_user(exchange, &request->owner);
	begin->request = request;
	begin->config = front->fronts->config;
	begin->kind = kind;
	api_job_start(&begin->job, front, http, begin_run, begin_done);
}
