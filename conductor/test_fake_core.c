#include "conductor/test_fake_core.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/list.h"
#include "model/tokenizer.h"

struct fake_request {
	struct list link;
	struct request_spec *spec;
	uint32_t front;
	uint32_t sent[REQUEST_CHOICES_MAX];
	bool done[REQUEST_CHOICES_MAX];
	uint32_t done_count;
};

struct fake_core {
	struct bridge *bridge;
	const struct model *model;
	struct token_ids text;
	uv_loop_t loop;
	uv_timer_t slow;
	uv_async_t stop;
	pthread_t thread;
	struct list requests;
	uint32_t slow_ms;
	_Atomic uint32_t cancels, stops;
	pthread_mutex_t mutex;
	struct request_spec last; /* under the mutex */
};

static void push(struct fake_core *core, uint32_t front, struct bridge_message *message)
{
	CHECK(ring_push(&core->bridge->fronts[front].to_front, message));
	uv_async_send(&core->bridge->fronts[front].wake_front);
}

static void request_end(struct fake_core *core, struct fake_request *request)
{
	list_remove(&request->link);
	request_spec_free(request->spec);
	free(request);
	atomic_fetch_sub(&core->bridge->requests_open, 1);
}

static void fail(struct fake_core *core, struct fake_request *request)
{
	struct bridge_message *message = calloc(1, sizeof *message);
	message->kind = BRIDGE_FAILED;
	message->id = request->spec->id;
	message->status = 503;
	message->error_type = "ServiceUnavailableError";
	message->retry_after_s = 7;
	message->text = strdup("no node is left");
	push(core, request->front, message);
	request_end(core, request);
}

static uint32_t scripted_id(struct fake_core *core, const struct request_spec *spec,
			    uint32_t choice, uint32_t position)
{
	/* Greedy answers depend on the prompt only; sampled ones on seed and choice as well. */
	uint64_t shift = spec->prompt_count * 13;
	if (spec->temperature > 0 && spec->top_k != 1 && spec->top_p > 1e-3)
		shift += spec->seed * 7 + choice * 5;
	return core->text.v[(shift + position) % core->text.count];
}

static bool is_stop(struct fake_core *core, const struct request_spec *spec, uint32_t id)
{
	const struct model_config *config = model_config(core->model);
	for (uint32_t i = 0; i < spec->stop_id_count; i++)
		if (spec->stop_ids[i] == id)
			return true;
	for (uint32_t i = 0; !spec->ignore_eos && i < config->eos_count; i++)
		if (config->eos_ids[i] == id)
			return true;
	return false;
}

static void choice_step(struct fake_core *core, struct fake_request *request, uint32_t choice,
			uint32_t count)
{
	const struct request_spec *spec = request->spec;
	uint32_t k = spec->top_logprobs;
	count = MIN(count, spec->max_tokens - request->sent[choice]);
	struct bridge_message *message = calloc(1, sizeof *message);
	size_t token_bytes = count * sizeof *message->tokens;
	message->kind = BRIDGE_TOKENS;
	message->id = spec->id;
	message->choice = choice;
	message->cached_tokens = spec->prompt_count / 2;
	message->tokens = calloc(1, token_bytes + (size_t)count * k * 8);
	uint32_t *ids = (uint32_t *)((char *)message->tokens + token_bytes);
	float *logprobs = (float *)(ids + (size_t)count * k);
	for (uint32_t i = 0; i < count && !request->done[choice]; i++) {
		uint32_t id = scripted_id(core, spec, choice, request->sent[choice]++);
		struct bridge_token *token = &message->tokens[message->token_count++];
		*token = (struct bridge_token){ id, -0.25f, k, ids, logprobs };
		for (uint32_t j = 0; j < k; j++) {
			ids[j] = j ? (id + j) % model_config(core->model)->vocab_count : id;
			logprobs[j] = -0.25f - (float)j;
		}
		ids += k;
		logprobs += k;
		if (is_stop(core, spec, id) && request->sent[choice] >= spec->min_tokens) {
			message->finish = FINISH_STOP;
			message->stopped_by_id = true;
			message->stop_id = id;
		} else if (request->sent[choice] == spec->max_tokens) {
			message->finish = FINISH_LENGTH;
		}
		if (message->finish)
			request->done[choice] = true;
	}
	if (request->done[choice])
		request->done_count++;
	push(core, request->front, message);
}

static bool all_step(struct fake_core *core, struct fake_request *request, uint32_t count)
{
	for (uint32_t c = 0; c < request->spec->choice_count; c++)
		if (!request->done[c])
			choice_step(core, request, c, count);
	if (request->done_count < request->spec->choice_count)
		return true;
	request_end(core, request);
	return false;
}

static void stray(struct fake_core *core, uint32_t front, uint64_t id)
{
	struct bridge_message *message = calloc(1, sizeof *message);
	message->kind = BRIDGE_TOKENS;
	message->id = id;
	message->token_count = 1;
	message->tokens = calloc(1, sizeof *message->tokens);
	push(core, front, message);
}

static void submit(struct fake_core *core, uint32_t front, struct request_spec *spec)
{
	struct fake_request *request = calloc(1, sizeof *request);
	uint64_t id = spec->id;
	request->spec = spec;
	request->front = front;
	list_push_back(&core->requests, &request->link);
	pthread_mutex_lock(&core->mutex);
	core->last = *spec;
	core->last.prompt = NULL;
	pthread_mutex_unlock(&core->mutex);
	switch (spec->priority) {
	case FAKE_SILENT:
	case FAKE_SLOW: break;
	case FAKE_FAIL: fail(core, request); break;
	case FAKE_FAIL_LATER:
		if (all_step(core, request, 1) && all_step(core, request, 2))
			fail(core, request);
		break;
	case FAKE_BURST:
		(void)all_step(core, request, UINT32_MAX);
		break;
	default:
		while (all_step(core, request, 1))
			;
		if (spec && core->last.priority == FAKE_STRAY)
			stray(core, front, id);
	}
}

static struct fake_request *find(struct fake_core *core, uint64_t id)
{
	list_for_each(node, &core->requests) {
		struct fake_request *request = list_entry(node, struct fake_request, link);
		if (request->spec->id == id)
			return request;
	}
	return NULL;
}

static void answer(struct fake_core *core, uint32_t front, const struct bridge_message *question)
{
	static const char *const texts[] = {
		[QUERY_STATS] = "{\"nodes\":[]}",
		[QUERY_TRACE] = "{\"trace\":\"%\"}",
		[QUERY_DRAIN] = "{\"drain\":\"%\"}",
		[QUERY_UNDRAIN] = "{\"undrain\":\"%\"}",
		[QUERY_ROLE] = "{\"role\":\"%\"}",
	};
	struct bridge_message *message = calloc(1, sizeof *message);
	const char *form = texts[question->query], *mark = strchr(form, '%');
	message->kind = BRIDGE_REPLY;
	message->reply_to = question->reply_to;
	message->status = strcmp(question->text, "nobody") ? 200 : 404;
	if (mark)
		CHECK(asprintf(&message->text, "%.*s%s%s", (int)(mark - form), form,
			       question->text, mark + 1) > 0);
	else
		message->text = strdup(form);
	push(core, front, message);
}

static void on_message(struct fake_core *core, uint32_t front, struct bridge_message *message)
{
	struct fake_request *request;
	switch (message->kind) {
	case BRIDGE_SUBMIT:
		submit(core, front, message->spec);
		message->spec = NULL;
		break;
	case BRIDGE_CANCEL:
		atomic_fetch_add(&core->cancels, 1);
		request = find(core, message->id);
		if (request)
			request_end(core, request);
		break;
	case BRIDGE_STOP_CHOICE:
		atomic_fetch_add(&core->stops, 1);
		request = find(core, message->id);
		if (request && !request->done[message->choice]) {
			request->done[message->choice] = true;
			if (++request->done_count == request->spec->choice_count)
				request_end(core, request);
		}
		break;
	case BRIDGE_QUERY:
		answer(core, front, message);
		break;
	default:
		CHECK(!"a message that fronts do not send");
	}
	bridge_message_free(message);
}

static void on_wake(uv_async_t *async)
{
	struct fake_core *core = async->data;
	for (uint32_t i = 0; i < core->bridge->front_count; i++) {
		struct bridge_message *message;
		while ((message = ring_pop(&core->bridge->fronts[i].to_core)))
			on_message(core, i, message);
	}
}

static void on_slow(uv_timer_t *timer)
{
	struct fake_core *core = timer->data;
	list_for_each_safe(node, after, &core->requests) {
		struct fake_request *request = list_entry(node, struct fake_request, link);
		if (request->spec->priority == FAKE_SLOW)
			(void)all_step(core, request, 1);
	}
}

static void on_stop(uv_async_t *async)
{
	struct fake_core *core = async->data;
	on_wake(&core->bridge->wake_core);
	uv_close((uv_handle_t *)&core->slow, NULL);
	uv_close((uv_handle_t *)&core->stop, NULL);
	uv_close((uv_handle_t *)&core->bridge->wake_core, NULL);
}

static void *core_main(void *argument)
{
	struct fake_core *core = argument;
	uv_run(&core->loop, UV_RUN_DEFAULT);
	return NULL;
}

struct fake_core *fake_core_start(struct bridge *bridge, const struct model *model,
				  const char *text, uint32_t slow_ms)
{
	struct fake_core *core = calloc(1, sizeof *core);
	core->bridge = bridge;
	core->model = model;
	core->slow_ms = slow_ms;
	list_init(&core->requests);
	pthread_mutex_init(&core->mutex, NULL);
	CHECK(!tokenize(model_tokenizer(model), text, strlen(text), TOKENIZE_SPECIAL, &core->text));
	CHECK(core->text.count);
	uv_loop_init(&core->loop);
	uv_async_init(&core->loop, &bridge->wake_core, on_wake);
	uv_async_init(&core->loop, &core->stop, on_stop);
	uv_timer_init(&core->loop, &core->slow);
	bridge->wake_core.data = core->stop.data = core->slow.data = core;
	uv_timer_start(&core->slow, on_slow, slow_ms, slow_ms);
	pthread_create(&core->thread, NULL, core_main, core);
	return core;
}

void fake_core_stop(struct fake_core *core)
{
	uv_async_send(&core->stop);
	pthread_join(core->thread, NULL);
	CHECK(list_empty(&core->requests)); /* every request ended: none was forgotten */
	CHECK(!uv_loop_close(&core->loop));
	free(core->text.v);
	free(core);
}

uint32_t fake_core_cancels(struct fake_core *core)
{
	return atomic_load(&core->cancels);
}

uint32_t fake_core_stops(struct fake_core *core)
{
	return atomic_load(&core->stops);
}

struct request_spec fake_core_last(struct fake_core *core)
{
	pthread_mutex_lock(&core->mutex);
	struct request_spec last = core->last;
	pthread_mutex_unlock(&core->mutex);
	return last;
}
