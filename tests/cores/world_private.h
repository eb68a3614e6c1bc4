/* Inside of the test world, shared by its files. */
#ifndef BATON_TESTS_CORES_WORLD_PRIVATE_H
#define BATON_TESTS_CORES_WORLD_PRIVATE_H

#include "base/buf.h"
#include "base/check.h"
#include "base/rand.h"
#include "tests/cores/world.h"

enum item_kind {
	ITEM_FRAME,
	ITEM_REPORT,
	ITEM_SLICE,
	ITEM_SENT,
	ITEM_REVOKED,
	ITEM_EXPECT_FAILED,
	ITEM_BATCH
};

struct world_item {
	struct world_item *next;
	uint64_t at_ns, sequence;
	enum item_kind kind;
	uint32_t from, to;
	uint64_t from_incarnation, to_incarnation; /* 0: any life */
	/* FRAME */
	uint16_t type;
	char *body;
	uint32_t bytes;
	/* REPORT: an action for the conductor, with its tokens */
	struct node_action action;
	struct node_token tokens[NODE_CHOICES_MAX];
	/* SLICE, SENT, REVOKED, EXPECT_FAILED */
	node_handle handle;
	uint32_t expect, generation, index, layer;
	kv_block_id block;
	uint64_t sum;
	int status;
};

static inline uint64_t world__mix(uint64_t a, uint64_t b)
{
	uint64_t state = a * UINT64_C(0x9e3779b97f4a7c15) ^ b;
	return rand_next(&state);
}

/* world.c */
struct world_item *world__item_at(struct world *w, enum item_kind kind, uint64_t at_ns);
void world__send_frame(struct world *w, uint32_t from, uint32_t to, uint64_t to_incarnation,
		       uint16_t type, struct buf *body);
uint32_t world__node_of(const struct world *w, uint64_t incarnation); /* or WORLD_NODES */
/* One core takes an event, and what it decides is done. */
void world__step_core(struct world *w, uint32_t node, const struct node_event *event,
		      bool to_decode);

/* world_engine.c */
void world__engine_row(struct world_node *n, const struct node_rows *row, uint32_t sampled[]);

/* world_transfer.c */
void world__remember_sender(struct world *w, uint32_t node, const struct node_action *action);
void world__keep_ticket(struct world_sender *sender, const struct node_event *event);
void world__send_slice(struct world *w, uint32_t from, node_handle handle,
		       const kv_block_id blocks[], uint32_t base, uint32_t index);
void world__slice_arrives(struct world *w, struct world_item *item);
void world__grant(struct world *w, uint32_t node, const struct node_action *action);
void world__revoke_expect(struct world *w, uint32_t node, node_handle handle);

#endif
