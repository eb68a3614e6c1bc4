/*
 * A small cluster of role cores in one thread: virtual time, frames as real bytes with delays,
 * a transfer that may corrupt, drop and write late, and an engine whose "KV" is a chain of
 * hashes, so that each token depends on every byte of KV before it. A block that was shared,
 * copied, sent, evicted or reused wrongly gives a wrong token.
 *
 * Everything nasty that the shell's rules allow happens as late as they allow: a batch's copies
 * and rows are done when it ends, a slice is read when it lands, a revoked transfer still writes.
 */
#ifndef BATON_TESTS_CORES_WORLD_H
#define BATON_TESTS_CORES_WORLD_H

#include "decode-node/core/decode.h"
#include "node/codec.h"
#include "prefill-node/core/prefill.h"

#define WORLD_NODES 5
#define WORLD_BLOCKS 48
#define WORLD_BLOCKS_MIN 16 /* a whole context */
#define WORLD_BLOCK_TOKENS 4
#define WORLD_LAYERS 2
#define WORLD_MODEL_LEN 64
#define WORLD_VOCAB 50
#define WORLD_EOS 3
#define WORLD_SEQUENCES 8
#define WORLD_EXPECTS 32
#define WORLD_SENDERS 64
#define WORLD_DEPTH 8 /* steps within steps */
#define WORLD_MODEL "tiny"
#define WORLD_CONDUCTOR 255 /* as a place: where frames come from and go to */

struct world_block {
	uint64_t kv[WORLD_LAYERS][WORLD_BLOCK_TOKENS];
};

struct world_expect {
	uint32_t generation;
	bool open, revoking;
	node_handle handle;
	kv_block_id blocks[WORLD_MODEL_LEN / WORLD_BLOCK_TOKENS];
	uint32_t range_count, landed_count;
	bool landed[WORLD_LAYERS * WORLD_MODEL_LEN / WORLD_BLOCK_TOKENS];
};

struct world_sender {
	node_handle handle;
	struct node_ref ref;
	uint32_t target_node, expect, generation;
	uint64_t target_incarnation;
};

struct world_node {
	enum node_role role;
	bool alive;
	uint64_t incarnation;
	struct kv_node kv;
	struct world_block *memory;
	struct prefill *prefill;
	struct decode *decode;
	struct node_batch batch;
	bool batch_out;
	struct world_expect expects[WORLD_EXPECTS];
	struct world_sender senders[WORLD_SENDERS];
	/* What has been seen, so that a test can tell that it tested something. */
	uint64_t batches, copies, preemptions;
};

struct world_faults {
	uint32_t corrupt_permille, drop_permille, expect_fail_permille;
	uint32_t frame_loss_permille; /* between nodes: a peer that is frozen, not heard as lost */
};

struct world_item;

struct world {
	struct world_node nodes[WORLD_NODES];
	uint64_t now_ns, random, incarnations, sequence;
	struct world_item *items;      /* a list, soonest first */
	uint64_t channel_ns[256][256]; /* when the last frame from..to arrives: order is kept */
	struct world_faults faults;
	bool reuse_quarantined; /* the mistake that the quarantine rule is against */
	uint64_t late_writes, resends, sends;
	struct node_codec *codec;
	struct node_actions actions[WORLD_DEPTH];
	uint32_t depth;
	void *context;
	/* The conductor's ears. Tokens and actions are borrowed. */
	void (*on_action)(void *context, uint32_t node, const struct node_action *action);
};

void world_init(struct world *w, uint64_t seed, const enum node_role roles[WORLD_NODES]);
void world_fini(struct world *w);
uint32_t world_random(struct world *w, uint32_t below);
bool world_chance(struct world *w, uint32_t permille);

/* The conductor's mouth; delivered later, in order. */
void world_send_prefill(struct world *w, uint32_t node, const struct node_event *event);
void world_send_release(struct world *w, uint32_t node, const struct node_ref *ref, bool one_choice,
			uint32_t choice);
void world_tell(struct world *w, uint32_t node, enum node_event_kind kind,
		uint64_t value); /* now */
/* The process dies; peers hear it; a new life starts at once. */
void world_crash(struct world *w, uint32_t node);

/* Next thing that is due. false: nothing is left to happen. */
bool world_step(struct world *w);
void world_check(const struct world *w);
bool world_idle(const struct world *w);

/* What the engine would say: the token after @tokens. */
uint32_t world_token(const uint32_t tokens[], uint32_t count, uint64_t seed, uint32_t choice,
		     uint32_t position, const uint32_t bans[], uint32_t ban_count);

#endif
