/*
 * Between frames (proto/) and the core's events and actions. Pure: bytes in, plain structs out,
 * so that sim/ sends real bytes. protobuf types stop here. Whatever comes from outside is checked
 * for shape and range before anyone else sees it; messages are unpacked into a bounded arena that
 * the next read reuses.
 */
#ifndef BATON_CONDUCTOR_CODEC_H
#define BATON_CONDUCTOR_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "conductor/core/conductor.h"
#include "kv/key.h"

#define CODEC_TOP_MAX 20 /* alternatives per token */
#define CODEC_TRANSFER_BYTES_MAX 256
#define CODEC_TEXT_BYTES_MAX 255
#define CODEC_HOST_BYTES_MAX 63 /* what nodes keep of each other's */
#define CODEC_POSITION_MAX (1u << 24)

struct codec;

struct codec_hello {
	const char *node;
	uint64_t incarnation, features;
	uint32_t version; /* the highest in common */
	uint32_t role;
	const char *model, *numerics, *peer_host, *admin, *build; /* "" when absent */
	const uint8_t *kv_format; /* [32], or NULL */
	uint32_t block_tokens, blocks_total, max_num_seqs, max_num_batched_tokens, max_model_len;
	uint32_t peer_port;
	uint64_t block_bytes;
	const uint8_t *transfer;
	uint32_t transfer_bytes;
};

struct codec_run {
	uint32_t choice, position, count;
	const uint32_t *ids;             /* [count] */
	const float *logprobs;           /* [count], or NULL */
	uint32_t top_count;              /* per id */
	const uint32_t *top_ids;         /* [count * top_count] */
	const float *top_logprobs;
	enum conductor_finish finish;
	bool has_stop_id;
	uint32_t stop_id;
};

struct codec_tokens {
	struct conductor_ref ref;
	struct conductor_measured measured;
	const struct codec_run *runs;
	uint32_t run_count;
};

struct codec_returned {
	struct conductor_ref ref;
	uint32_t choice; /* or CONDUCTOR_CHOICE_ALL */
	enum conductor_cause cause;
	const char *detail; /* NULL: none */
};

struct codec_frame {
	uint16_t type; /* enum frame_type: HELLO, REPORT, TOKENS or RETURNED */
	union {
		struct codec_hello hello;
		struct conductor_report report;
		struct codec_tokens tokens;
		struct codec_returned returned;
	};
};

/* What Prefill says beside the action: borrowed until return. */
struct codec_prefill {
	struct conductor_ref ref;
	uint64_t dispatch;
	const char *model, *trace;
	float temperature, top_p, min_p;
	uint32_t top_k, top_logprobs, max_tokens, min_tokens;
	uint64_t seed;
	bool want_logprobs, ignore_eos;
	const uint32_t *stop_ids, *prompt, *output;
	uint32_t stop_id_count, prompt_count, output_count;
	const uint64_t *choices; /* bits, as in the action */
	struct kv_key root_key;
	int32_t priority;
	uint32_t ttft_ms;
	const char *decode_node; /* NULL: no d */
	uint64_t decode_incarnation;
	const char *decode_host;
	uint32_t decode_port;
	const uint8_t *decode_transfer;
	uint32_t decode_transfer_bytes;
};

struct codec_welcome {
	bool accepted;
	const char *reason; /* NULL: none */
	const char *node;
	uint64_t incarnation;
	uint32_t version, heartbeat_ms, lease_ms;
};

int codec_new(struct codec **ret_codec); /* 0 or -ENOMEM */
void codec_free(struct codec *codec);

/*
 * codec_read() - one frame from a node
 * @ret_frame: valid until the next read
 * Return: 0; BATON_EPROTOCOL when it is malformed or a field is out of range; BATON_EVERSION for
 * a Hello with no version in common; -ENOTSUP for a type that no node sends here (skip it).
 */
int codec_read(struct codec *codec, uint16_t type, const uint8_t *body, uint32_t bytes,
	       struct codec_frame *ret_frame);

/* Each replaces the content of @out by a frame's body. Return: 0, or -ENOMEM, or -EMSGSIZE when
 * it is larger than a frame may be. */
int codec_write_prefill(struct buf *out, const struct codec_prefill *prefill);
int codec_write_release(struct buf *out, const struct conductor_ref *ref, uint32_t choice);
int codec_write_command(struct buf *out, enum conductor_command command, uint32_t role);
int codec_write_ack(struct buf *out, uint64_t sequence);
int codec_write_welcome(struct buf *out, const struct codec_welcome *welcome);

#endif
