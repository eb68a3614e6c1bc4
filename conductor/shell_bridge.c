/* Requests between the fronts and the core: specs come in, token runs go out. */
#include "conductor/private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "frame.h"

/* Prompt and output so far travel in one frame, each id in at most five bytes. */
#define PREFILL_TOKENS_MAX ((FRAME_BODY_BYTES_MAX - 65536) / 5)

static struct shell_request *request_find(struct shell *shell, uint64_t id)
{
	uint64_t value;

	return map_get(&shell->requests, id, &value) ? (struct shell_request *)(uintptr_t)value :
						       NULL;
}

/* ---- to the fronts ---- */

void shell__to_front(struct shell *shell, uint32_t front, struct bridge_message *message)
{
	struct bridge_front *to = &shell->bridge->fronts[front];
	struct shell_late *late;

	shell->wake_front[front] = true;
	if (list_empty(&shell->late[front]) && ring_push(&to->to_front, message)) {
		uv_async_send(&to->wake_front);
		return;
	}
	/* What waits here is bounded: a message for at most every token of the open requests. */
	late = malloc(sizeof *late);
	CHECK(late);
	late->message = message;
	list_push_back(&shell->late[front], &late->link);
	shell->late_count++;
}

void shell__bridge_flush(struct shell *shell)
{
	for (uint32_t i = 0; i < shell->bridge->front_count; i++) {
		struct bridge_front *front = &shell->bridge->fronts[i];
		bool pushed = false;
		while (!list_empty(&shell->late[i])) {
			struct shell_late *late =
				list_entry(shell->late[i].next, struct shell_late, link);
			if (!ring_push(&front->to_front, late->message))
				break;
			pushed = true;
			list_remove(&late->link);
			free(late);
		}
		if (pushed)
			uv_async_send(&front->wake_front);
	}
}

static void fail_message(struct shell *shell, uint32_t front, uint64_t id, int status,
			 const char *text)
{
	struct bridge_message *message = calloc(1, sizeof *message);

	CHECK(message);
	message->kind = BRIDGE_FAILED;
	message->id = id;
	message->status = status;
	message->error_type = status == 503 ? "ServiceUnavailableError" :
			      status == 504 ? "TimeoutError" :
			      status == 429 ? "RateLimitError" :
					      "InternalServerError";
	message->retry_after_s = status == 503 || status == 429 ? 1 : 0;
	message->text = strdup(text);
	shell__to_front(shell, front, message);
}

static void reply(struct shell *shell, uint32_t front, uint64_t reply_to, int status, char *text)
{
	struct bridge_message *message = calloc(1, sizeof *message);

	CHECK(message);
	message->kind = BRIDGE_REPLY;
	message->reply_to = reply_to;
	message->status = text ? status : 500;
	message->text = text ? text : strdup("{}");
	shell__to_front(shell, front, message);
}

/* ---- from the fronts ---- */

static struct shell_request *request_make(struct request_spec *spec, uint32_t front)
{
	struct shell_request *request =
		calloc(1, sizeof *request + spec->choice_count * sizeof request->choices[0]);

	if (!request)
		return NULL;
	request->spec = spec;
	request->front = front;
	for (uint32_t i = 0; i < spec->choice_count; i++)
		list_init(&request->choices[i].runs);
	return request;
}

static void runs_drop(struct shell_choice *choice)
{
	list_for_each_safe(link, after, &choice->runs) {
		struct shell_run *run = list_entry(link, struct shell_run, link);
		list_remove(link);
		bridge_message_free(run->message);
		free(run);
	}
}

static void request_unmake(struct shell_request *request)
{
	for (uint32_t i = 0; i < request->spec->choice_count; i++) {
		runs_drop(&request->choices[i]);
		free(request->choices[i].ids);
	}
	request_spec_free(request->spec);
	free(request);
}

/* Fails before the core knows of it. */
static void submit_refuse(struct shell *shell, uint32_t front, struct request_spec *spec,
			  const char *text)
{
	fail_message(shell, front, spec->id, 503, text);
	request_spec_free(spec);
	atomic_fetch_sub(&shell->bridge->requests_open, 1);
}

static void on_submit(struct shell *shell, uint32_t front, struct request_spec *spec)
{
	struct conductor_submit submit = {
		.name = spec->name,
		.model = spec->model,
		.prompt_count = spec->prompt_count,
		.choice_count = spec->choice_count,
		.max_tokens = spec->max_tokens,
		.priority = spec->priority,
		.arrival_ns = spec->arrival_ns,
		.deadline_ns = spec->deadline_ns,
	};
	struct conductor_event event = { .kind = EVENT_SUBMITTED, .request = spec->id, .submit = &submit };
	struct shell_request *request;
	uint64_t id = spec->id;

	if (atomic_load(&shell->bridge->draining)) {
		submit_refuse(shell, front, spec, "the conductor is stopping");
		return;
	}
	if ((uint64_t)spec->prompt_count + spec->max_tokens > PREFILL_TOKENS_MAX) {
		submit_refuse(shell, front, spec, "prompt and output do not fit a control frame");
		return;
	}
	request = spec->choice_count && spec->choice_count <= CONDUCTOR_CHOICES_MAX ?
			  request_make(spec, front) :
			  NULL;
	if (!request || map_put(&shell->requests, id, (uintptr_t)request) < 0) {
		free(request);
		submit_refuse(shell, front, spec, "as many requests as may be are open");
		return;
	}
	list_push_back(&shell->open, &request->link);
	shell__step(shell, &event);
	if (event.result == 0)
		return;
	fail_message(shell, front, id, 503, "as many requests as may be are open");
	shell__do_end(shell, &(struct conductor_action){ .request = id });
}

static void on_node_query(struct shell *shell, uint32_t front, const struct bridge_message *message)
{
	struct conductor_event event = { .kind = EVENT_COMMAND };
	char name[CONDUCTOR_NAME_BYTES + 16], *text = NULL;
	struct conductor_node_view view;
	char *space;

	snprintf(name, sizeof name, "%s", message->text ? message->text : "");
	event.command = message->query == QUERY_DRAIN	? COMMAND_DRAIN :
			message->query == QUERY_UNDRAIN ? COMMAND_UNDRAIN :
							  COMMAND_ROLE;
	if (event.command == COMMAND_ROLE && (space = strrchr(name, ' '))) {
		*space++ = '\0';
		for (uint32_t role = ROLE_PREFILL; role <= ROLE_BOTH; role++)
			if (!strcmp(space, conductor_role_name(role)))
				event.role = role;
	}
	uint32_t index = conductor_node_find(shell->core, name);
	if (index == CONDUCTOR_NODE_NONE) {
		reply(shell, front, message->reply_to, 404,
		      strdup("{\"error\":\"there is no node of this name\"}"));
		return;
	}
	conductor_node_view(shell->core, index, &view);
	event.node = view.id;
	shell__step(shell, &event);
	if (event.result == -EINVAL)
		text = strdup("{\"error\":\"the role is one of prefill, decode, both\"}");
	else if (event.result < 0)
		text = strdup("{\"error\":\"the node is not connected\"}");
	else if (asprintf(&text, "{\"node\":\"%s\",\"accepted\":true}", name) < 0)
		text = NULL;
	reply(shell, front, message->reply_to,
	      event.result == -EINVAL ? 400 : event.result < 0 ? 409 : 200, text);
}

static void on_query(struct shell *shell, uint32_t front, const struct bridge_message *message)
{
	int status = 200;
	char *text;

	switch (message->query) {
	case QUERY_STATS:
		text = shell__stats_json(shell);
		break;
	case QUERY_TRACE:
		text = shell__trace_json(shell, message->text ? message->text : "", &status);
		break;
	default:
		on_node_query(shell, front, message);
		return;
	}
	reply(shell, front, message->reply_to, status, text);
}

static void on_message(struct shell *shell, uint32_t front, struct bridge_message *message)
{
	switch (message->kind) {
	case BRIDGE_SUBMIT: {
		struct request_spec *spec = message->spec;
		message->spec = NULL;
		on_submit(shell, front, spec);
		break;
	}
	case BRIDGE_CANCEL:
		shell__step(shell, &(struct conductor_event){ .kind = EVENT_CANCELLED,
							      .request = message->id });
		break;
	case BRIDGE_STOP_CHOICE:
		shell__step(shell, &(struct conductor_event){ .kind = EVENT_CHOICE_STOPPED,
							      .request = message->id,
							      .choice = message->choice });
		break;
	case BRIDGE_QUERY:
		on_query(shell, front, message);
		break;
	default:
		log_warning("a front sent a message of kind %d", (int)message->kind);
	}
	bridge_message_free(message);
}

void shell__bridge_drain(struct shell *shell)
{
	struct bridge_message *message;

	for (uint32_t i = 0; i < shell->bridge->front_count; i++)
		while ((message = ring_pop(&shell->bridge->fronts[i].to_core)))
			on_message(shell, i, message);
	shell__bridge_flush(shell);
}

void shell__requests_fail(struct shell *shell, int status, const char *text)
{
	list_for_each_safe(link, after, &shell->open) {
		struct shell_request *request = list_entry(link, struct shell_request, link);
		fail_message(shell, request->front, request->spec->id, status, text);
		shell__step(shell, &(struct conductor_event){ .kind = EVENT_CANCELLED,
							      .request = request->spec->id });
	}
}

/* ---- tokens ---- */

static struct bridge_message *tokens_message(uint64_t id, const struct codec_run *run)
{
	struct bridge_message *message = calloc(1, sizeof *message);
	size_t tops = (size_t)run->count * run->top_count;
	size_t bytes = run->count * sizeof(struct bridge_token) +
		       tops * (sizeof(uint32_t) + sizeof(float));

	CHECK(message);
	message->kind = BRIDGE_TOKENS;
	message->id = id;
	message->choice = run->choice;
	message->token_count = run->count;
	if (!run->count)
		return message;
	message->tokens = calloc(1, bytes);
	CHECK(message->tokens);
	uint32_t *top_ids = (uint32_t *)(message->tokens + run->count);
	float *top_logprobs = (float *)(top_ids + tops);
	for (uint32_t i = 0; i < run->count; i++) {
		struct bridge_token *token = &message->tokens[i];
		token->id = run->ids[i];
		token->logprob = run->logprobs ? run->logprobs[i] : 0;
		token->top_count = run->top_count;
		token->top_ids = top_ids + (size_t)i * run->top_count;
		token->top_logprobs = top_logprobs + (size_t)i * run->top_count;
		for (uint32_t j = 0; j < run->top_count; j++) {
			token->top_ids[j] = run->top_ids[(size_t)i * run->top_count + j];
			token->top_logprobs[j] = run->top_logprobs[(size_t)i * run->top_count + j];
		}
	}
	return message;
}

static bool ids_ok(const struct shell *shell, const struct shell_request *request,
		   const struct codec_run *run)
{
	const struct shell_model *model = &shell->config.models[request->spec->model];
	uint32_t vocab_count = model->model ? model_config(model->model)->vocab_count : UINT32_MAX;

	for (uint32_t i = 0; i < run->count; i++)
		if (run->ids[i] >= vocab_count)
			return false;
	for (uint64_t i = 0; i < (uint64_t)run->count * run->top_count; i++)
		if (run->top_ids[i] >= vocab_count)
			return false;
	return true;
}

static void run_step(struct shell *shell, struct conductor_node_id node,
		     const struct conductor_ref *ref, const struct codec_run *run)
{
	struct shell_request *request = request_find(shell, ref->request);
	struct conductor_event event = {
		.kind = EVENT_TOKENS,
		.node = node,
		.ref = *ref,
		.choice = run->choice,
		.position = run->position,
		.count = run->count,
		.finish = run->finish,
		.has_stop_id = run->has_stop_id,
		.stop_id = run->stop_id,
	};

	if (request && !ids_ok(shell, request, run)) {
		log_warning("request %" PRIu64 ": a node sent a token outside the vocabulary",
			    ref->request);
		event.count = UINT32_MAX; /* the core refuses it as out of order and resumes */
	} else if (request) {
		shell->arriving = calloc(1, sizeof *shell->arriving);
		CHECK(shell->arriving);
		shell->arriving->position = run->position;
		shell->arriving->message = tokens_message(ref->request, run);
		list_init(&shell->arriving->link);
	}
	shell__step(shell, &event);
	if (!shell->arriving)
		return;
	bridge_message_free(shell->arriving->message);
	free(shell->arriving);
	shell->arriving = NULL;
}

void shell__on_tokens(struct shell *shell, struct conductor_node_id node,
		      const struct codec_tokens *tokens)
{
	shell__step(shell, &(struct conductor_event){ .kind = EVENT_MEASURED,
						      .node = node,
						      .ref = tokens->ref,
						      .measured = &tokens->measured });
	for (uint32_t i = 0; i < tokens->run_count; i++)
		run_step(shell, node, &tokens->ref, &tokens->runs[i]);
}

static void ids_reserve(struct shell_choice *choice, uint32_t count, uint32_t count_max)
{
	if (count <= choice->capacity)
		return;
	uint32_t capacity = MIN(MAX(count, MAX(2 * choice->capacity, 64)), count_max);
	uint32_t *ids = realloc(choice->ids, capacity * sizeof *ids);
	CHECK(ids);
	choice->ids = ids;
	choice->capacity = capacity;
}

void shell__do_keep(struct shell *shell, const struct conductor_action *action)
{
	struct shell_request *request = request_find(shell, action->request);
	struct shell_run *run = shell->arriving;

	CHECK(request && run && run->position == action->position);
	shell->arriving = NULL;
	struct shell_choice *choice = &request->choices[action->choice];
	ids_reserve(choice, action->position + action->count, request->spec->max_tokens);
	for (uint32_t i = 0; i < action->count; i++)
		choice->ids[action->position + i] = run->message->tokens[i].id;
	choice->count = MAX(choice->count, action->position + action->count);
	/* Only a first token ever comes after others, so the walk is short. */
	struct list *at = choice->runs.prev;
	while (at != &choice->runs &&
	       list_entry(at, struct shell_run, link)->position > run->position)
		at = at->prev;
	list_insert_after(&run->link, at);
}

void shell__do_deliver(struct shell *shell, const struct conductor_action *action)
{
	struct shell_request *request = request_find(shell, action->request);

	CHECK(request);
	struct shell_choice *choice = &request->choices[action->choice];
	uint32_t position = action->position;
	while (!list_empty(&choice->runs)) {
		struct shell_run *run = list_entry(choice->runs.next, struct shell_run, link);
		struct bridge_message *message = run->message;
		CHECK(run->position == position);
		position += message->token_count;
		list_remove(&run->link);
		free(run);
		message->cached_tokens = action->cached_tokens;
		if (list_empty(&choice->runs)) {
			message->finish = (enum request_finish)action->finish;
			message->stopped_by_id = action->has_stop_id;
			message->stop_id = action->stop_id;
		}
		shell__to_front(shell, request->front, message);
	}
	CHECK(position == action->position + action->count);
}

void shell__do_fail(struct shell *shell, const struct conductor_action *action)
{
	struct shell_request *request = request_find(shell, action->request);

	CHECK(request);
	log_warning("request %s ends with %d: %s", request->spec->name, action->status, action->text);
	fail_message(shell, request->front, action->request, action->status, action->text);
}

void shell__do_end(struct shell *shell, const struct conductor_action *action)
{
	struct shell_request *request = request_find(shell, action->request);

	CHECK(request);
	(void)map_remove(&shell->requests, action->request);
	list_remove(&request->link);
	request_unmake(request);
	atomic_fetch_sub(&shell->bridge->requests_open, 1);
}

/* ---- to p ---- */

/* Tokens past what is delivered belong to the placement that is over. */
static void choices_rewind(struct shell_request *request, const struct conductor_action *action)
{
	for (uint32_t i = 0; i < request->spec->choice_count; i++) {
		if (!(action->choices[i / 64] >> (i % 64) & 1))
			continue;
		runs_drop(&request->choices[i]);
		request->choices[i].count = action->position;
	}
}

static void prefill_output(const struct shell_request *request,
			   const struct conductor_action *action, struct codec_prefill *prefill)
{
	if (!action->position)
		return;
	for (uint32_t i = 0; i < request->spec->choice_count; i++)
		if (action->choices[i / 64] >> (i % 64) & 1)
			prefill->output = request->choices[i].ids;
	prefill->output_count = action->position;
}

void shell__do_prefill(struct shell *shell, const struct conductor_action *action)
{
	struct shell_request *request = request_find(shell, action->request);

	CHECK(request);
	const struct request_spec *spec = request->spec;
	struct shell_conn *decode = shell__member(shell, action->peer);
	struct codec_prefill prefill = {
		.ref = action->ref,
		.dispatch = action->dispatch,
		.model = shell->config.models[spec->model].name,
		.trace = spec->name,
		.temperature = spec->temperature,
		.top_p = spec->top_p,
		.min_p = spec->min_p,
		.top_k = spec->top_k,
		.top_logprobs = spec->top_logprobs,
		.max_tokens = spec->max_tokens,
		.min_tokens = spec->min_tokens,
		.seed = spec->seed,
		.want_logprobs = spec->want_logprobs,
		.ignore_eos = spec->ignore_eos,
		.stop_ids = spec->stop_ids,
		.stop_id_count = spec->stop_id_count,
		.prompt = spec->prompt,
		.prompt_count = spec->prompt_count,
		.choices = action->choices,
		.root_key = spec->root_key,
		.priority = spec->priority,
	};

	choices_rewind(request, action);
	prefill_output(request, action, &prefill);
	if (decode) {
		prefill.decode_node = decode->name;
		prefill.decode_incarnation = decode->hello.incarnation;
		prefill.decode_host = decode->peer_host;
		prefill.decode_port = decode->hello.peer_port;
		prefill.decode_transfer = decode->transfer;
		prefill.decode_transfer_bytes = decode->hello.transfer_bytes;
	}
	CHECK(codec_write_prefill(&shell->out, &prefill) == 0);
	shell__send(shell, action->node, FRAME_PREFILL);
}
