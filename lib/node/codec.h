/*
 * Frames of proto/baton.proto to and from what the node's shell and cores speak. Pure: no socket,
 * no clock. Protobuf types stop here. Every field that comes in is validated: token ids below the
 * vocabulary, counts within role.h's bounds, refs and keys present and of their length, texts
 * NUL-terminated and cut to their buffers.
 *
 * Reading unpacks into a bounded arena of the codec; what an event points to is valid until the
 * next read. A malformed body is BATON_EPROTOCOL (the connection ends), -EMSGSIZE when it would
 * need more than the arena.
 *
 * Writing appends to a buf; check buf->failed once.
 */
#ifndef BATON_NODE_CODEC_H
#define BATON_NODE_CODEC_H

#include "base/buf.h"
#include "engine/sample.h"
#include "node/role.h"

struct node_codec;

struct node_codec_limits {
	uint32_t vocab_count;
	uint32_t max_model_len; /* of a longer request only the length is kept, for the core to refuse */
};

struct node_codec *node_codec_new(const struct node_codec_limits *limits); /* NULL: no memory */
void node_codec_free(struct node_codec *codec);

/* PREFILL, RESERVE, RESERVE_ANSWER, FIRST_TOKENS, RELEASE into an event; the caller sets now_ns. */
int node_codec_read(struct node_codec *codec, uint16_t type, const uint8_t *body, uint32_t bytes,
		    struct node_event *ret_event);

/* p -> d, d -> p */
void node_codec_reserve(struct buf *out, const struct node_action *action, uint64_t source,
			const char *source_node);
void node_codec_reserve_answer(struct buf *out, const struct node_ref *ref, bool accepted,
			       uint32_t cached_blocks, const char *reason, const uint8_t ticket[],
			       uint32_t ticket_bytes);
void node_codec_first_tokens(struct buf *out, const struct node_action *action);
void node_codec_release(struct buf *out, const struct node_ref *ref);

/* To the conductor. @results are the batch's samples, indexed by node_token.sample. @transport:
 * enum xfer_transport by which this dispatch's KV came, with has_transfer. */
void node_codec_tokens(struct buf *out, const struct node_action *action,
		       const struct sample_result results[], uint32_t transport);
void node_codec_returned(struct buf *out, const struct node_action *action);

/* ---- joining and heartbeats ---- */

struct node_hello {
	const char *node;
	uint64_t incarnation;
	enum node_role role;
	const char *model;
	const uint8_t *kv_format; /* [32] */
	const char *numerics;
	uint32_t block_tokens;
	uint64_t block_bytes, blocks_total;
	uint32_t max_num_seqs, max_num_batched_tokens, max_model_len;
	const char *peer_host;
	uint32_t peer_port;
	uint8_t transfer[NODE_TRANSFER_BYTES];
	uint32_t transfer_bytes;
	const char *admin_host;
	uint32_t admin_port; /* Hello.admin is "HOST:PORT" */
};
void node_codec_hello(struct buf *out, const struct node_hello *hello);
/* Texts point into the codec's arena; kv_format is there, of 32 bytes; a missing text is "". */
int node_codec_read_hello(struct node_codec *codec, const uint8_t *body, uint32_t bytes,
			  struct node_hello *ret_hello);

struct node_welcome {
	bool accepted;
	const char *reason; /* "" when accepted */
	uint64_t incarnation;
	const char *node;
	uint32_t heartbeat_ms, lease_ms; /* 0 from a node */
};
void node_codec_welcome(struct buf *out, const struct node_welcome *welcome);
int node_codec_read_welcome(struct node_codec *codec, const uint8_t *body, uint32_t bytes,
			    struct node_welcome *ret_welcome);

struct node_report {
	enum node_role role;
	uint32_t state; /* as Report.state */
	uint64_t dispatches_seen, sequence;
	struct node_load load;
	uint32_t blocks[KV_STATE_COUNT]; /* by enum kv_block_state */
	uint64_t landed_shm, landed_tcp, landed_rdma, sent; /* bytes */
	uint64_t slices_corrupt, frames_refused;
};
void node_codec_report(struct buf *out, const struct node_report *report);

enum node_command_kind { NODE_COMMAND_DRAIN = 1, NODE_COMMAND_UNDRAIN = 2, NODE_COMMAND_ROLE = 3 };

struct node_command {
	enum node_command_kind kind;
	enum node_role role; /* of NODE_COMMAND_ROLE */
};
int node_codec_read_command(struct node_codec *codec, const uint8_t *body, uint32_t bytes,
			    struct node_command *ret_command);

#endif
