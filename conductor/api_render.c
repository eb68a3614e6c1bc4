/* Tokens into the JSON that clients read: whole answers and the events of a stream. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "conductor/front_private.h"
#include "conductor/text.h"

void api_render_head(struct api_request *request)
{
	const char *object = request->kind == API_COMPLETION ? "text_completion" :
			     request->stream		     ? "chat.completion.chunk" :
							       "chat.completion";
	struct buf *head = &request->head;
	buf_append_text(head, "{\"id\":");
	text_json_cstr(head, request->name);
	buf_printf(head, ",\"object\":\"%s\",\"created\":%llu,\"model\":", object,
		   (unsigned long long)request->created_s);
	text_json_cstr(head, request->model->names[0]);
}

void api_piece(const struct api_request *request, const struct api_choice *choice,
	       uint64_t position, uint32_t id, bool is_stop, struct buf *out)
{
	const struct tokenizer *tokenizer = model_tokenizer(request->model->model);
	size_t before = out->bytes;
	if (is_stop && !request->include_stop)
		return;
	tokenizer_piece(tokenizer, id, !request->skip_special, out);
	/* A SentencePiece answer begins with a space that belongs to no word before it. */
	if (!position && request->kind == API_CHAT && tokenizer_is_spm(tokenizer) &&
	    out->bytes > before && out->data[before] == ' ') {
		memmove(out->data + before, out->data + before + 1, out->bytes - before);
		out->bytes--;
	}
}

/* ---- logprobs ---- */

static void number(struct buf *out, float logprob)
{
	/* JSON has no infinity; vLLM writes this in its place. */
	buf_printf(out, "%.7g", isfinite(logprob) ? (double)logprob : -9999.0);
}

static void bytes_list(struct buf *out, const char *text, size_t bytes)
{
	buf_append(out, "[", 1);
	for (size_t i = 0; i < bytes; i++)
		buf_printf(out, "%s%u", i ? "," : "", (unsigned char)text[i]);
	buf_append(out, "]", 1);
}

/* @shown: the bytes that the token has in the text: none for a hidden special token. */
static void chat_entry(struct buf *out, const struct buf *name, const struct buf *shown,
		       float logprob)
{
	buf_append_text(out, "{\"token\":");
	text_json(out, name->data ? name->data : "", name->bytes);
	buf_append_text(out, ",\"logprob\":");
	number(out, logprob);
	buf_append_text(out, ",\"bytes\":");
	bytes_list(out, shown->data ? shown->data : "", shown->bytes);
}

static void chat_logprob(const struct api_request *request, struct api_choice *choice, uint32_t at,
			 const struct buf *shown)
{
	const struct tokenizer *tokenizer = model_tokenizer(request->model->model);
	struct buf name, *out = &choice->log;
	uint32_t k = request->top_logprobs;
	buf_init(&name, 0);
	tokenizer_piece(tokenizer, choice->ids[at], true, &name);
	if (out->bytes)
		buf_append(out, ",", 1);
	chat_entry(out, shown->bytes ? shown : &name, shown, choice->logprobs[at]);
	buf_append_text(out, ",\"top_logprobs\":[");
	for (uint32_t i = 0; k && i < choice->top_counts[at]; i++) {
		buf_clear(&name);
		tokenizer_piece(tokenizer, choice->top_ids[(size_t)at * k + i], true, &name);
		if (i)
			buf_append(out, ",", 1);
		chat_entry(out, &name, &name, choice->top_logprobs[(size_t)at * k + i]);
		buf_append(out, "}", 1);
	}
	buf_append_text(out, "]}");
	buf_fini(&name);
}

/* One member of a completion's top_logprobs object; two tokens of one text would be one key, of
 * which the likelier stays. */
static void top_member(struct buf *out, size_t object_at, const struct buf *name, float logprob)
{
	struct buf key;
	buf_init(&key, 0);
	text_json(&key, name->data ? name->data : "", name->bytes);
	buf_append(&key, ":", 1);
	bool first = out->bytes == object_at + 1;
	bool seen = !key.failed && !out->failed &&
		    memmem(out->data + object_at, out->bytes - object_at, key.data, key.bytes);
	if (!seen) {
		if (!first)
			buf_append(out, ",", 1);
		buf_append(out, key.data, key.bytes);
		number(out, logprob);
	}
	buf_fini(&key);
}

static void completion_logprob(const struct api_request *request, struct api_choice *choice,
			       uint32_t at, const struct buf *shown)
{
	const struct tokenizer *tokenizer = model_tokenizer(request->model->model);
	uint32_t k = request->top_logprobs;
	const char *comma = choice->log.bytes ? "," : "";
	struct buf name;
	buf_append_text(&choice->log, comma);
	text_json(&choice->log, shown->data ? shown->data : "", shown->bytes);
	buf_append_text(&choice->values, comma);
	number(&choice->values, choice->logprobs[at]);
	buf_printf(&choice->offsets, "%s%llu", comma, (unsigned long long)choice->text_offset);
	choice->text_offset += text_utf8_count(shown->data ? shown->data : "", shown->bytes);
	buf_append_text(&choice->tops, comma);
	size_t object_at = choice->tops.bytes;
	buf_append(&choice->tops, "{", 1);
	buf_init(&name, 0);
	for (uint32_t i = 0; k && i < choice->top_counts[at]; i++) {
		buf_clear(&name);
		tokenizer_piece(tokenizer, choice->top_ids[(size_t)at * k + i], true, &name);
		top_member(&choice->tops, object_at, &name, choice->top_logprobs[(size_t)at * k + i]);
	}
	buf_clear(&name);
	tokenizer_piece(tokenizer, choice->ids[at], true, &name);
	top_member(&choice->tops, object_at, &name, choice->logprobs[at]);
	buf_append(&choice->tops, "}", 1);
	buf_fini(&name);
}

static void put_logprobs(const struct api_request *request, struct api_choice *choice,
			 struct buf *out)
{
	if (!request->want_logprobs) {
		buf_append_text(out, ",\"logprobs\":null");
		return;
	}
#define LIST(buf) (buf).data ? (buf).data : "", (buf).bytes
	if (request->kind == API_CHAT) {
		buf_append_text(out, ",\"logprobs\":{\"content\":[");
		buf_append(out, LIST(choice->log));
		buf_append_text(out, "]}");
	} else {
		buf_append_text(out, ",\"logprobs\":{\"tokens\":[");
		buf_append(out, LIST(choice->log));
		buf_append_text(out, "],\"token_logprobs\":[");
		buf_append(out, LIST(choice->values));
		buf_append_text(out, "],\"top_logprobs\":[");
		buf_append(out, LIST(choice->tops));
		buf_append_text(out, "],\"text_offset\":[");
		buf_append(out, LIST(choice->offsets));
		buf_append_text(out, "]}");
	}
#undef LIST
	buf_clear(&choice->log);
	buf_clear(&choice->values);
	buf_clear(&choice->tops);
	buf_clear(&choice->offsets);
}

/* ---- choices ---- */

/* Turns up to @count pending tokens into bytes in the tail, and their logprobs. */
static void choice_advance(const struct api_request *request, struct api_choice *choice,
			   uint32_t count)
{
	struct buf *piece = &request->front->scratch;
	for (; count && choice->pending_first < choice->pending_count; count--) {
		uint32_t at = choice->pending_first++;
		bool is_stop = choice->ends_with_stop_id && choice->done &&
			       choice->pending_first == choice->pending_count;
		buf_clear(piece);
		api_piece(request, choice, choice->rendered_tokens++, choice->ids[at], is_stop,
			  piece);
		buf_append(&choice->tail, piece->data, piece->bytes);
		if (request->want_logprobs && request->kind == API_CHAT)
			chat_logprob(request, choice, at, piece);
		else if (request->want_logprobs)
			completion_logprob(request, choice, at, piece);
		if (request->return_token_ids)
			buf_printf(&choice->token_ids, "%s%u", choice->token_ids.bytes ? "," : "",
				   choice->ids[at]);
	}
}

/* Bytes at the head of the tail that may leave now. */
static size_t choice_ready(const struct api_request *request, const struct api_choice *choice)
{
	uint64_t limit = choice->stop.safe;
	bool all = choice->pending_first == choice->pending_count;
	if (choice->stop.matched)
		limit = request->include_stop ? choice->stop.cut_end : choice->stop.cut;
	else if (choice->done)
		limit = choice->stop.total;
	if (limit <= choice->emitted)
		return 0;
	size_t ready = (size_t)MIN((uint64_t)choice->tail.bytes, limit - choice->emitted);
	/* More tokens wait: what this chunk ends with may be the start of a character. */
	if (!all)
		ready -= text_utf8_unfinished(choice->tail.data, ready);
	return ready;
}

static void put_finish(const struct api_request *request, const struct api_choice *choice,
		       bool finished, struct buf *out)
{
	if (!finished) {
		buf_append_text(out, ",\"finish_reason\":null");
		return;
	}
	buf_printf(out, ",\"finish_reason\":\"%s\",\"stop_reason\":",
		   choice->finish == FINISH_STOP ? "stop" : "length");
	bool by_user = false;
	for (uint32_t i = 0; i < request->user_stop_id_count; i++)
		by_user = by_user || request->user_stop_ids[i] == choice->stop_id;
	if (choice->reason == REASON_TEXT) {
		const struct stop_text *stop = &request->stops.texts[choice->stop.which];
		text_json(out, stop->text, stop->bytes);
	} else if (choice->reason == REASON_ID && by_user) {
		buf_printf(out, "%u", choice->stop_id);
	} else {
		buf_append_text(out, "null"); /* end of generation, or the length */
	}
}

static void put_ids(struct buf *out, const char *name, const uint32_t ids[], uint32_t count)
{
	buf_printf(out, ",\"%s\":[", name);
	for (uint32_t i = 0; i < count; i++)
		buf_printf(out, "%s%u", i ? "," : "", ids[i]);
	buf_append(out, "]", 1);
}

static void put_token_ids(const struct api_part *part, struct api_choice *choice, bool first,
			  struct buf *out)
{
	if (!part->request->return_token_ids)
		return;
	buf_printf(out, ",\"token_ids\":[%s]", choice->token_ids.data ? choice->token_ids.data : "");
	buf_clear(&choice->token_ids);
	if (part->request->kind == API_COMPLETION && first)
		put_ids(out, "prompt_token_ids", part->prompt, part->prompt_count);
}

static void usage_object(uint64_t prompt, uint64_t completion, uint64_t cached, struct buf *out)
{
	buf_printf(out,
		   "{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu,"
		   "\"prompt_tokens_details\":{\"cached_tokens\":%llu}}",
		   (unsigned long long)prompt, (unsigned long long)completion,
		   (unsigned long long)(prompt + completion), (unsigned long long)cached);
}

static void put_usage(const struct api_request *request, struct buf *out)
{
	uint64_t prompt = 0, completion = 0, cached = 0;
	for (uint32_t i = 0; i < request->part_count; i++) {
		const struct api_part *part = &request->parts[i];
		prompt += part->prompt_count;
		cached += part->cached_tokens;
		for (uint32_t c = 0; c < request->n; c++)
			completion += part->choices[c].completion_tokens;
	}
	buf_append_text(out, ",\"usage\":");
	usage_object(prompt, completion, cached, out);
}

/* ---- whole answers ---- */

static void whole_choice(const struct api_part *part, uint32_t index, struct buf *out)
{
	const struct api_request *request = part->request;
	struct api_choice *choice = &part->choices[index];
	choice_advance(request, choice, UINT32_MAX);
	size_t ready = choice_ready(request, choice);
	const char *text = choice->tail.data ? choice->tail.data : "";
	buf_printf(out, "{\"index\":%u,", part->index * request->n + index);
	buf_append_text(out, request->kind == API_CHAT ?
				     "\"message\":{\"role\":\"assistant\",\"content\":" :
				     "\"text\":");
	text_json(out, text, ready);
	if (request->kind == API_CHAT)
		buf_append_text(out, ",\"refusal\":null}");
	put_logprobs(request, choice, out);
	put_finish(request, choice, true, out);
	put_token_ids(part, choice, true, out);
	buf_append(out, "}", 1);
	out->failed = out->failed || choice->tail.failed || choice->log.failed;
}

void api_render_whole(struct api_request *request, struct buf *out)
{
	buf_append(out, request->head.data, request->head.bytes);
	buf_append_text(out, ",\"choices\":[");
	for (uint32_t i = 0; i < request->part_count; i++)
		for (uint32_t c = 0; c < request->n; c++) {
			if (i || c)
				buf_append(out, ",", 1);
			whole_choice(&request->parts[i], c, out);
		}
	buf_append(out, "]", 1);
	put_usage(request, out);
	if (request->return_token_ids && request->kind == API_CHAT)
		put_ids(out, "prompt_token_ids", request->parts[0].prompt,
			request->parts[0].prompt_count);
	buf_append(out, "}", 1);
}

/* ---- streams ---- */

static void event_begin(const struct api_request *request, struct buf *out)
{
	buf_append_text(out, "data: ");
	buf_append(out, request->head.data, request->head.bytes);
	buf_append_text(out, ",\"choices\":[");
}

static void event_end(const struct api_part *part, const struct api_choice *choice,
		      bool with_prompt, struct buf *out)
{
	const struct api_request *request = part->request;
	buf_append(out, "]", 1);
	if (with_prompt && request->return_token_ids)
		put_ids(out, "prompt_token_ids", part->prompt, part->prompt_count);
	if (request->continuous_usage) {
		buf_append_text(out, ",\"usage\":");
		usage_object(part->prompt_count, choice->rendered_tokens, part->cached_tokens, out);
	} else if (request->include_usage) {
		buf_append_text(out, ",\"usage\":null");
	}
	buf_append_text(out, "}\n\n");
}

static void role_event(struct api_part *part, uint32_t index, struct buf *out)
{
	const struct api_request *request = part->request;
	event_begin(request, out);
	buf_printf(out,
		   "{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
		   "\"logprobs\":null,\"finish_reason\":null}",
		   part->index * request->n + index);
	event_end(part, &part->choices[index], true, out);
}

static void text_event(struct api_part *part, uint32_t index, size_t ready, bool first,
		       bool finished, struct buf *out)
{
	const struct api_request *request = part->request;
	struct api_choice *choice = &part->choices[index];
	event_begin(request, out);
	buf_printf(out, "{\"index\":%u,", part->index * request->n + index);
	if (request->kind == API_CHAT && !ready) {
		buf_append_text(out, "\"delta\":{}");
	} else {
		buf_append_text(out, request->kind == API_CHAT ? "\"delta\":{\"content\":" :
								 "\"text\":");
		text_json(out, choice->tail.data ? choice->tail.data : "", ready);
		if (request->kind == API_CHAT)
			buf_append(out, "}", 1);
	}
	put_logprobs(request, choice, out);
	put_finish(request, choice, finished, out);
	put_token_ids(part, choice, first, out);
	buf_append(out, "}", 1);
	event_end(part, choice, false, out);
	out->failed = out->failed || choice->tail.failed || choice->log.failed;
	buf_consume(&choice->tail, ready);
	choice->emitted += ready;
	choice->finish_sent = finished;
}

/* Return: true when all of the choice is out. */
static bool choice_events(struct api_part *part, uint32_t index, struct buf *out)
{
	struct api_request *request = part->request;
	struct api_choice *choice = &part->choices[index];
	if (choice->finish_sent)
		return true;
	if (!choice->completion_tokens && !choice->done)
		return false; /* nothing has come */
	bool first = !choice->role_sent;
	if (first && request->kind == API_CHAT)
		role_event(part, index, out);
	choice->role_sent = true;
	while (http_queued_bytes(request->exchange) + out->bytes < API_QUEUED_MAX) {
		choice_advance(request, choice, API_CHUNK_TOKENS);
		size_t ready = choice_ready(request, choice);
		bool finished = choice->done && choice->pending_first == choice->pending_count;
		if (!ready && !finished && choice->pending_first < choice->pending_count)
			continue; /* all of it held back: go on to the next tokens */
		if (!ready && !finished)
			return false;
		text_event(part, index, ready, first, finished, out);
		first = false;
		if (finished || choice->pending_first == choice->pending_count)
			return finished;
	}
	return false;
}

bool api_render_stream(struct api_request *request, struct buf *out)
{
	bool all = true;
	for (uint32_t i = 0; i < request->part_count; i++)
		for (uint32_t c = 0; c < request->n; c++)
			all = choice_events(&request->parts[i], c, out) && all;
	if (!all)
		return false;
	if (request->include_usage) {
		event_begin(request, out);
		buf_append(out, "]", 1);
		put_usage(request, out);
		buf_append_text(out, "}\n\n");
	}
	buf_append_text(out, "data: [DONE]\n\n");
	return true;
}

void api_render_error_event(const struct api_error *error, struct buf *out)
{
	buf_append_text(out, "data: ");
	api_error_render(error, out);
	buf_append_text(out, "\n\n");
}
