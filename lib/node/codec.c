#include "node/codec.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "baton.pb-c.h"
#include "proto/frame.h"
#include "xfer/xfer.h"

/* Four times the largest body: a packed varint of one byte unpacks into four, beside them the
 * parser's own notes on each field. Pages that no message reaches are never touched. */
#define ARENA_BYTES (4u * FRAME_BODY_BYTES_MAX + (1u << 20))
#define KEY_BYTES sizeof((struct kv_key){ 0 }.bytes)

struct node_codec {
	struct node_codec_limits limits;
	ProtobufCAllocator allocator;
	char *arena;
	size_t used;
	bool exhausted;
	uint32_t *tokens; /* [max_model_len] */
	struct node_first_token firsts[NODE_CHOICES_MAX];
};

static void *arena_alloc(void *context, size_t bytes)
{
	struct node_codec *codec = context;
	size_t at = ALIGN_UP(codec->used, _Alignof(max_align_t));
	if (bytes > ARENA_BYTES || at > ARENA_BYTES - bytes) {
		codec->exhausted = true;
		return NULL;
	}
	codec->used = at + bytes;
	return codec->arena + at;
}

static void arena_free(void *context, void *pointer)
{
}

struct node_codec *node_codec_new(const struct node_codec_limits *limits)
{
	struct node_codec *codec = calloc(1, sizeof *codec);
	if (!codec)
		return NULL;
	codec->limits = *limits;
	codec->allocator = (ProtobufCAllocator){ arena_alloc, arena_free, codec };
	codec->arena = malloc(ARENA_BYTES);
	codec->tokens = calloc(MAX(limits->max_model_len, 1u), sizeof *codec->tokens);
	if (!codec->arena || !codec->tokens) {
		node_codec_free(codec);
		return NULL;
	}
	return codec;
}

void node_codec_free(struct node_codec *codec)
{
	if (!codec)
		return;
	free(codec->arena);
	free(codec->tokens);
	free(codec);
}

static void *unpack(struct node_codec *codec, const ProtobufCMessageDescriptor *type,
		    const uint8_t *body, uint32_t bytes)
{
	codec->used = 0;
	codec->exhausted = false;
	if (bytes > FRAME_BODY_BYTES_MAX)
		return NULL;
	return protobuf_c_message_unpack(type, &codec->allocator, bytes, body);
}

static int unpack_failed(const struct node_codec *codec)
{
	return codec->exhausted ? -EMSGSIZE : BATON_EPROTOCOL;
}

/* ---- pieces that are read ---- */

/* Names and hosts end up in logs and addresses: printable ASCII that fits, nothing else. */
static bool read_name(const char *text, char *ret_text, size_t capacity)
{
	size_t bytes = text ? strlen(text) : 0;
	if (bytes >= capacity)
		return false;
	for (size_t i = 0; i < bytes; i++) {
		if (text[i] <= ' ' || text[i] > '~')
			return false;
	}
	memcpy(ret_text, text ? text : "", bytes);
	ret_text[bytes] = 0;
	return true;
}

/* A served model's name is the operator's: anything that fits a log line. */
static bool read_label(const char *text, char *ret_text, size_t capacity)
{
	size_t bytes = strlen(text);
	if (!bytes || bytes >= capacity)
		return false;
	for (size_t i = 0; i < bytes; i++) {
		if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
			return false;
	}
	memcpy(ret_text, text, bytes + 1);
	return true;
}

/* Texts for people are cut at the first byte that could end a log line. */
static const char *read_text(char *text)
{
	if (!text)
		return "";
	for (char *at = text; *at; at++) {
		if ((unsigned char)*at < ' ' || *at == 0x7f) {
			*at = 0;
			break;
		}
	}
	return text;
}

static struct node_ref read_ref(const Baton__Ref *ref)
{
	return (struct node_ref){ ref->conductor, ref->request, ref->epoch };
}

static bool read_key(const ProtobufCBinaryData *data, struct kv_key *ret_key)
{
	if (data->len != KEY_BYTES)
		return false;
	memcpy(ret_key->bytes, data->data, KEY_BYTES);
	return true;
}

static bool read_sampling(const struct node_codec *codec, const Baton__Sampling *from,
			  struct node_sampling *ret_sampling)
{
	if (!(from->temperature >= 0) || !isfinite(from->temperature) || !(from->top_p > 0) ||
	    !(from->top_p <= 1) || !(from->min_p >= 0) || !(from->min_p <= 1))
		return false;
	if (from->max_tokens < 1 || from->top_logprobs > SAMPLE_TOP_MAX ||
	    from->n_stop_ids > NODE_STOP_IDS_MAX)
		return false;
	*ret_sampling = (struct node_sampling){
		.temperature = from->temperature,
		.top_p = from->top_p,
		.min_p = from->min_p,
		.top_k = from->top_k,
		.seed = from->seed,
		.top_logprobs = from->top_logprobs,
		.want_logprobs = from->logprobs,
		.ignore_eos = from->ignore_eos,
		.max_tokens = from->max_tokens,
		.min_tokens = from->min_tokens,
		.stop_id_count = (uint32_t)from->n_stop_ids,
	};
	for (size_t i = 0; i < from->n_stop_ids; i++) {
		if (from->stop_ids[i] >= codec->limits.vocab_count)
			return false;
		ret_sampling->stop_ids[i] = from->stop_ids[i];
	}
	return true;
}

static bool read_choices(const uint32_t *choices, size_t count, struct node_request *ret_request)
{
	bool seen[NODE_CHOICES_MAX] = { false };

	if (count < 1 || count > NODE_CHOICES_MAX)
		return false;
	for (size_t i = 0; i < count; i++) {
		if (choices[i] >= NODE_CHOICES_MAX || seen[choices[i]])
			return false;
		seen[choices[i]] = true;
		ret_request->choices[i] = choices[i];
	}
	ret_request->choice_count = (uint32_t)count;
	return true;
}

/* Who sends more than fits here has broken no rule, its own limit is another one. What is past the
 * end is counted and not kept: by its length the core refuses the request, and only that. */
static bool read_tokens(struct node_codec *codec, const uint32_t *ids, size_t count,
			uint32_t *token_count)
{
	for (size_t i = 0; i < count; i++) {
		if (ids[i] >= codec->limits.vocab_count)
			return false;
		if (*token_count < codec->limits.max_model_len)
			codec->tokens[*token_count] = ids[i];
		(*token_count)++;
	}
	return true;
}

/* What Prefill and Reserve have in common. */
struct request_parts {
	const Baton__Ref *ref;
	const char *model;
	const Baton__Sampling *sampling;
	const uint32_t *prompt, *output, *choices;
	size_t prompt_count, output_count, choice_count;
	const ProtobufCBinaryData *root_key;
	int32_t priority;
};

static bool read_request(struct node_codec *codec, const struct request_parts *from,
			 struct node_request *ret_request)
{
	uint32_t token_count = 0;

	*ret_request = (struct node_request){ .ref = read_ref(from->ref),
					      .priority = from->priority };
	if (!read_label(from->model, ret_request->model, sizeof ret_request->model) ||
	    !read_sampling(codec, from->sampling, &ret_request->sampling) ||
	    !read_choices(from->choices, from->choice_count, ret_request) ||
	    !read_key(from->root_key, &ret_request->root_key))
		return false;
	if (from->prompt_count < 1 || (from->output_count > 0 && from->choice_count != 1) ||
	    from->output_count >= from->sampling->max_tokens)
		return false;
	if (!read_tokens(codec, from->prompt, from->prompt_count, &token_count) ||
	    !read_tokens(codec, from->output, from->output_count, &token_count))
		return false;
	ret_request->tokens = codec->tokens;
	ret_request->token_count = token_count;
	ret_request->prompt_count = (uint32_t)from->prompt_count;
	return true;
}

/* ---- frames that are read ---- */

static bool read_peer(const Baton__Prefill *from, struct node_peer *ret_peer)
{
	*ret_peer = (struct node_peer){
		.incarnation = from->decode_incarnation,
		.port = from->decode_port,
	};
	if (!read_name(from->decode_node, ret_peer->name, sizeof ret_peer->name) ||
	    !read_name(from->decode_host, ret_peer->host, sizeof ret_peer->host))
		return false;
	if (from->decode_port > UINT16_MAX || from->decode_transfer.len > sizeof ret_peer->transfer)
		return false;
	ret_peer->transfer_bytes = (uint32_t)from->decode_transfer.len;
	if (from->decode_transfer.len > 0)
		memcpy(ret_peer->transfer, from->decode_transfer.data, from->decode_transfer.len);
	return true;
}

static int read_prefill(struct node_codec *codec, const uint8_t *body, uint32_t bytes,
			struct node_event *event)
{
	Baton__Prefill *from = unpack(codec, &baton__prefill__descriptor, body, bytes);
	if (!from)
		return unpack_failed(codec);
	struct request_parts parts = {
		.ref = from->ref,
		.model = from->model,
		.sampling = from->sampling,
		.prompt = from->prompt,
		.prompt_count = from->n_prompt,
		.output = from->output,
		.output_count = from->n_output,
		.choices = from->choices,
		.choice_count = from->n_choices,
		.root_key = &from->root_key,
		.priority = from->priority,
	};
	if (!read_request(codec, &parts, &event->prefill.request))
		return BATON_EPROTOCOL;
	event->kind = NODE_PREFILL;
	event->prefill.dispatch = from->dispatch;
	event->prefill.ttft_ms = from->ttft_ms;
	event->prefill.trace = read_text(from->trace);
	event->prefill.has_decode = from->decode_node != NULL;
	if (from->decode_node && (!from->has_decode_incarnation || !from->decode_node[0]))
		return BATON_EPROTOCOL;
	return read_peer(from, &event->prefill.decode) ? 0 : BATON_EPROTOCOL;
}

static int read_reserve(struct node_codec *codec, const uint8_t *body, uint32_t bytes,
			struct node_event *event)
{
	Baton__Reserve *from = unpack(codec, &baton__reserve__descriptor, body, bytes);
	if (!from)
		return unpack_failed(codec);
	struct request_parts parts = {
		.ref = from->ref,
		.model = from->model,
		.sampling = from->sampling,
		.prompt = from->prompt,
		.prompt_count = from->n_prompt,
		.output = from->output,
		.output_count = from->n_output,
		.choices = from->choices,
		.choice_count = from->n_choices,
		.root_key = &from->root_key,
		.priority = from->priority,
	};
	if (!read_request(codec, &parts, &event->reserve.request))
		return BATON_EPROTOCOL;
	event->kind = NODE_RESERVE;
	event->reserve.source = from->source;
	event->reserve.source_node = read_text(from->source_node);
	event->reserve.target = from->target;
	event->reserve.predicted_tokens = MIN(from->predicted_tokens, codec->limits.max_model_len);
	event->reserve.remaining_ms = from->remaining_ms;
	event->reserve.local = false;
	return 0;
}

static int read_answer(struct node_codec *codec, const uint8_t *body, uint32_t bytes,
		       struct node_event *event)
{
	Baton__ReserveAnswer *from = unpack(codec, &baton__reserve_answer__descriptor, body, bytes);
	if (!from)
		return unpack_failed(codec);
	if (from->ticket.len > XFER_TICKET_BYTES_MAX)
		return BATON_EPROTOCOL;
	event->kind = NODE_RESERVE_ANSWER;
	event->answer.ref = read_ref(from->ref);
	event->answer.accepted = from->accepted;
	event->answer.cached_blocks = from->cached_blocks;
	event->answer.reason = read_text(from->reason);
	event->answer.ticket = from->ticket.data;
	event->answer.ticket_bytes = (uint32_t)from->ticket.len;
	return 0;
}

static int read_first_tokens(struct node_codec *codec, const uint8_t *body, uint32_t bytes,
			     struct node_event *event)
{
	Baton__FirstTokens *from = unpack(codec, &baton__first_tokens__descriptor, body, bytes);
	if (!from)
		return unpack_failed(codec);
	if (from->n_tokens > NODE_CHOICES_MAX)
		return BATON_EPROTOCOL;
	for (size_t i = 0; i < from->n_tokens; i++) {
		const Baton__FirstToken *token = from->tokens[i];
		if (token->choice >= NODE_CHOICES_MAX || token->token >= codec->limits.vocab_count)
			return BATON_EPROTOCOL;
		codec->firsts[i] = (struct node_first_token){ token->choice, token->token,
							      token->ended };
	}
	event->kind = NODE_FIRST_TOKENS;
	event->first.ref = read_ref(from->ref);
	event->first.tokens = codec->firsts;
	event->first.token_count = (uint32_t)from->n_tokens;
	return 0;
}

static int read_release(struct node_codec *codec, const uint8_t *body, uint32_t bytes,
			struct node_event *event)
{
	Baton__Release *from = unpack(codec, &baton__release__descriptor, body, bytes);
	if (!from)
		return unpack_failed(codec);
	if (from->has_choice && from->choice >= NODE_CHOICES_MAX)
		return BATON_EPROTOCOL;
	event->kind = NODE_RELEASE;
	event->release.ref = read_ref(from->ref);
	event->release.one_choice = from->has_choice;
	event->release.choice = from->choice;
	event->release.by_peer = false; /* the link knows */
	return 0;
}

int node_codec_read(struct node_codec *codec, uint16_t type, const uint8_t *body, uint32_t bytes,
		    struct node_event *ret_event)
{
	switch (type) {
	case FRAME_PREFILL:
		return read_prefill(codec, body, bytes, ret_event);
	case FRAME_RESERVE:
		return read_reserve(codec, body, bytes, ret_event);
	case FRAME_RESERVE_ANSWER:
		return read_answer(codec, body, bytes, ret_event);
	case FRAME_FIRST_TOKENS:
		return read_first_tokens(codec, body, bytes, ret_event);
	case FRAME_RELEASE:
		return read_release(codec, body, bytes, ret_event);
	default:
		return BATON_EPROTOCOL;
	}
}

int node_codec_read_hello(struct node_codec *codec, const uint8_t *body, uint32_t bytes,
			  struct node_hello *ret_hello)
{
	Baton__Hello *from = unpack(codec, &baton__hello__descriptor, body, bytes);
	char name[NODE_NAME_BYTES];

	if (!from)
		return unpack_failed(codec);
	if (from->version_min > FRAME_VERSION_MAX || from->version_max < FRAME_VERSION_MIN)
		return BATON_EVERSION;
	if (!read_name(from->node, name, sizeof name) || !name[0] ||
	    from->role < NODE_ROLE_PREFILL || from->role > NODE_ROLE_BOTH ||
	    from->peer_port > UINT16_MAX)
		return BATON_EPROTOCOL;
	if (!from->has_kv_format || from->kv_format.len != 32 || from->transfer.len > NODE_TRANSFER_BYTES)
		return BATON_EPROTOCOL;
	*ret_hello = (struct node_hello){
		.node = from->node,
		.incarnation = from->incarnation,
		.role = (enum node_role)from->role,
		.model = read_text(from->model),
		.kv_format = from->kv_format.data,
		.numerics = read_text(from->numerics),
		.block_tokens = from->block_tokens,
		.block_bytes = from->block_bytes,
		.blocks_total = from->blocks_total,
		.max_num_seqs = from->max_num_seqs,
		.max_num_batched_tokens = from->max_num_batched_tokens,
		.max_model_len = from->max_model_len,
		.peer_host = read_text(from->peer_host),
		.peer_port = from->peer_port,
		.transfer_bytes = (uint32_t)from->transfer.len,
		.admin_host = "",
	};
	if (from->transfer.len > 0)
		memcpy(ret_hello->transfer, from->transfer.data, from->transfer.len);
	/* "HOST:PORT", split in place; the host may hold colons of its own. */
	char *colon = from->admin ? strrchr(from->admin, ':') : NULL;
	if (colon) {
		char *end;
		unsigned long port = strtoul(colon + 1, &end, 10);
		if (*end || end == colon + 1 || port > UINT16_MAX)
			return BATON_EPROTOCOL;
		*colon = 0;
		ret_hello->admin_host = read_text(from->admin);
		ret_hello->admin_port = (uint32_t)port;
	}
	return 0;
}

int node_codec_read_welcome(struct node_codec *codec, const uint8_t *body, uint32_t bytes,
			    struct node_welcome *ret_welcome)
{
	Baton__Welcome *from = unpack(codec, &baton__welcome__descriptor, body, bytes);
	if (!from)
		return unpack_failed(codec);
	if (from->accepted && from->has_version &&
	    (from->version < FRAME_VERSION_MIN || from->version > FRAME_VERSION_MAX))
		return BATON_EVERSION;
	*ret_welcome = (struct node_welcome){
		.accepted = from->accepted,
		.reason = read_text(from->reason),
		.incarnation = from->incarnation,
		.node = read_text(from->node),
		.heartbeat_ms = from->heartbeat_ms,
		.lease_ms = from->lease_ms,
	};
	return 0;
}

int node_codec_read_command(struct node_codec *codec, const uint8_t *body, uint32_t bytes,
			    struct node_command *ret_command)
{
	Baton__Command *from = unpack(codec, &baton__command__descriptor, body, bytes);
	if (!from)
		return unpack_failed(codec);
	if (from->kind < NODE_COMMAND_DRAIN || from->kind > NODE_COMMAND_ROLE)
		return BATON_EPROTOCOL;
	if (from->kind == NODE_COMMAND_ROLE &&
	    (from->role < NODE_ROLE_PREFILL || from->role > NODE_ROLE_BOTH))
		return BATON_EPROTOCOL;
	ret_command->kind = (enum node_command_kind)from->kind;
	ret_command->role = (enum node_role)from->role;
	return 0;
}
