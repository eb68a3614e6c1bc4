#include "node/codec.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "proto/arena.h"
#include "proto/baton.pb-c.h"
#include "proto/frame.h"

/* A 4 MiB body of packed varints unpacks to at most four times itself; and as much again for the
 * token array that joins prompt and output. */
#define ARENA_BYTES (40u << 20)

struct node_codec {
	struct proto_arena arena;
	struct node_codec_limits limits;
};

struct node_codec *node_codec_new(const struct node_codec_limits *limits)
{
	struct node_codec *codec = calloc(1, sizeof *codec);
	if (!codec)
		return NULL;
	codec->limits = *limits;
	if (proto_arena_init(&codec->arena, ARENA_BYTES) < 0) {
		free(codec);
		return NULL;
	}
	return codec;
}

void node_codec_free(struct node_codec *codec)
{
	if (!codec)
		return;
	proto_arena_fini(&codec->arena);
	free(codec);
}

/* ---- reading ---- */

#define READ(codec, descriptor, body, bytes) \
	proto_arena_unpack(&(codec)->arena, &descriptor, body, bytes)

static bool text_copy(char *target, size_t capacity, const char *text)
{
	return snprintf(target, capacity, "%s", text ? text : "") < (int)capacity;
}

static const char *text_or_empty(const char *text)
{
	return text ? text : "";
}

static void read_ref(const Baton__Ref *in, struct node_ref *ret_ref)
{
	*ret_ref = (struct node_ref){ in->conductor, in->request, in->epoch };
}

static bool ids_fit(const struct node_codec *codec, const uint32_t ids[], size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (ids[i] >= codec->limits.vocab_count)
			return false;
	return true;
}

static bool read_sampling(const struct node_codec *codec, const Baton__Sampling *in,
			  struct node_sampling *ret)
{
	*ret = (struct node_sampling){
		.temperature = in->temperature,
		.top_p = in->top_p,
		.min_p = in->min_p,
		.top_k = in->top_k,
		.seed = in->seed,
		.top_logprobs = in->top_logprobs,
		.want_logprobs = in->logprobs,
		.ignore_eos = in->ignore_eos,
		.max_tokens = in->max_tokens,
		.min_tokens = in->min_tokens,
		.stop_id_count = (uint32_t)in->n_stop_ids,
	};
	/* Written so that NaN fails too. */
	if (!(in->temperature >= 0 && in->temperature <= 1e6f) || !(in->top_p >= 0 && in->top_p <= 1) ||
	    !(in->min_p >= 0 && in->min_p <= 1) || in->top_logprobs > SAMPLE_TOP_MAX || !in->max_tokens ||
	    in->n_stop_ids > NODE_STOP_IDS_MAX || !ids_fit(codec, in->stop_ids, in->n_stop_ids))
		return false;
	if (in->n_stop_ids)
		memcpy(ret->stop_ids, in->stop_ids, in->n_stop_ids * sizeof *in->stop_ids);
	return true;
}

/* What Prefill and Reserve have in common. */
struct request_fields {
	const Baton__Ref *ref;
	const char *model;
	const Baton__Sampling *sampling;
	const uint32_t *prompt, *output, *choices;
	size_t prompt_count, output_count, choice_count;
	ProtobufCBinaryData root_key;
	int32_t priority;
};

static bool read_choices(const struct request_fields *in, struct node_request *ret)
{
	if (!in->choice_count || in->choice_count > NODE_CHOICES_MAX || (in->output_count && in->choice_count != 1))
		return false;
	for (size_t i = 0; i < in->choice_count; i++) {
		/* Rising, so no choice comes twice. */
		if (in->choices[i] >= NODE_CHOICES_MAX || (i && in->choices[i] <= in->choices[i - 1]))
			return false;
		ret->choices[i] = in->choices[i];
	}
	ret->choice_count = (uint32_t)in->choice_count;
	return true;
}

static int read_request(struct node_codec *codec, const struct request_fields *in, struct node_request *ret)
{
	size_t count = in->prompt_count + in->output_count;

	read_ref(in->ref, &ret->ref);
	ret->priority = in->priority;
	if (!in->prompt_count || count > codec->limits.max_model_len || in->root_key.len != sizeof ret->root_key.bytes ||
	    !ids_fit(codec, in->prompt, in->prompt_count) || !ids_fit(codec, in->output, in->output_count) ||
	    !read_sampling(codec, in->sampling, &ret->sampling) || !read_choices(in, ret) ||
	    in->output_count >= in->sampling->max_tokens || !text_copy(ret->model, sizeof ret->model, in->model))
		return BATON_EPROTOCOL;
	memcpy(ret->root_key.bytes, in->root_key.data, sizeof ret->root_key.bytes);
	ret->token_count = (uint32_t)count;
	ret->prompt_count = (uint32_t)in->prompt_count;
	ret->tokens = in->prompt;
	if (in->output_count) {
		uint32_t *tokens = proto_arena_take(&codec->arena, count * sizeof *tokens);
		if (!tokens)
			return -EMSGSIZE;
		memcpy(tokens, in->prompt, in->prompt_count * sizeof *tokens);
		memcpy(tokens + in->prompt_count, in->output, in->output_count * sizeof *tokens);
		ret->tokens = tokens;
	}
	return 0;
}

static int read_prefill(struct node_codec *codec, const uint8_t *body, uint32_t bytes, struct node_event *event)
{
	const Baton__Prefill *in = READ(codec, baton__prefill__descriptor, body, bytes);
	if (!in)
		return BATON_EPROTOCOL;
	const struct request_fields fields = {
		in->ref, in->model, in->sampling, in->prompt, in->output, in->choices,
		in->n_prompt, in->n_output, in->n_choices, in->root_key, in->priority,
	};
	struct node_peer *decode = &event->prefill.decode;
	event->kind = NODE_PREFILL;
	event->prefill.dispatch = in->dispatch;
	event->prefill.ttft_ms = in->ttft_ms;
	event->prefill.trace = text_or_empty(in->trace);
	event->prefill.has_decode = in->decode_node != NULL;
	if (in->decode_node) {
		if (!in->has_decode_incarnation || !in->decode_host || !in->decode_port || in->decode_port > 65535 ||
		    in->decode_transfer.len > sizeof decode->transfer ||
		    !text_copy(decode->name, sizeof decode->name, in->decode_node) ||
		    !text_copy(decode->host, sizeof decode->host, in->decode_host))
			return BATON_EPROTOCOL;
		decode->incarnation = in->decode_incarnation;
		decode->port = in->decode_port;
		decode->transfer_bytes = (uint32_t)in->decode_transfer.len;
		if (in->decode_transfer.len)
			memcpy(decode->transfer, in->decode_transfer.data, in->decode_transfer.len);
	}
	return read_request(codec, &fields, &event->prefill.request);
}

static int read_reserve(struct node_codec *codec, const uint8_t *body, uint32_t bytes, struct node_event *event)
{
	const Baton__Reserve *in = READ(codec, baton__reserve__descriptor, body, bytes);
	if (!in)
		return BATON_EPROTOCOL;
	const struct request_fields fields = {
		in->ref, in->model, in->sampling, in->prompt, in->output, in->choices,
		in->n_prompt, in->n_output, in->n_choices, in->root_key, in->priority,
	};
	event->kind = NODE_RESERVE;
	event->reserve.source = in->source;
	event->reserve.source_node = in->source_node;
	event->reserve.target = in->target;
	event->reserve.predicted_tokens = in->predicted_tokens;
	event->reserve.remaining_ms = in->remaining_ms;
	event->reserve.local = false;
	return read_request(codec, &fields, &event->reserve.request);
}

static int read_reserve_answer(struct node_codec *codec, const uint8_t *body, uint32_t bytes, struct node_event *event)
{
	const Baton__ReserveAnswer *in = READ(codec, baton__reserve_answer__descriptor, body, bytes);
	if (!in)
		return BATON_EPROTOCOL;
	event->kind = NODE_RESERVE_ANSWER;
	read_ref(in->ref, &event->answer.ref);
	event->answer.accepted = in->accepted;
	event->answer.cached_blocks = in->cached_blocks;
	event->answer.reason = text_or_empty(in->reason);
	event->answer.ticket = in->ticket.data;
	event->answer.ticket_bytes = (uint32_t)in->ticket.len;
	return 0;
}

static int read_first_tokens(struct node_codec *codec, const uint8_t *body, uint32_t bytes, struct node_event *event)
{
	const Baton__FirstTokens *in = READ(codec, baton__first_tokens__descriptor, body, bytes);
	if (!in || in->n_tokens > NODE_CHOICES_MAX)
		return BATON_EPROTOCOL;
	struct node_first_token *tokens = proto_arena_take(&codec->arena, (in->n_tokens + 1) * sizeof *tokens);
	if (!tokens)
		return -EMSGSIZE;
	for (size_t i = 0; i < in->n_tokens; i++) {
		tokens[i] = (struct node_first_token){ in->tokens[i]->choice, in->tokens[i]->token, in->tokens[i]->ended };
		if (tokens[i].token >= codec->limits.vocab_count || tokens[i].choice >= NODE_CHOICES_MAX)
			return BATON_EPROTOCOL;
	}
	event->kind = NODE_FIRST_TOKENS;
	read_ref(in->ref, &event->first.ref);
	event->first.tokens = tokens;
	event->first.token_count = (uint32_t)in->n_tokens;
	return 0;
}

static int read_release(struct node_codec *codec, const uint8_t *body, uint32_t bytes, struct node_event *event)
{
	const Baton__Release *in = READ(codec, baton__release__descriptor, body, bytes);
	if (!in)
		return BATON_EPROTOCOL;
	event->kind = NODE_RELEASE;
	read_ref(in->ref, &event->release.ref);
	event->release.one_choice = in->has_choice;
	event->release.choice = in->choice;
	return 0;
}

int node_codec_read(struct node_codec *codec, uint16_t type, const uint8_t *body, uint32_t bytes,
		    struct node_event *ret_event)
{
	*ret_event = (struct node_event){ 0 };
	switch (type) {
	case FRAME_PREFILL:
		return read_prefill(codec, body, bytes, ret_event);
	case FRAME_RESERVE:
		return read_reserve(codec, body, bytes, ret_event);
	case FRAME_RESERVE_ANSWER:
		return read_reserve_answer(codec, body, bytes, ret_event);
	case FRAME_FIRST_TOKENS:
		return read_first_tokens(codec, body, bytes, ret_event);
	case FRAME_RELEASE:
		return read_release(codec, body, bytes, ret_event);
	default:
		return BATON_EPROTOCOL;
	}
}

int node_codec_read_hello(struct node_codec *codec, const uint8_t *body, uint32_t bytes, struct node_hello *ret)
{
	const Baton__Hello *in = READ(codec, baton__hello__descriptor, body, bytes);
	if (!in || in->kv_format.len != 32 || in->transfer.len > sizeof ret->transfer || !*in->node ||
	    strlen(in->node) >= NODE_NAME_BYTES || !in->role || in->role > NODE_ROLE_BOTH)
		return BATON_EPROTOCOL;
	if (in->version_min > FRAME_VERSION_MAX || in->version_max < FRAME_VERSION_MIN)
		return BATON_EVERSION;
	*ret = (struct node_hello){
		.node = in->node,
		.incarnation = in->incarnation,
		.role = (enum node_role)in->role,
		.model = text_or_empty(in->model),
		.kv_format = in->kv_format.data,
		.numerics = text_or_empty(in->numerics),
		.block_tokens = in->block_tokens,
		.block_bytes = in->block_bytes,
		.blocks_total = in->blocks_total,
		.max_num_seqs = in->max_num_seqs,
		.max_num_batched_tokens = in->max_num_batched_tokens,
		.max_model_len = in->max_model_len,
		.peer_host = text_or_empty(in->peer_host),
		.peer_port = in->peer_port,
		.transfer_bytes = (uint32_t)in->transfer.len,
		.admin_host = "",
	};
	if (in->transfer.len)
		memcpy(ret->transfer, in->transfer.data, in->transfer.len);
	return 0;
}

int node_codec_read_welcome(struct node_codec *codec, const uint8_t *body, uint32_t bytes, struct node_welcome *ret)
{
	const Baton__Welcome *in = READ(codec, baton__welcome__descriptor, body, bytes);
	if (!in)
		return BATON_EPROTOCOL;
	*ret = (struct node_welcome){ in->accepted, text_or_empty(in->reason), in->incarnation,
				      text_or_empty(in->node), in->heartbeat_ms, in->lease_ms };
	return 0;
}

int node_codec_read_command(struct node_codec *codec, const uint8_t *body, uint32_t bytes, struct node_command *ret)
{
	const Baton__Command *in = READ(codec, baton__command__descriptor, body, bytes);
	if (!in || in->kind < NODE_COMMAND_DRAIN || in->kind > NODE_COMMAND_ROLE || in->role > NODE_ROLE_BOTH)
		return BATON_EPROTOCOL;
	*ret = (struct node_command){ (enum node_command_kind)in->kind, (enum node_role)in->role };
	return 0;
}

/* ---- writing ---- */

static void pack(struct buf *out, const void *message)
{
	size_t bytes = protobuf_c_message_get_packed_size(message);
	uint8_t *room = buf_reserve(out, bytes);
	if (room)
		out->bytes += protobuf_c_message_pack(message, room);
}

static Baton__Ref ref_make(const struct node_ref *ref)
{
	Baton__Ref out = BATON__REF__INIT;
	out.conductor = ref->conductor;
	out.request = ref->request;
	out.epoch = ref->epoch;
	return out;
}

static ProtobufCBinaryData binary(const void *data, size_t bytes)
{
	return (ProtobufCBinaryData){ bytes, (uint8_t *)data };
}

static Baton__Sampling sampling_make(const struct node_sampling *s)
{
	Baton__Sampling out = BATON__SAMPLING__INIT;
	out.has_temperature = out.has_top_p = out.has_min_p = out.has_top_k = true;
	out.temperature = s->temperature;
	out.top_p = s->top_p;
	out.min_p = s->min_p;
	out.top_k = s->top_k;
	out.seed = s->seed;
	out.has_top_logprobs = out.has_logprobs = true;
	out.top_logprobs = s->top_logprobs;
	out.logprobs = s->want_logprobs;
	out.max_tokens = s->max_tokens;
	out.has_min_tokens = out.has_ignore_eos = true;
	out.min_tokens = s->min_tokens;
	out.ignore_eos = s->ignore_eos;
	out.n_stop_ids = s->stop_id_count;
	out.stop_ids = (uint32_t *)s->stop_ids;
	return out;
}

void node_codec_reserve(struct buf *out, const struct node_action *action, uint64_t source, const char *source_node)
{
	const struct node_request *request = action->reserve.request;
	Baton__Reserve message = BATON__RESERVE__INIT;
	Baton__Ref ref = ref_make(&action->ref);
	Baton__Sampling sampling = sampling_make(&request->sampling);
	message.ref = &ref;
	message.source = source;
	message.source_node = (char *)source_node;
	message.target = action->reserve.peer->incarnation;
	message.model = (char *)request->model;
	message.sampling = &sampling;
	message.prompt = (uint32_t *)request->tokens;
	message.n_prompt = request->prompt_count;
	message.output = (uint32_t *)request->tokens + request->prompt_count;
	message.n_output = request->token_count - request->prompt_count;
	message.choices = (uint32_t *)request->choices;
	message.n_choices = request->choice_count;
	message.root_key = binary(request->root_key.bytes, sizeof request->root_key.bytes);
	message.has_priority = true;
	message.priority = request->priority;
	message.predicted_tokens = action->reserve.predicted_tokens;
	pack(out, &message);
}

void node_codec_reserve_answer(struct buf *out, const struct node_ref *node_ref, bool accepted, uint32_t cached_blocks,
			       const char *reason, const uint8_t ticket[], uint32_t ticket_bytes)
{
	Baton__ReserveAnswer message = BATON__RESERVE_ANSWER__INIT;
	Baton__Ref ref = ref_make(node_ref);
	message.ref = &ref;
	message.accepted = accepted;
	message.reason = reason && *reason ? (char *)reason : NULL;
	message.has_cached_blocks = true;
	message.cached_blocks = cached_blocks;
	message.has_ticket = ticket_bytes > 0;
	message.ticket = binary(ticket, ticket_bytes);
	pack(out, &message);
}

void node_codec_first_tokens(struct buf *out, const struct node_action *action)
{
	Baton__FirstTokens message = BATON__FIRST_TOKENS__INIT;
	Baton__Ref ref = ref_make(&action->ref);
	Baton__FirstToken tokens[NODE_CHOICES_MAX], *pointers[NODE_CHOICES_MAX];
	CHECK(action->first.token_count <= NODE_CHOICES_MAX);
	for (uint32_t i = 0; i < action->first.token_count; i++) {
		baton__first_token__init(&tokens[i]);
		tokens[i].choice = action->first.tokens[i].choice;
		tokens[i].token = action->first.tokens[i].token;
		tokens[i].has_ended = true;
		tokens[i].ended = action->first.tokens[i].ended;
		pointers[i] = &tokens[i];
	}
	message.ref = &ref;
	message.tokens = pointers;
	message.n_tokens = action->first.token_count;
	pack(out, &message);
}

void node_codec_release(struct buf *out, const struct node_ref *node_ref)
{
	Baton__Release message = BATON__RELEASE__INIT;
	Baton__Ref ref = ref_make(node_ref);
	message.ref = &ref;
	pack(out, &message);
}

/* One token is one run: a step gives each choice one token. */
struct run_parts {
	Baton__TokenRun run;
	uint32_t id, top_ids[SAMPLE_TOP_MAX];
	float logprob, top_logprobs[SAMPLE_TOP_MAX];
};

static void run_make(struct run_parts *parts, const struct node_token *token, const struct sample_result results[])
{
	Baton__TokenRun *run = &parts->run;
	const struct sample_result *result = &results[token->sample];
	baton__token_run__init(run);
	parts->id = token->token;
	run->choice = token->choice;
	run->position = token->position;
	run->ids = &parts->id;
	run->n_ids = 1;
	run->has_finish = true;
	run->finish = token->finish;
	run->has_stop_id = token->finish == NODE_FINISH_STOP;
	run->stop_id = token->token;
	parts->logprob = result->logprob;
	run->logprobs = &parts->logprob;
	run->n_logprobs = 1;
	memcpy(parts->top_ids, result->top_ids, result->top_count * sizeof parts->top_ids[0]);
	memcpy(parts->top_logprobs, result->top_logprobs, result->top_count * sizeof parts->top_logprobs[0]);
	run->top_ids = parts->top_ids;
	run->top_logprobs = parts->top_logprobs;
	run->n_top_ids = run->n_top_logprobs = result->top_count;
}

void node_codec_tokens(struct buf *out, const struct node_action *action, const struct sample_result results[],
		       uint32_t transport)
{
	Baton__Tokens message = BATON__TOKENS__INIT;
	Baton__Ref ref = ref_make(&action->ref);
	struct run_parts parts[NODE_CHOICES_MAX];
	Baton__TokenRun *runs[NODE_CHOICES_MAX];
	CHECK(action->tokens.count <= NODE_CHOICES_MAX);
	for (uint32_t i = 0; i < action->tokens.count; i++) {
		run_make(&parts[i], &action->tokens.v[i], results);
		runs[i] = &parts[i].run;
	}
	message.ref = &ref;
	message.runs = runs;
	message.n_runs = action->tokens.count;
	message.has_cached_tokens = message.has_prefill_us = message.has_queue_us = action->tokens.has_prefill;
	message.cached_tokens = action->tokens.cached_tokens;
	message.prefill_us = (uint32_t)MIN(action->tokens.prefill_ns / 1000, (uint64_t)UINT32_MAX);
	message.queue_us = (uint32_t)MIN(action->tokens.queue_ns / 1000, (uint64_t)UINT32_MAX);
	message.has_transfer_us = message.has_transfer_bytes = message.has_transport = action->tokens.has_transfer;
	message.transfer_us = (uint32_t)MIN(action->tokens.transfer_ns / 1000, (uint64_t)UINT32_MAX);
	message.transfer_bytes = action->tokens.transfer_bytes;
	message.transport = transport;
	message.has_hidden_permille = action->tokens.has_hidden;
	message.hidden_permille = action->tokens.hidden_permille;
	pack(out, &message);
}

void node_codec_returned(struct buf *out, const struct node_action *action)
{
	Baton__Returned message = BATON__RETURNED__INIT;
	Baton__Ref ref = ref_make(&action->ref);
	message.ref = &ref;
	message.has_choice = action->returned.one_choice;
	message.choice = action->returned.choice;
	message.reason = action->returned.reason;
	message.detail = (char *)action->returned.detail;
	pack(out, &message);
}

void node_codec_hello(struct buf *out, const struct node_hello *hello)
{
	Baton__Hello message = BATON__HELLO__INIT;
	char admin[NODE_HOST_BYTES + 8];
	snprintf(admin, sizeof admin, "%s:%u", text_or_empty(hello->admin_host), hello->admin_port);
	message.version_min = FRAME_VERSION_MIN;
	message.version_max = FRAME_VERSION_MAX;
	message.node = (char *)hello->node;
	message.incarnation = hello->incarnation;
	message.role = hello->role;
	message.model = (char *)hello->model;
	message.has_kv_format = true;
	message.kv_format = binary(hello->kv_format, 32);
	message.numerics = (char *)hello->numerics;
	message.has_block_tokens = message.has_block_bytes = message.has_blocks_total = true;
	message.block_tokens = hello->block_tokens;
	message.block_bytes = hello->block_bytes;
	message.blocks_total = hello->blocks_total;
	message.has_max_num_seqs = message.has_max_num_batched_tokens = message.has_max_model_len = true;
	message.max_num_seqs = hello->max_num_seqs;
	message.max_num_batched_tokens = hello->max_num_batched_tokens;
	message.max_model_len = hello->max_model_len;
	message.peer_host = (char *)hello->peer_host;
	message.has_peer_port = true;
	message.peer_port = hello->peer_port;
	message.has_transfer = true;
	message.transfer = binary(hello->transfer, hello->transfer_bytes);
	message.admin = admin;
	message.build = (char *)BATON_VERSION;
	pack(out, &message);
}

void node_codec_welcome(struct buf *out, const struct node_welcome *welcome)
{
	Baton__Welcome message = BATON__WELCOME__INIT;
	message.accepted = welcome->accepted;
	message.reason = welcome->accepted ? NULL : (char *)welcome->reason;
	message.has_version = true;
	message.version = FRAME_VERSION_MAX;
	message.has_incarnation = true;
	message.incarnation = welcome->incarnation;
	message.node = (char *)welcome->node;
	message.has_heartbeat_ms = message.has_lease_ms = true;
	message.heartbeat_ms = welcome->heartbeat_ms;
	message.lease_ms = welcome->lease_ms;
	pack(out, &message);
}

void node_codec_report(struct buf *out, const struct node_report *report)
{
	Baton__Report message = BATON__REPORT__INIT;
	message.role = report->role;
	message.state = report->state;
	message.dispatches_seen = report->dispatches_seen;
#define FIELD(name, value)                                                                       \
	do {                                                                                     \
		message.has_##name = true;                                                       \
		message.name = (value);                                                          \
	} while (0)
	FIELD(sequence, report->sequence);
	FIELD(running, report->load.running);
	FIELD(waiting, report->load.waiting);
	FIELD(queued_tokens, report->load.queued_tokens);
	FIELD(running_tokens, report->load.running_tokens);
	FIELD(reserved_tokens, report->load.reserved_tokens);
	FIELD(blocks_free, report->blocks[KV_FREE]);
	FIELD(blocks_cached, report->blocks[KV_CACHED]);
	FIELD(blocks_used, report->blocks[KV_USED]);
	FIELD(blocks_reserved, report->blocks[KV_RESERVED]);
	FIELD(blocks_quarantined, report->blocks[KV_QUARANTINED]);
	FIELD(transfer_bytes_shm, report->landed_shm);
	FIELD(transfer_bytes_tcp, report->landed_tcp);
	FIELD(transfer_bytes_rdma, report->landed_rdma);
	FIELD(transfer_bytes_sent, report->sent);
	FIELD(slices_corrupt, report->slices_corrupt);
	FIELD(preemptions, report->load.preemptions);
	FIELD(prefix_queries, report->load.prefix_queries);
	FIELD(prefix_hits, report->load.prefix_hits);
	FIELD(prefill_tokens, report->load.prefill_tokens);
	FIELD(decode_tokens, report->load.decode_tokens);
	FIELD(frames_refused, report->frames_refused);
#undef FIELD
	pack(out, &message);
}
