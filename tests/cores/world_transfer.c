/* A transfer between the arenas that corrupts, drops, revokes and writes late. */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "proto/frame.h"
#include "tests/cores/world_private.h"

static uint64_t slice_sum(const struct world_node *n, kv_block_id block, uint32_t layer)
{
	uint64_t sum = 0;
	for (uint32_t i = 0; i < WORLD_BLOCK_TOKENS; i++)
		sum = world__mix(sum, n->memory[block.v].kv[layer][i]);
	return sum;
}

static struct world_sender *sender_of(struct world_node *n, node_handle handle)
{
	for (uint32_t i = 0; i < WORLD_SENDERS; i++) {
		if (n->senders[i].handle.v == handle.v)
			return &n->senders[i];
	}
	CHECK(!"a ticket for this dispatch");
	return NULL;
}

void world__send_slice(struct world *w, uint32_t from, node_handle handle,
		       const kv_block_id blocks[], uint32_t base, uint32_t index)
{
	struct world_node *n = &w->nodes[from];
	struct world_sender *sender = sender_of(n, handle);
	struct world_item *item =
		world__item_at(w, ITEM_SLICE, w->now_ns + (50 + world_random(w, 3000)) * NS_PER_US);

	item->from = from;
	item->from_incarnation = n->incarnation;
	item->to = sender->target_node;
	item->to_incarnation = sender->target_incarnation;
	item->handle = handle;
	item->expect = sender->expect;
	item->generation = sender->generation;
	item->index = index;
	item->layer = index % WORLD_LAYERS;
	item->block = blocks[base + index / WORLD_LAYERS];
	item->sum = slice_sum(n, item->block, item->layer);
	w->sends++;
}

static void slice_outcome(struct world *w, const struct world_item *slice, int status)
{
	struct world_item *item =
		world__item_at(w, ITEM_SENT, w->now_ns + (10 + world_random(w, 300)) * NS_PER_US);
	item->to = slice->from;
	item->to_incarnation = slice->from_incarnation;
	item->handle = slice->handle;
	item->index = slice->index;
	item->status = status;
}

static void scribble(struct world_node *n, kv_block_id block, uint32_t layer)
{
	memset(n->memory[block.v].kv[layer], 0xee, sizeof n->memory[block.v].kv[layer]);
}

void world__slice_arrives(struct world *w, struct world_item *item)
{
	struct world_node *source = &w->nodes[item->from], *target = &w->nodes[item->to];

	if (source->incarnation != item->from_incarnation)
		return; /* it died with its sender */
	/* X2: the sender's memory is its own again only after SENT. */
	CHECK(slice_sum(source, item->block, item->layer) == item->sum);
	if (target->incarnation != item->to_incarnation)
		return slice_outcome(w, item, -ECONNRESET);
	struct world_expect *expect = &target->expects[item->expect];
	if (expect->generation != item->generation || !expect->open)
		return slice_outcome(w, item, BATON_EREVOKED);
	kv_block_id block = expect->blocks[item->index / WORLD_LAYERS];
	if (expect->revoking) {
		/* Invariant 4: a late write never lands in memory that someone else may have. */
		CHECK(kv_pool_block(&target->kv.pool, block)->state == KV_QUARANTINED);
		scribble(target, block, item->layer);
		w->late_writes++;
		return slice_outcome(w, item, BATON_EREVOKED);
	}
	if (world_chance(w, w->faults.corrupt_permille)) {
		scribble(target, block, item->layer);
		return slice_outcome(w, item, BATON_ECHECKSUM);
	}
	if (world_chance(w, w->faults.drop_permille))
		return slice_outcome(w, item, -ECONNRESET);
	CHECK(!expect->landed[item->index]);
	expect->landed[item->index] = true;
	expect->landed_count++;
	memcpy(target->memory[block.v].kv[item->layer],
	       source->memory[item->block.v].kv[item->layer],
	       sizeof target->memory[block.v].kv[item->layer]);
	slice_outcome(w, item, 0);
	struct node_event event = { .kind = NODE_SLICE_LANDED, .now_ns = w->now_ns };
	event.landed.handle = expect->handle;
	event.landed.bytes = 4096;
	world__step_core(w, item->to, &event, true);
	/* The step may have crashed nothing, but it may have revoked. */
	if (expect->generation == item->generation && expect->open &&
	    expect->landed_count == expect->range_count) {
		expect->open = false;
		event.kind = NODE_LANDED_ALL;
		world__step_core(w, item->to, &event, true);
	}
}

void world__grant(struct world *w, uint32_t node, const struct node_action *action)
{
	struct world_node *n = &w->nodes[node];
	uint32_t source = world__node_of(w, action->grant.source);
	uint32_t wanted = action->grant.block_count - action->grant.cached_blocks;
	uint32_t ticket[2] = { 0, 0 };
	struct buf body;

	if (wanted > 0) {
		uint32_t i = 0;
		while (i < WORLD_EXPECTS && n->expects[i].open)
			i++;
		if (i == WORLD_EXPECTS || world_chance(w, w->faults.expect_fail_permille)) {
			struct world_item *item = world__item_at(w, ITEM_EXPECT_FAILED, w->now_ns);
			item->to = node;
			item->to_incarnation = n->incarnation;
			item->handle = action->handle;
			return;
		}
		struct world_expect *expect = &n->expects[i];
		*expect = (struct world_expect){
			.generation = expect->generation + 1,
			.open = true,
			.handle = action->handle,
			.range_count = wanted * WORLD_LAYERS,
		};
		memcpy(expect->blocks, action->grant.blocks + action->grant.cached_blocks,
		       wanted * sizeof *expect->blocks);
		ticket[0] = i;
		ticket[1] = expect->generation;
	}
	if (source == WORLD_NODES)
		return; /* p is gone; d will hear of it */
	buf_init(&body, 0);
	node_codec_reserve_answer(&body, &action->ref, true, action->grant.cached_blocks, NULL,
				  (const uint8_t *)ticket, wanted ? sizeof ticket : 0);
	world__send_frame(w, node, source, action->grant.source, FRAME_RESERVE_ANSWER, &body);
}

void world__revoke_expect(struct world *w, uint32_t node, node_handle handle)
{
	struct world_node *n = &w->nodes[node];
	for (uint32_t i = 0; i < WORLD_EXPECTS; i++) {
		struct world_expect *expect = &n->expects[i];
		if (!expect->open || expect->handle.v != handle.v)
			continue;
		expect->revoking = true;
		struct world_item *item = world__item_at(
			w, ITEM_REVOKED, w->now_ns + (10 + world_random(w, 4000)) * NS_PER_US);
		item->to = node;
		item->to_incarnation = n->incarnation;
		item->expect = i;
		item->generation = expect->generation;
		if (w->reuse_quarantined) {
			/* Say so at once, though writes may still come. */
			struct node_event event = { .kind = NODE_REVOKED, .now_ns = w->now_ns };
			event.landed.handle = handle;
			world__step_core(w, node, &event, true);
		}
	}
}

void world__keep_ticket(struct world_sender *sender, const struct node_event *event)
{
	uint32_t ticket[2];

	if (event->answer.ticket_bytes != sizeof ticket)
		return;
	memcpy(ticket, event->answer.ticket, sizeof ticket);
	sender->expect = ticket[0];
	sender->generation = ticket[1];
}

void world__remember_sender(struct world *w, uint32_t node, const struct node_action *action)
{
	struct world_node *n = &w->nodes[node];
	for (uint32_t i = 0; i < WORLD_SENDERS; i++) {
		if (n->senders[i].handle.v)
			continue;
		n->senders[i] = (struct world_sender){
			.handle = action->handle,
			.ref = action->ref,
			.target_node = world__node_of(w, action->reserve.peer->incarnation),
			.target_incarnation = action->reserve.peer->incarnation,
		};
		return;
	}
	CHECK(!"room for a ticket");
}
