/* What can be asked of a prefill core without changing it. */
#include "base/check.h"
#include "prefill-node/core/prefill_core.h"

void prefill_load(const struct prefill *p, struct node_load *load)
{
	for (uint32_t i = 0; i < p->config.requests_max; i++) {
		const struct prefill_slot *slot = &p->slots[i];
		if (slot->state == PREFILL_QUEUED || slot->state == PREFILL_RESERVING)
			load->waiting++;
		if (slot->state == PREFILL_QUEUED || slot->state == PREFILL_RESERVING ||
		    slot->state == PREFILL_RUNNING)
			load->queued_tokens += slot->request.token_count - slot->computed;
	}
	load->prefix_queries += p->counters.prefix_queries;
	load->prefix_hits += p->counters.prefix_hits;
	load->prefill_tokens += p->counters.prefill_tokens;
	load->slices_resent += p->counters.slices_resent;
	load->events_stale += p->counters.events_stale;
}

bool prefill_idle(const struct prefill *p)
{
	return list_empty(&p->queue) && list_empty(&p->active);
}

bool prefill_knows(const struct prefill *p, const struct node_ref *ref)
{
	for (uint32_t i = 0; i < p->config.requests_max; i++) {
		const struct prefill_slot *slot = &p->slots[i];
		if (slot->state != PREFILL_FREE && slot->state != PREFILL_ENDING &&
		    node_ref_equal(&slot->request.ref, ref))
			return true;
	}
	return false;
}

void prefill_count_refs(const struct prefill *p, uint32_t refs[])
{
	for (uint32_t i = 0; i < p->config.requests_max; i++) {
		const struct kv_sequence *sequence = &p->slots[i].sequence;
		for (uint32_t b = 0; b < sequence->block_count; b++)
			refs[sequence->blocks[b].v]++;
	}
}

static void check_slot(const struct prefill *p, const struct prefill_slot *slot)
{
	uint32_t blocks = slot->sequence.block_count;

	kv_sequence_check(&slot->sequence, p->node);
	switch (slot->state) {
	case PREFILL_FREE:
		CHECK(blocks == 0);
		break;
	case PREFILL_QUEUED:
		CHECK(blocks == 0);
		CHECK(!slot->reserved && !slot->in_batch);
		break;
	case PREFILL_RESERVING:
		CHECK(slot->reserved && !slot->in_batch);
		__attribute__((fallthrough));
	case PREFILL_RUNNING:
		CHECK(blocks == kv_blocks_for(slot->request.token_count, p->node->block_tokens));
		CHECK(slot->computed < slot->request.token_count);
		CHECK(slot->slices_done + slot->slices_open <= slot->slices_total);
		break;
	case PREFILL_SENDING:
		CHECK(!slot->in_batch);
		CHECK(slot->computed == slot->request.token_count);
		CHECK(slot->slices_open > 0);
		CHECK(slot->slices_done + slot->slices_open == slot->slices_total);
		break;
	case PREFILL_ENDING:
		CHECK(slot->in_batch || slot->slices_open > 0);
		break;
	default:
		CHECK(!"a state");
	}
	if (slot->in_batch)
		CHECK(p->batch_out);
}

void prefill_check(const struct prefill *p)
{
	uint32_t listed = 0;
	const struct prefill_slot *last = NULL;

	for (uint32_t i = 0; i < p->config.requests_max; i++)
		check_slot(p, &p->slots[i]);
	list_for_each(node, &p->free) {
		CHECK(list_entry(node, struct prefill_slot, link)->state == PREFILL_FREE);
		listed++;
	}
	list_for_each(node, &p->queue) {
		const struct prefill_slot *slot = list_entry(node, struct prefill_slot, link);
		CHECK(slot->state == PREFILL_QUEUED);
		CHECK(!last || last->order < slot->order);
		last = slot;
		listed++;
	}
	list_for_each(node, &p->active) {
		uint8_t state = list_entry(node, struct prefill_slot, link)->state;
		CHECK(state != PREFILL_FREE && state != PREFILL_QUEUED);
		listed++;
	}
	CHECK(listed == p->config.requests_max);
}

static void role_step(void *core, const struct node_event *event, struct node_actions *actions)
{
	prefill_step(core, event, actions);
}

static void role_schedule(void *core, uint64_t now_ns, struct node_batch *batch,
			  struct node_actions *actions)
{
	prefill_schedule(core, now_ns, batch, actions);
}

static void role_load(const void *core, struct node_load *load)
{
	prefill_load(core, load);
}

static bool role_idle(const void *core)
{
	return prefill_idle(core);
}

static bool role_knows(const void *core, const struct node_ref *ref)
{
	return prefill_knows(core, ref);
}

static void role_check(const void *core)
{
	prefill_check(core);
}

static void role_count_refs(const void *core, uint32_t refs[])
{
	prefill_count_refs(core, refs);
}

const struct node_role_ops prefill_role = {
	.name = "prefill",
	.role = NODE_ROLE_PREFILL,
	.step = role_step,
	.schedule = role_schedule,
	.load = role_load,
	.idle = role_idle,
	.knows = role_knows,
	.check = role_check,
	.count_refs = role_count_refs,
};
