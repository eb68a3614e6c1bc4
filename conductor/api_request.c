/*
 * The life of a completion request at the front after its beginning (api_begin.c): tokens in, and
 * every way to end: all choices finished, the core failed it, the client went. Rendering is
 * api_render.c.
 *
 * Stop strings are matched the moment a token arrives, however slow the reader is, so that the
 * nodes stop at once; the text itself is made when the socket can take it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
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

void api__part_over(struct api_part *part)
{
	part->over = true;
	if (part->counted) {
		(void)map_remove(&part->request->front->parts, part->id);
		part->counted = false;
	}
}

void api__part_cancel(struct api_part *part)
{
	if (part->over || !part->counted)
		return;
	tell_core(part->request->front, BRIDGE_CANCEL, part->id, 0);
	api__part_over(part);
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

void api__request_free(struct api_request *request)
{
	list_remove(&request->link);
	list_remove(&request->dirty);
	api__begin_forget(request->begin);
	for (uint32_t i = 0; i < request->part_count; i++) {
		struct api_part *part = &request->parts[i];
		for (uint32_t c = 0; part->choices && c < request->n; c++)
			choice_fini(&part->choices[c]);
		free(part->choices);
		free(part->prompt);
	}
	free(request->parts);
	key_use_unref(request->use);
	stop_set_fini(&request->stops);
	buf_fini(&request->head);
	atomic_fetch_sub(&request->front->fronts->open, 1);
	free(request);
}

/* ---- the end ---- */

enum end_cause { END_FINISHED, END_ABORT, END_ERROR };

static void count_end(struct api_request *request, enum end_cause cause)
{
	struct front_metrics *m = request->metrics;
	uint64_t now_ns = clock_now_ns();
	uint64_t tokens = 0;
	if (!request->submitted)
		return; /* no request yet as far as anybody counts */
	for (uint32_t i = 0; i < request->part_count; i++) {
		struct api_part *part = &request->parts[i];
		for (uint32_t c = 0; c < request->n; c++) {
			struct api_choice *choice = &part->choices[c];
			tokens += choice->completion_tokens;
			if (cause == END_FINISHED)
				metric_observe(m->request_max_generation, choice->completion_tokens);
		}
		metric_add(cause == END_ABORT ? m->success_abort :
			   cause == END_ERROR ? m->success_error :
			   part->choices[0].finish == FINISH_STOP ? m->success_stop :
								    m->success_length, 1);
		if (cause == END_FINISHED)
			metric_observe(m->request_prompt, part->prompt_count);
	}
	if (cause != END_FINISHED)
		return;
	metric_observe(m->request_generation, (double)tokens);
	metric_observe(m->decode_time, (double)(request->last_ns - request->first_ns) / 1e9);
	metric_observe(m->e2e, (double)(now_ns - request->arrival_ns) / 1e9);
	if (tokens > request->choice_count)
		metric_observe(m->tpot, (double)(request->last_ns - request->first_ns) / 1e9 /
						(double)(tokens - request->choice_count) *
						request->choice_count);
}

void api__answering(const struct api_request *request)
{
	api_answering(request->front,
		      request->kind == API_CHAT ? "/v1/chat/completions" : "/v1/completions", "POST",
		      request->arrival_ns);
}

static void cancel_all(struct api_request *request)
{
	for (uint32_t i = 0; i < request->part_count; i++)
		api__part_cancel(&request->parts[i]);
}

void api_gone(struct api_request *request)
{
	cancel_all(request);
	api__answering(request);
	count_end(request, END_ABORT);
	api_count_http(request->front, request->exchange, 499);
	log_debug("request %s: the client went", request->name);
	api__request_free(request);
}

/* Ends with an error: a proper answer, or an event when the stream has begun. */
static void request_fail(struct api_request *request, const struct api_error *error)
{
	struct front *front = request->front;
	struct http_exchange *exchange = request->exchange;
	cancel_all(request);
	api__answering(request);
	count_end(request, END_ERROR);
	bool streaming = request->streaming;
	api__request_free(request);
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
	api__answering(request);
	count_end(request, END_FINISHED);
	if (!streaming) {
		buf_clear(&front->out);
		api_render_whole(request, &front->out);
	}
	api__request_free(request);
	if (streaming) {
		api_count_http(front, exchange, 200);
		http_stream_end(exchange);
		return;
	}
	if (front->out.failed) {
		struct api_error error;
		buf_fini(&front->out);
		(void)api__overloaded(&error, "out of memory");
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
		(void)api__overloaded(&error, "out of memory");
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
		api__part_over(part);
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
		metric_add(request->metrics->cached_tokens, part->cached_tokens);
	}
	if (choice->last_ns)
		for (uint32_t i = 0; i < count; i++)
			metric_observe(request->metrics->itl,
				       (double)(now_ns - choice->last_ns) / 1e9 / count);
	choice->last_ns = request->last_ns = now_ns;
	metric_add(request->metrics->generation_tokens, count);
	if (request->use)
		key_use_generated(request->use, count, now_ns);
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
		(void)api__overloaded(&error, "out of memory");
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
	api__part_over(part);
	(void)api_fail(&error, message->status >= 400 ? message->status : 500, NULL, "%s",
		       message->text ? message->text : "The request failed.");
	if (message->error_type)
		error.type = message->error_type;
	error.retry_after_s = message->retry_after_s;
	request_fail(part->request, &error);
}
