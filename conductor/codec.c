#include "conductor/codec.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "baton.pb-c.h"
#include "frame.h"

/* A frame of tokens is a few kilobytes. Tiny submessages cost fifty times their wire size once
 * unpacked, so the arena, not the frame's length, bounds what a hostile frame can take. */
#define ARENA_BYTES (8u << 20)

struct codec {
	ProtobufCAllocator allocator;
	uint8_t *arena;
	size_t used;
	struct codec_run runs[4 * CONDUCTOR_CHOICES_MAX];
};

static void *arena_alloc(void *context, size_t bytes)
{
	struct codec *codec = context;
	size_t at = ALIGN_UP(codec->used, (size_t)16);

	if (at > ARENA_BYTES || bytes > ARENA_BYTES - at)
		return NULL;
	codec->used = at + bytes;
	return codec->arena + at;
}

static void arena_free(void *context, void *pointer)
{
	(void)context;
	(void)pointer;
}

int codec_new(struct codec **ret_codec)
{
	struct codec *codec = calloc(1, sizeof *codec);

	if (!codec)
		return -ENOMEM;
	codec->arena = malloc(ARENA_BYTES);
	if (!codec->arena) {
		free(codec);
		return -ENOMEM;
	}
	codec->allocator = (ProtobufCAllocator){ arena_alloc, arena_free, codec };
	*ret_codec = codec;
	return 0;
}

void codec_free(struct codec *codec)
{
	if (!codec)
		return;
	free(codec->arena);
	free(codec);
}

/* ---- reading ---- */

static bool text_ok(const char *text)
{
	return !text || strnlen(text, CODEC_TEXT_BYTES_MAX + 1) <= CODEC_TEXT_BYTES_MAX;
}

static const char *text_or_empty(const char *text)
{
	return text ? text : "";
}

/* Names go into paths, metrics labels and log lines. */
static bool name_ok(const char *name)
{
	size_t length = strnlen(name, CONDUCTOR_NAME_BYTES);

	if (!length || length >= CONDUCTOR_NAME_BYTES)
		return false;
	for (size_t i = 0; i < length; i++) {
		char c = name[i];
		if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		      c == '-' || c == '_' || c == '.' || c == ':'))
			return false;
	}
	return true;
}

/* Goes on to p, which takes no other and would blame this conductor for it. */
static bool host_ok(const char *host)
{
	size_t length = host ? strnlen(host, CODEC_HOST_BYTES_MAX + 1) : 0;

	if (length > CODEC_HOST_BYTES_MAX)
		return false;
	for (size_t i = 0; i < length; i++)
		if (host[i] <= ' ' || host[i] > '~')
			return false;
	return true;
}

static struct conductor_ref ref_of(const Baton__Ref *ref)
{
	return (struct conductor_ref){ ref->conductor, ref->request, ref->epoch };
}

static bool hello_ok(const Baton__Hello *hello)
{
	return name_ok(hello->node) && hello->incarnation && hello->role >= ROLE_PREFILL &&
	       hello->role <= ROLE_BOTH && text_ok(hello->model) && text_ok(hello->numerics) &&
	       host_ok(hello->peer_host) && text_ok(hello->admin) && text_ok(hello->build) &&
	       (!hello->has_kv_format || hello->kv_format.len == 32) &&
	       hello->transfer.len <= CODEC_TRANSFER_BYTES_MAX && hello->peer_port <= UINT16_MAX &&
	       hello->block_tokens <= 1u << 16 && hello->blocks_total < 1u << 31;
}

static int read_hello(const Baton__Hello *hello, struct codec_hello *ret_hello)
{
	if (hello->version_min > hello->version_max)
		return BATON_EPROTOCOL;
	if (hello->version_min > FRAME_VERSION_MAX || hello->version_max < FRAME_VERSION_MIN)
		return BATON_EVERSION;
	if (!hello_ok(hello))
		return BATON_EPROTOCOL;
	*ret_hello = (struct codec_hello){
		.node = hello->node,
		.incarnation = hello->incarnation,
		.features = hello->features,
		.version = MIN(hello->version_max, FRAME_VERSION_MAX),
		.role = hello->role,
		.model = text_or_empty(hello->model),
		.numerics = text_or_empty(hello->numerics),
		.peer_host = text_or_empty(hello->peer_host),
		.admin = text_or_empty(hello->admin),
		.build = text_or_empty(hello->build),
		.kv_format = hello->has_kv_format ? hello->kv_format.data : NULL,
		.block_tokens = hello->block_tokens,
		.blocks_total = hello->blocks_total,
		.max_num_seqs = hello->max_num_seqs,
		.max_num_batched_tokens = hello->max_num_batched_tokens,
		.max_model_len = hello->max_model_len,
		.peer_port = hello->peer_port,
		.block_bytes = hello->block_bytes,
		.transfer = hello->transfer.data,
		.transfer_bytes = (uint32_t)hello->transfer.len,
	};
	return 0;
}

static int read_report(const Baton__Report *report, struct conductor_report *ret_report)
{
	if (report->role < ROLE_PREFILL || report->role > ROLE_BOTH || report->state < 1 ||
	    report->state > 4)
		return BATON_EPROTOCOL;
	*ret_report = (struct conductor_report){
		.role = report->role,
		.state = report->state,
		.dispatches_seen = report->dispatches_seen,
		.sequence = report->sequence,
		.running = report->running,
		.waiting = report->waiting,
		.queued_tokens = report->queued_tokens,
		.running_tokens = report->running_tokens,
		.reserved_tokens = report->reserved_tokens,
		.blocks_free = report->blocks_free,
		.blocks_cached = report->blocks_cached,
		.blocks_used = report->blocks_used,
		.blocks_reserved = report->blocks_reserved,
		.blocks_quarantined = report->blocks_quarantined,
		.transfer_bytes_shm = report->transfer_bytes_shm,
		.transfer_bytes_tcp = report->transfer_bytes_tcp,
		.transfer_bytes_rdma = report->transfer_bytes_rdma,
		.transfer_bytes_sent = report->transfer_bytes_sent,
		.slices_corrupt = report->slices_corrupt,
		.preemptions = report->preemptions,
		.prefix_queries = report->prefix_queries,
		.prefix_hits = report->prefix_hits,
		.prefill_tokens = report->prefill_tokens,
		.decode_tokens = report->decode_tokens,
		.frames_refused = report->frames_refused,
	};
	return 0;
}

static bool floats_ok(const float values[], size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (isnan(values[i]) || values[i] == INFINITY)
			return false;
	return true;
}

static int read_run(const Baton__TokenRun *run, struct codec_run *ret_run)
{
	size_t count = run->n_ids, top = 0;

	if (run->choice >= CONDUCTOR_CHOICES_MAX || run->position > CODEC_POSITION_MAX ||
	    count > CODEC_POSITION_MAX || run->finish > CONDUCTOR_LENGTH || (!count && !run->finish))
		return BATON_EPROTOCOL;
	if (run->n_logprobs && run->n_logprobs != count)
		return BATON_EPROTOCOL;
	if (run->n_top_ids != run->n_top_logprobs)
		return BATON_EPROTOCOL;
	if (run->n_top_ids) {
		if (!count || run->n_top_ids % count || run->n_top_ids / count > CODEC_TOP_MAX)
			return BATON_EPROTOCOL;
		top = run->n_top_ids / count;
	}
	if (!floats_ok(run->logprobs, run->n_logprobs) ||
	    !floats_ok(run->top_logprobs, run->n_top_logprobs))
		return BATON_EPROTOCOL;
	*ret_run = (struct codec_run){
		.choice = run->choice,
		.position = run->position,
		.count = (uint32_t)count,
		.ids = run->ids,
		.logprobs = run->n_logprobs ? run->logprobs : NULL,
		.top_count = (uint32_t)top,
		.top_ids = run->top_ids,
		.top_logprobs = run->top_logprobs,
		.finish = (enum conductor_finish)run->finish,
		.has_stop_id = run->has_stop_id,
		.stop_id = run->stop_id,
	};
	return 0;
}

static int read_tokens(struct codec *codec, const Baton__Tokens *tokens,
		       struct codec_tokens *ret_tokens)
{
	if (tokens->n_runs > ARRAY_COUNT(codec->runs))
		return BATON_EPROTOCOL;
	for (size_t i = 0; i < tokens->n_runs; i++) {
		int error = read_run(tokens->runs[i], &codec->runs[i]);
		if (error < 0)
			return error;
	}
	*ret_tokens = (struct codec_tokens){
		.ref = ref_of(tokens->ref),
		.measured = {
			.has_cached = tokens->has_cached_tokens,
			.cached_tokens = tokens->cached_tokens,
			.prefill_us = tokens->prefill_us,
			.queue_us = tokens->queue_us,
			.transfer_us = tokens->transfer_us,
			.transfer_bytes = tokens->transfer_bytes,
			.transport = tokens->transport,
			.hidden_permille = tokens->hidden_permille,
		},
		.runs = codec->runs,
		.run_count = (uint32_t)tokens->n_runs,
	};
	return 0;
}

/* The numbers of proto/baton.proto's Returned, which nodes use (lib/node/role.h). */
static enum conductor_cause cause_of(uint32_t reason)
{
	static const enum conductor_cause causes[] = {
		[0] = CAUSE_ERROR,	[1] = CAUSE_REFUSED,   [2] = CAUSE_PREEMPTED,
		[3] = CAUSE_TRANSFER,	[4] = CAUSE_PEER_LOST, [5] = CAUSE_DRAINED,
		[6] = CAUSE_NO_MEMORY,	[7] = CAUSE_DEADLINE,  [8] = CAUSE_ERROR,
	};

	return reason < ARRAY_COUNT(causes) ? causes[reason] : CAUSE_ERROR;
}

static int read_returned(const Baton__Returned *returned, struct codec_returned *ret_returned)
{
	if (returned->has_choice && returned->choice >= CONDUCTOR_CHOICES_MAX)
		return BATON_EPROTOCOL;
	if (!text_ok(returned->detail))
		return BATON_EPROTOCOL;
	*ret_returned = (struct codec_returned){
		.ref = ref_of(returned->ref),
		.choice = returned->has_choice ? returned->choice : CONDUCTOR_CHOICE_ALL,
		.cause = cause_of(returned->reason),
		.detail = returned->detail,
	};
	return 0;
}

int codec_read(struct codec *codec, uint16_t type, const uint8_t *body, uint32_t bytes,
	       struct codec_frame *ret_frame)
{
	const ProtobufCMessageDescriptor *descriptor;
	struct codec_frame frame = { .type = type };
	int error = -ENOTSUP;

	switch (type) {
	case FRAME_HELLO:
		descriptor = &baton__hello__descriptor;
		break;
	case FRAME_REPORT:
		descriptor = &baton__report__descriptor;
		break;
	case FRAME_TOKENS:
		descriptor = &baton__tokens__descriptor;
		break;
	case FRAME_RETURNED:
		descriptor = &baton__returned__descriptor;
		break;
	default:
		return -ENOTSUP;
	}
	codec->used = 0;
	void *message = protobuf_c_message_unpack(descriptor, &codec->allocator, bytes, body);
	if (!message)
		return BATON_EPROTOCOL;
	if (type == FRAME_HELLO)
		error = read_hello(message, &frame.hello);
	else if (type == FRAME_REPORT)
		error = read_report(message, &frame.report);
	else if (type == FRAME_TOKENS)
		error = read_tokens(codec, message, &frame.tokens);
	else
		error = read_returned(message, &frame.returned);
	if (!error)
		*ret_frame = frame;
	return error;
}

/* ---- writing ---- */

static int pack(struct buf *out, const ProtobufCMessage *message)
{
	size_t bytes = protobuf_c_message_get_packed_size(message);

	buf_clear(out);
	if (bytes > FRAME_BODY_BYTES_MAX)
		return -EMSGSIZE;
	uint8_t *space = buf_reserve(out, bytes + 1);
	if (!space)
		return -ENOMEM;
	out->bytes = protobuf_c_message_pack(message, space);
	return 0;
}

static void ref_fill(Baton__Ref *out, const struct conductor_ref *ref)
{
	baton__ref__init(out);
	out->conductor = ref->conductor;
	out->request = ref->request;
	out->epoch = ref->epoch;
}

static void sampling_fill(Baton__Sampling *out, const struct codec_prefill *prefill)
{
	baton__sampling__init(out);
	out->has_temperature = out->has_top_p = out->has_min_p = out->has_top_k = true;
	out->has_top_logprobs = out->has_logprobs = out->has_min_tokens = out->has_ignore_eos = true;
	out->temperature = prefill->temperature;
	out->top_p = prefill->top_p;
	out->min_p = prefill->min_p;
	out->top_k = prefill->top_k;
	out->seed = prefill->seed;
	out->top_logprobs = prefill->top_logprobs;
	out->logprobs = prefill->want_logprobs;
	out->max_tokens = prefill->max_tokens;
	out->min_tokens = prefill->min_tokens;
	out->ignore_eos = prefill->ignore_eos;
	out->n_stop_ids = prefill->stop_id_count;
	out->stop_ids = (uint32_t *)prefill->stop_ids;
}

static void decode_fill(Baton__Prefill *out, const struct codec_prefill *prefill)
{
	out->decode_node = (char *)prefill->decode_node;
	if (!prefill->decode_node)
		return;
	out->has_decode_incarnation = out->has_decode_port = out->has_decode_transfer = true;
	out->decode_incarnation = prefill->decode_incarnation;
	out->decode_host = (char *)prefill->decode_host;
	out->decode_port = prefill->decode_port;
	out->decode_transfer.data = (uint8_t *)prefill->decode_transfer;
	out->decode_transfer.len = prefill->decode_transfer_bytes;
}

int codec_write_prefill(struct buf *out, const struct codec_prefill *prefill)
{
	uint32_t choices[CONDUCTOR_CHOICES_MAX], count = 0;
	Baton__Sampling sampling;
	Baton__Prefill message;
	Baton__Ref ref;

	for (uint32_t i = 0; i < CONDUCTOR_CHOICES_MAX; i++)
		if (prefill->choices[i / 64] >> (i % 64) & 1)
			choices[count++] = i;
	baton__prefill__init(&message);
	ref_fill(&ref, &prefill->ref);
	sampling_fill(&sampling, prefill);
	message.ref = &ref;
	message.sampling = &sampling;
	message.dispatch = prefill->dispatch;
	message.model = (char *)prefill->model;
	message.n_prompt = prefill->prompt_count;
	message.prompt = (uint32_t *)prefill->prompt;
	message.n_output = prefill->output_count;
	message.output = (uint32_t *)prefill->output;
	message.n_choices = count;
	message.choices = choices;
	message.root_key.len = sizeof prefill->root_key.bytes;
	message.root_key.data = (uint8_t *)prefill->root_key.bytes;
	message.has_priority = true;
	message.priority = prefill->priority;
	message.ttft_ms = prefill->ttft_ms;
	message.trace = (char *)prefill->trace;
	decode_fill(&message, prefill);
	return pack(out, &message.base);
}

int codec_write_release(struct buf *out, const struct conductor_ref *ref, uint32_t choice)
{
	Baton__Release message;
	Baton__Ref inner;

	baton__release__init(&message);
	ref_fill(&inner, ref);
	message.ref = &inner;
	message.has_choice = choice != CONDUCTOR_CHOICE_ALL;
	message.choice = choice;
	return pack(out, &message.base);
}

int codec_write_command(struct buf *out, enum conductor_command command, uint32_t role)
{
	Baton__Command message;

	baton__command__init(&message);
	message.kind = command;
	message.has_role = command == COMMAND_ROLE;
	message.role = role;
	return pack(out, &message.base);
}

int codec_write_ack(struct buf *out, uint64_t sequence)
{
	Baton__Ack message;

	baton__ack__init(&message);
	message.has_sequence = true;
	message.sequence = sequence;
	return pack(out, &message.base);
}

int codec_write_welcome(struct buf *out, const struct codec_welcome *welcome)
{
	Baton__Welcome message;

	baton__welcome__init(&message);
	message.accepted = welcome->accepted;
	message.reason = (char *)welcome->reason;
	message.node = (char *)welcome->node;
	message.has_version = message.has_incarnation = true;
	message.has_heartbeat_ms = message.has_lease_ms = true;
	message.version = welcome->version;
	message.incarnation = welcome->incarnation;
	message.heartbeat_ms = welcome->heartbeat_ms;
	message.lease_ms = welcome->lease_ms;
	return pack(out, &message.base);
}
