/*
 * The life of a completion request at the front: gates, submission (one request_spec for each
 * prompt), tokens in, and every way to end: all choices finished, the core failed it, the client
 * went. Rendering is api_render.c.
 *
 * Stop strings are matched the moment a token arrives, however slow the reader is, so that the
 * nodes stop at once; the text itself is made when the socket can take it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rand.h"
#include "conductor/front_private.h"

/* ---- messages to the core ---- */

static void tell_core(struct front *front, enum bridge_kind kind, uint64_t id, uint32_t choice)
{
	struct bridge_message *message = calloc(1, sizeof *message);
	if (!message) {
		log_error("out of memory: the core goes on with a request that nobody wants");
		return;
	}
	message->kind = kind;
	message->id = id;
	message->choice = choice;
	front_tell(front, message);
}

static void part_over(struct api_part *part)
{
	part->over = true;
	if (part->counted) {
		(void)map_remove(&part->request->front->parts, part->id);
		part->counted = false;
	}
}

static void part_cancel(struct api_part *part)
{
	if (part->over || !part->counted)
		return;
	tell_core(part->request->front, BRIDGE_CANCEL, part->id, 0);
	part_over(part);
}

/* ---- memory ---- */

static void choice_fini(struct api_choice *choice)
{
	stop_state_fini(&choice->stop);
	free(choice->ids);
	free(choice->logprobs);
	free(choice->top_ids);
	free(choice->top_logprobs);
	free(choice->top_counts);
	buf_fini(&choice->tail);
	buf_fini(&choice->log);
	buf_fini(&choice->tops);
	buf_fini(&choice->values);
	buf_fini(&choice->offsets);
	buf_fini(&choice->token_ids);
}

static void request_free(struct api_request *request)
{
	list_remove(&request->link);
	list_remove(&request->dirty);
	for (uint32_t i = 0; i < request->part_count; i++) {
		struct api_part *part = &request->parts[i];
		for (uint32_t c = 0; part->choices && c < request->n; c++)
			choice_fini(&part->choices[c]);
		free(part->choices);
		free(part->prompt);
	}
	free(request->parts);
	stop_set_fini(&request->stops);
	buf_fini(&request->head);
	atomic_fetch_sub(&request->front->fronts->open, 1);
	free(request);
}

/* ---- making a request ---- */

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
	kv_key_root(kv_format, "", params->cache_salt ? params->cache_salt : "",
		    &spec->root_key);
	spec->priority = (int32_t)params->priority;
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
	part_over(part);
	bridge_message_free(message);
	return -1;
}

static int overloaded(struct api_error *error, const char *what)
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
		return overloaded(error, "out of memory");
	request->parts = calloc(count, sizeof *request->parts);
	if (!request->parts)
		return overloaded(error, "out of memory");
	request->part_count = count;
	request->choice_count = count * request->n;
	for (uint32_t i = 0; i < count; i++) {
		if (resolve_max_tokens(request->model, params, prompts[i].ids.count,
				       &max_tokens[i], error))
			return -1;
		request->max_tokens = MAX(request->max_tokens, max_tokens[i]);
		if (part_init(request, &request->parts[i], i, &prompts[i]))
			return overloaded(error, "out of memory");
	}
	for (uint32_t i = 0; i < count; i++) {
		struct request_spec *spec =
			spec_new(request, params, &prompts[i], i, max_tokens[i]);
		if (!spec || part_submit(&request->parts[i], spec)) {
			for (uint32_t j = 0; j < i; j++)
				part_cancel(&request->parts[j]);
			return overloaded(error, "the queue to the scheduler is full");
		}
	}
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
	return 0;
}

static int request_begin(struct api_request *request, const struct http_request *http,
			 struct api_error *error)
{
	/* Large, and of one request at a time: one per front thread. */
	static _Thread_local struct api_params params;
	static _Thread_local struct api_prompt prompts[API_PROMPTS_MAX];
	struct front *front = request->front;
	uint32_t count = 0;
	if (gate(front, request->exchange, error))
		return -1;
	json_t *body = api_json_load(http->body, http->body_bytes, error);
	if (!body)
		return -1;
	int result = api_model_find(front, body, &request->model, error);
	if (!result) {
		request->metrics = &front->fronts->metrics[request->model -
							   front->fronts->config->models];
		result = api_params_parse(body, request->kind,
					  model_config(request->model->model)->vocab_count, &params,
					  error);
	}
	if (!result) {
		take_params(request, &params);
		result = api_prompts_parse(request->model, body, &params, prompts, &count, error);
	}
	if (!result) {
		name_request(request);
		api_render_head(request);
		result = request_submit(request, &params, prompts, count, error);
	}
	for (uint32_t i = 0; i < count; i++) {
		free(prompts[i].ids.v);
		prompts[i].ids = (struct token_ids){ 0 };
	}
	json_decref(body);
	return result;
}

void api_submit(struct front *front, struct http_exchange *exchange,
		const struct http_request *http, enum api_kind kind)
{
	struct api_error error = { 0 };
	struct api_request *request = calloc(1, sizeof *request);
	if (!request) {
		(void)overloaded(&error, "out of memory");
		api_respond_error(front, exchange, &error);
		return;
	}
	request->front = front;
	request->exchange = exchange;
	request->kind = kind;
	request->arrival_ns = clock_now_ns();
	request->created_s = clock_wall_us() / 1000000;
	list_init(&request->dirty);
	list_push_back(&front->requests, &request->link);
	atomic_fetch_add(&front->fronts->open, 1);
	if (request_begin(request, http, &error)) {
		request_free(request);
		api_respond_error(front, exchange, &error);
		return;
	}
	http_set_user(exchange, request);
	const char *wish = http_header(exchange, "x-request-id");
	bool kept = wish && strlen(wish) <= 36 && strstr(request->name, wish);
	http_answer_header(exchange, "X-Request-Id", kept ? wish : request->name);
	metric_observe(request->metrics->request_n, request->n);
	metric_observe(request->metrics->request_max_tokens, request->max_tokens);
}

/* ---- the end ---- */

static void count_end(struct api_request *request, struct metric *cause_of_all)
{
	struct front_metrics *m = request->metrics;
	uint64_t now_ns = clock_now_ns();
	uint64_t tokens = 0;
	for (uint32_t i = 0; i < request->part_count; i++) {
		struct api_part *part = &request->parts[i];
		for (uint32_t c = 0; c < request->n; c++) {
			struct api_choice *choice = &part->choices[c];
			tokens += choice->completion_tokens;
			if (!cause_of_all)
				metric_observe(m->request_max_generation, choice->completion_tokens);
		}
		metric_add(cause_of_all ? cause_of_all :
			   part->choices[0].finish == FINISH_STOP ? m->success_stop :
								    m->success_length, 1);
		if (!cause_of_all)
			metric_observe(m->request_prompt, part->prompt_count);
	}
	if (cause_of_all)
		return;
	metric_observe(m->request_generation, (double)tokens);
	metric_observe(m->e2e, (double)(now_ns - request->arrival_ns) / 1e9);
	if (tokens > request->choice_count)
		metric_observe(m->tpot, (double)(request->last_ns - request->first_ns) / 1e9 /
						(double)(tokens - request->choice_count) *
						request->choice_count);
}

static void answering(const struct api_request *request)
{
	api_answering(request->front,
		      request->kind == API_CHAT ? "/v1/chat/completions" : "/v1/completions", "POST",
		      request->arrival_ns);
}

static void cancel_all(struct api_request *request)
{
	for (uint32_t i = 0; i < request->part_count; i++)
		part_cancel(&request->parts[i]);
}

void api_gone(struct api_request *request)
{
	cancel_all(request);
	answering(request);
	count_end(request, request->metrics->success_abort);
	api_count_http(request->front, request->exchange, 499);
	log_debug("request %s: the client went", request->name);
	request_free(request);
}

/* Ends with an error: a proper answer, or an event when the stream has begun. */
static void request_fail(struct api_request *request, const struct api_error *error)
{
	struct front *front = request->front;
	struct http_exchange *exchange = request->exchange;
	cancel_all(request);
	answering(request);
	count_end(request, request->metrics->success_error);
	bool streaming = request->streaming;
	request_free(request);
	if (!streaming) {
		api_respond_error(front, exchange, error);
		return;
	}
	buf_clear(&front->out);
	api_render_error_event(error, &front->out);
	http_stream_send(exchange, front->out.data, front->out.bytes);
	api_count_http(front, exchange, 200);
	http_stream_end(exchange);
}

static void request_finish(struct api_request *request)
{
	struct front *front = request->front;
	struct http_exchange *exchange = request->exchange;
	bool streaming = request->streaming;
	answering(request);
	count_end(request, NULL);
	if (!streaming) {
		buf_clear(&front->out);
		api_render_whole(request, &front->out);
	}
	request_free(request);
	if (streaming) {
		api_count_http(front, exchange, 200);
		http_stream_end(exchange);
		return;
	}
	if (front->out.failed) {
		struct api_error error;
		buf_fini(&front->out);
		(void)overloaded(&error, "out of memory");
		api_respond_error(front, exchange, &error);
		return;
	}
	api_respond(front, exchange, 200, "application/json", &front->out);
}

void api_progress(struct api_request *request)
{
	struct front *front = request->front;
	list_remove(&request->dirty);
	bool ended = request->done_count == request->choice_count;
	if (!request->stream) {
		if (ended)
			request_finish(request);
		return;
	}
	if (!request->streaming) {
		request->streaming = true;
		http_answer_header(request->exchange, "Cache-Control", "no-cache");
		http_answer_header(request->exchange, "X-Accel-Buffering", "no");
		http_stream_begin(request->exchange, 200, "text/event-stream; charset=utf-8");
	}
	buf_clear(&front->out);
	bool all_out = api_render_stream(request, &front->out);
	if (front->out.failed) {
		struct api_error error;
		buf_fini(&front->out);
		(void)overloaded(&error, "out of memory");
		request_fail(request, &error);
		return;
	}
	http_stream_send(request->exchange, front->out.data, front->out.bytes);
	if (ended && all_out)
		request_finish(request);
}

void api_abort_all(struct front *front)
{
	list_for_each_safe(node, after, &front->requests) {
		struct api_error error;
		(void)api_fail(&error, 503, NULL, "The service is shutting down.");
		error.retry_after_s = 5;
		request_fail(list_entry(node, struct api_request, link), &error);
	}
}

/* ---- tokens ---- */

static int choice_grow(struct api_choice *choice, const struct api_request *request)
{
	uint32_t capacity = MAX(16u, choice->capacity * 2), k = request->top_logprobs;
	uint32_t *ids = realloc(choice->ids, capacity * sizeof *ids);
	if (!ids)
		return -1;
	choice->ids = ids;
	if (request->want_logprobs) {
		float *logprobs = realloc(choice->logprobs, capacity * sizeof *logprobs);
		if (!logprobs)
			return -1;
		choice->logprobs = logprobs;
	}
	if (k) {
		uint32_t *top_ids = realloc(choice->top_ids, (size_t)capacity * k * sizeof *top_ids);
		if (!top_ids)
			return -1;
		choice->top_ids = top_ids;
		float *tops = realloc(choice->top_logprobs, (size_t)capacity * k * sizeof *tops);
		if (!tops)
			return -1;
		choice->top_logprobs = tops;
		uint8_t *counts = realloc(choice->top_counts, capacity);
		if (!counts)
			return -1;
		choice->top_counts = counts;
	}
	choice->capacity = capacity;
	return 0;
}

static int choice_push(struct api_choice *choice, const struct api_request *request,
		       const struct bridge_token *token)
{
	uint32_t k = request->top_logprobs;
	if (choice->pending_first == choice->pending_count)
		choice->pending_first = choice->pending_count = 0;
	if (choice->pending_count == choice->capacity && choice_grow(choice, request))
		return -1;
	uint32_t at = choice->pending_count++;
	choice->ids[at] = token->id;
	if (request->want_logprobs)
		choice->logprobs[at] = token->logprob;
	if (k) {
		uint32_t count = MIN(token->top_count, k);
		choice->top_counts[at] = (uint8_t)count;
		if (count) {
			memcpy(&choice->top_ids[(size_t)at * k], token->top_ids,
			       count * sizeof *token->top_ids);
			memcpy(&choice->top_logprobs[(size_t)at * k], token->top_logprobs,
			       count * sizeof *token->top_logprobs);
		}
	}
	return 0;
}

static void choice_done(struct api_part *part, struct api_choice *choice,
			enum request_finish finish)
{
	struct api_request *request = part->request;
	choice->done = true;
	choice->finish = finish;
	request->done_count++;
	if (++part->done_count == request->n)
		part_over(part);
}

static void count_tokens(struct api_part *part, struct api_choice *choice, uint32_t count)
{
	struct api_request *request = part->request;
	uint64_t now_ns = clock_now_ns();
	if (!request->first_ns) {
		request->first_ns = now_ns;
		metric_observe(request->metrics->ttft,
			       (double)(now_ns - request->arrival_ns) / 1e9);
	}
	if (!part->started) {
		part->started = true;
		metric_add(request->metrics->prompt_tokens, part->prompt_count);
	}
	if (choice->last_ns)
		for (uint32_t i = 0; i < count; i++)
			metric_observe(request->metrics->itl,
				       (double)(now_ns - choice->last_ns) / 1e9 / count);
	choice->last_ns = request->last_ns = now_ns;
	metric_add(request->metrics->generation_tokens, count);
}

/* Return: tokens taken; fewer than came when a stop string ended the choice. -1: no memory. */
static int64_t take_tokens(struct api_part *part, uint32_t index,
			   const struct bridge_message *message)
{
	struct api_request *request = part->request;
	struct api_choice *choice = &part->choices[index];
	struct buf *piece = &request->front->scratch;
	for (uint32_t i = 0; i < message->token_count; i++) {
		const struct bridge_token *token = &message->tokens[i];
		bool last = i + 1 == message->token_count;
		bool is_stop = last && message->finish == FINISH_STOP && message->stopped_by_id &&
			       token->id == message->stop_id;
		if (choice_push(choice, request, token))
			return -1;
		buf_clear(piece);
		api_piece(request, choice, choice->completion_tokens, token->id, is_stop, piece);
		choice->completion_tokens++;
		choice->ends_with_stop_id = is_stop;
		if (!stop_feed(&request->stops, &choice->stop, piece->data ? piece->data : "",
			       piece->bytes, choice->completion_tokens > request->min_tokens))
			continue;
		choice->reason = REASON_TEXT;
		choice_done(part, choice, FINISH_STOP);
		/* The core has ended the choice itself when its last token is this one. */
		if (!(last && message->finish != FINISH_NONE))
			tell_core(request->front, BRIDGE_STOP_CHOICE, part->id, index);
		return i + 1;
	}
	return message->token_count;
}

void api_tokens(struct front *front, struct bridge_message *message)
{
	uint64_t value;
	/* After a cancel, tokens already under way find nobody. */
	if (!map_get(&front->parts, message->id, &value))
		return;
	struct api_part *part = (struct api_part *)(uintptr_t)value;
	struct api_request *request = part->request;
	if (message->choice >= request->n)
		return;
	struct api_choice *choice = &part->choices[message->choice];
	if (choice->done)
		return;
	if (!part->started)
		part->cached_tokens = message->cached_tokens;
	int64_t taken = take_tokens(part, message->choice, message);
	if (taken < 0) {
		struct api_error error;
		(void)overloaded(&error, "out of memory");
		request_fail(request, &error);
		return;
	}
	if (taken)
		count_tokens(part, choice, (uint32_t)taken);
	if (!choice->done && message->finish != FINISH_NONE) {
		if (message->finish == FINISH_STOP && message->stopped_by_id) {
			choice->reason = REASON_ID;
			choice->stop_id = message->stop_id;
		}
		choice_done(part, choice, message->finish);
	}
	if (list_empty(&request->dirty))
		list_push_back(&front->dirty, &request->dirty);
}

void api_failed(struct front *front, const struct bridge_message *message)
{
	uint64_t value;
	struct api_error error = { 0 };
	if (!map_get(&front->parts, message->id, &value))
		return;
	struct api_part *part = (struct api_part *)(uintptr_t)value;
	part_over(part);
	(void)api_fail(&error, message->status >= 400 ? message->status : 500, NULL, "%s",
		       message->text ? message->text : "The request failed.");
	if (message->error_type)
		error.type = message->error_type;
	error.retry_after_s = message->retry_after_s;
	request_fail(part->request, &error);
}
