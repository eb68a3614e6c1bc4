/*
 * The data plane between two nodes' memories. A slice is read from the sender when it gets to the
 * receiver and written there a moment later; whatever happens in between (a revoke, a crash, a
 * freeze) happens to a write that is under way. A transfer that is taken back is over only when
 * no write is under way any more.
 */
#include "sim/private.h"

#include <errno.h>

#include "base/err.h"

static struct sim_slice *slice_at(struct sim_node *node, kv_block_id block, uint32_t layer)
{
	return &node->memory[block.v * SIM_LAYERS + layer];
}

static struct sim_expect *expect_find(struct sim_node *node, uint64_t id)
{
	list_for_each(link, &node->expects) {
		struct sim_expect *expect = list_entry(link, struct sim_expect, link);
		if (expect->id == id)
			return expect;
	}
	return NULL;
}

static void expect_free(struct sim_expect *expect)
{
	list_remove(&expect->link);
	free(expect->done);
	free(expect->blocks);
	free(expect);
}

/* ---- outcomes at the sender ---- */

struct outcome {
	struct sim_flight *flight;
	int status;
};

static void run_outcome(struct sim *sim, void *argument, bool alive)
{
	struct outcome *outcome = argument;
	struct sim_flight *flight = outcome->flight;
	struct node_event event = {
		.kind = NODE_SLICE_SENT,
		.slice = { .handle = flight->handle, .index = flight->index, .status = outcome->status },
	};
	struct sim_node *node = flight->source;

	(void)sim;
	list_remove(&flight->link);
	free(flight);
	free(outcome);
	if (!alive)
		return;
	sim_node_notice_sleep(node);
	sim_node_event(node, &event);
	sim_node_pump(node);
}

static void outcome_post(struct sim *sim, struct sim_flight *flight, int status)
{
	struct outcome *outcome = malloc(sizeof *outcome);

	CHECK(outcome);
	*outcome = (struct outcome){ flight, status };
	/* To the life that sent it, which may be gone. */
	if (flight->source->process.life != flight->source_life) {
		list_remove(&flight->link);
		free(flight);
		free(outcome);
		return;
	}
	sim_post(sim, &flight->source->process, 20 * NS_PER_US + sim_random(sim, 300 * NS_PER_US),
		 run_outcome, outcome);
}

/* ---- at the receiver ---- */

static void revoked(struct sim_node *node, struct sim_expect *expect)
{
	struct node_event event = { .kind = NODE_REVOKED, .landed = { .handle = expect->handle } };

	expect_free(expect);
	sim_node_defer(node, &event);
}

/* V4: the grant still owns the memory that is written. */
static void owner_check(struct sim_node *node, const struct sim_flight *flight)
{
	const struct kv_block *block = kv_pool_block(&node->kv.pool, flight->into);

	if ((block->state != KV_RESERVED && block->state != KV_QUARANTINED) ||
	    block->generation != flight->into_generation)
		sim_fail(node->sim, "%s: a late write lands in block %u, which is not its own any more",
			 node->name, flight->into.v);
}

static void landed(struct sim_node *node, struct sim_expect *expect, uint32_t index)
{
	struct node_event event = {
		.kind = NODE_SLICE_LANDED,
		.landed = { .handle = expect->handle, .bytes = sizeof(struct sim_slice) },
	};

	if (expect->done[index])
		return;
	expect->done[index] = true;
	bool all = ++expect->landed == expect->count;
	if (all)
		expect_free(expect);
	sim_node_event(node, &event);
	if (all) {
		event.kind = NODE_LANDED_ALL;
		sim_node_event(node, &event);
	}
	sim_node_pump(node);
}

static void run_write(struct sim *sim, void *argument, bool alive)
{
	struct sim_flight *flight = argument;
	struct sim_node *node = flight->target;
	struct sim_expect *expect = alive ? expect_find(node, flight->expect) : NULL;

	if (!alive) {
		outcome_post(sim, flight, -ECONNRESET);
		return;
	}
	sim_node_notice_sleep(node);
	expect = expect_find(node, flight->expect);
	owner_check(node, flight);
	struct sim_slice *slice = slice_at(node, flight->into, flight->layer);
	*slice = flight->sent;
	if (flight->damaged)
		slice->cells[sim_random(sim, SIM_BLOCK_TOKENS)] ^= 1 + sim_random(sim, 1000);
	if (!expect) {
		/* Only a planted mistake lets a transfer end while a write is under way. */
		CHECK(sim->config.plant == SIM_PLANT_EARLY_REVOKE);
		outcome_post(sim, flight, BATON_EREVOKED);
		return;
	}
	expect->writing--;
	if (expect->revoking) {
		outcome_post(sim, flight, BATON_EREVOKED);
		if (!expect->writing) {
			revoked(node, expect);
			sim_node_pump(node);
		}
	} else if (flight->damaged) {
		node->damaged++;
		outcome_post(sim, flight, BATON_ECHECKSUM);
	} else {
		uint32_t index = flight->index;
		outcome_post(sim, flight, 0);
		landed(node, expect, index);
	}
}

static void run_arrive(struct sim *sim, void *argument, bool alive)
{
	struct sim_flight *flight = argument;
	struct sim_node *source = flight->source, *node = flight->target;
	struct sim_expect *expect = alive ? expect_find(node, flight->expect) : NULL;
	bool source_lives = source->process.life == flight->source_life;

	if (!alive || flight->lost || flight->cancelled || !source_lives) {
		outcome_post(sim, flight, flight->cancelled ? -ECANCELED : -ECONNRESET);
		return;
	}
	/* V5: read as late as it could be. */
	if (memcmp(slice_at(source, flight->block, flight->layer), &flight->sent,
		   sizeof flight->sent) != 0)
		sim_fail(sim, "%s: block %u changed while a slice of it was on its way", source->name,
			 flight->block.v);
	if (!expect || expect->revoking || flight->index >= expect->count) {
		outcome_post(sim, flight, BATON_EREVOKED);
		return;
	}
	expect->writing++;
	flight->into = expect->blocks[flight->index];
	flight->into_generation = kv_pool_block(&node->kv.pool, flight->into)->generation;
	uint64_t write_ns = sim_random(sim, 500 * NS_PER_US);
	if (sim->storm && (sim->config.faults & SIM_FAULT_DATA) && sim_chance(sim, 20))
		write_ns = sim_random(sim, 500 * NS_PER_MS);
	sim_post(sim, &node->process, write_ns, run_write, flight);
}

/* ---- what the node's shell asks for ---- */

struct ticket {
	uint64_t life, expect;
	uint32_t node;
};

uint32_t sim_transfer_grant(struct sim_node *node, const struct node_action *action,
			    uint8_t ret_ticket[32])
{
	struct sim_expect *expect = calloc(1, sizeof *expect);
	uint32_t blocks = action->grant.block_count - action->grant.cached_blocks;
	struct ticket ticket = { .life = node->process.life, .node = node->process.index };

	CHECK(expect);
	expect->id = ticket.expect = ++node->expect_next;
	expect->handle = action->handle;
	expect->count = blocks * SIM_LAYERS;
	expect->done = calloc(expect->count, sizeof *expect->done);
	expect->blocks = calloc(expect->count, sizeof *expect->blocks);
	CHECK(expect->done && expect->blocks);
	for (uint32_t i = 0; i < expect->count; i++)
		expect->blocks[i] = action->grant.blocks[action->grant.cached_blocks + i / SIM_LAYERS];
	list_push_back(&node->expects, &expect->link);
	memset(ret_ticket, 0, 32);
	memcpy(ret_ticket, &ticket, sizeof ticket);
	return sizeof ticket;
}

void sim_transfer_revoke(struct sim_node *node, node_handle handle)
{
	list_for_each_safe(link, after, &node->expects) {
		struct sim_expect *expect = list_entry(link, struct sim_expect, link);
		if (expect->handle.v != handle.v || expect->revoking)
			continue;
		expect->revoking = true;
		if (!expect->writing || node->sim->config.plant == SIM_PLANT_EARLY_REVOKE)
			revoked(node, expect);
	}
}

void sim_transfer_reserve(struct sim_node *node, const struct node_action *action)
{
	node->outgoing[node_handle_index(action->handle)] = (struct sim_outgoing){
		.handle = action->handle,
		.ref = action->ref,
	};
}

bool sim_transfer_answer(struct sim_node *node, const struct node_event *answer)
{
	for (uint32_t i = 0; i < 64; i++) {
		struct sim_outgoing *out = &node->outgoing[i];
		if (!out->handle.v || !node_ref_equal(&out->ref, &answer->answer.ref))
			continue;
		CHECK(answer->answer.ticket_bytes <= sizeof out->ticket);
		out->ticket_bytes = answer->answer.ticket_bytes;
		if (out->ticket_bytes)
			memcpy(out->ticket, answer->answer.ticket, out->ticket_bytes);
		return true;
	}
	return false;
}

static void flight_start(struct sim_node *node, node_handle handle, uint32_t index, kv_block_id block,
			 uint32_t layer)
{
	struct sim *sim = node->sim;
	struct sim_outgoing *out = &node->outgoing[node_handle_index(handle)];
	struct sim_flight *flight = calloc(1, sizeof *flight);
	struct ticket ticket;

	CHECK(flight && out->handle.v == handle.v && out->ticket_bytes == sizeof ticket);
	memcpy(&ticket, out->ticket, sizeof ticket);
	*flight = (struct sim_flight){
		.source = node,
		.target = &sim->nodes[ticket.node],
		.source_life = node->process.life,
		.target_life = ticket.life,
		.handle = handle,
		.expect = ticket.expect,
		.index = index,
		.block = block,
		.layer = layer,
		.sent = *slice_at(node, block, layer),
	};
	list_push_back(&node->flights, &flight->link);
	bool faulty = sim->storm && (sim->config.faults & SIM_FAULT_DATA);
	flight->damaged = faulty && sim_chance(sim, 15);
	flight->lost = faulty && sim_chance(sim, 10);
	uint64_t delay_ns = 100 * NS_PER_US + sim_random(sim, 2 * NS_PER_MS);
	if (faulty && sim_chance(sim, 10))
		delay_ns += sim_random(sim, 3 * NS_PER_S);
	if (flight->target->process.life != ticket.life) {
		flight->lost = true;
		sim_post(sim, NULL, delay_ns, run_arrive, flight);
	} else {
		sim_post(sim, &flight->target->process, delay_ns, run_arrive, flight);
	}
}

void sim_transfer_send(struct sim_node *node, node_handle handle, const kv_block_id blocks[],
		       uint32_t first, uint32_t end, uint32_t base, uint32_t layer_first,
		       uint32_t layer_end)
{
	for (uint32_t layer = layer_first; layer < layer_end; layer++)
		for (uint32_t block = first; block < end; block++)
			flight_start(node, handle, (block - base) * SIM_LAYERS + layer, blocks[block],
				     layer);
}

void sim_transfer_resend(struct sim_node *node, const struct node_action *action)
{
	uint32_t index = action->resend.index;

	flight_start(node, action->handle, index,
		     action->resend.blocks[action->resend.base + index / SIM_LAYERS],
		     index % SIM_LAYERS);
}

/* Those that the receiver has not begun to take may still be called back. */
void sim_transfer_cancel(struct sim_node *node, node_handle handle)
{
	list_for_each(link, &node->flights) {
		struct sim_flight *flight = list_entry(link, struct sim_flight, link);
		if (flight->handle.v == handle.v && sim_chance(node->sim, 500))
			flight->cancelled = true;
	}
}

/* Flights stay in the queue and find the life gone; nothing of the node's memory is read. */
void sim_transfer_drop(struct sim_node *node)
{
	list_for_each_safe(link, after, &node->flights)
		list_remove(link);
	list_for_each_safe(link, after, &node->expects)
		expect_free(list_entry(link, struct sim_expect, link));
	memset(node->outgoing, 0, 64 * sizeof *node->outgoing);
}
