/* What can be asked of a decode core without changing it. */
#include "base/check.h"
#include "decode-node/core/decode_core.h"

void decode_load(const struct decode *d, struct node_load *load)
{
	load->running += d->running_count;
	list_for_each(node, &d->running)
		load->running_tokens +=
			list_entry(node, struct decode_seat, running)->sequence.token_count;
	list_for_each(node, &d->requests_used) {
		const struct decode_request *request = list_entry(node, struct decode_request,
								  link);
		if (request->state == DECODE_RESERVED || request->state == DECODE_LANDING)
			load->reserved_tokens += request->reserved_tokens;
	}
	load->preemptions += d->counters.preemptions;
	load->decode_tokens += d->counters.decode_tokens;
	load->events_stale += d->counters.events_stale;
}

bool decode_idle(const struct decode *d)
{
	return list_empty(&d->requests_used);
}

bool decode_knows(const struct decode *d, const struct node_ref *ref)
{
	list_for_each(node, &d->requests_used) {
		const struct decode_request *request = list_entry(node, struct decode_request,
								  link);
		if (request->state != DECODE_ENDING && node_ref_equal(&request->ref, ref))
			return true;
	}
	return false;
}

static void count_blocks(const struct decode *d, const struct kv_sequence *sequence,
			 uint32_t refs[])
{
	for (uint32_t i = 0; i < sequence->block_count; i++) {
		kv_block_id block = sequence->blocks[i];
		refs[block.v] += kv_pool_block(&d->node->pool, block)->state == KV_USED;
	}
}

void decode_count_refs(const struct decode *d, uint32_t refs[])
{
	for (uint32_t i = 0; i < d->config.sequences_max; i++) {
		count_blocks(d, &d->requests[i].landing, refs);
		count_blocks(d, &d->seats[i].sequence, refs);
	}
}

static void check_seat(const struct decode *d, const struct decode_seat *seat)
{
	kv_sequence_check(&seat->sequence, d->node);
	switch (seat->state) {
	case SEAT_FREE:
	case SEAT_WAITING:
		CHECK(seat->sequence.block_count == 0);
		CHECK(!seat->in_batch);
		break;
	case SEAT_RUNNING:
		CHECK(seat->request->state == DECODE_RUNNING);
		CHECK(seat->sequence.block_count ==
		      kv_blocks_for(seat->sequence.token_count, d->node->block_tokens));
		CHECK(seat->position < seat->request->sampling.max_tokens);
		CHECK(seat->sequence.token_count + !seat->in_batch < d->config.max_model_len);
		break;
	case SEAT_ENDING:
		CHECK(d->batch_out);
		break;
	default:
		CHECK(!"a state");
	}
	if (seat->in_batch)
		CHECK(d->batch_out);
}

static uint32_t check_request(const struct decode *d, const struct decode_request *request)
{
	uint32_t blocks = request->landing.block_count, seats = 0;
	bool waits = request->state == DECODE_RESERVED || request->state == DECODE_LANDING;

	kv_sequence_check(&request->landing, d->node);
	list_for_each(node, &request->seats) {
		CHECK(list_entry(node, struct decode_seat, link)->request == request);
		seats++;
	}
	if (request->state == DECODE_FREE || request->state == DECODE_RUNNING)
		CHECK(blocks == 0 && !request->expecting);
	if (request->state == DECODE_FREE)
		CHECK(seats == 0);
	if (waits) {
		CHECK(seats > 0);
		CHECK(!(request->landed && request->first_known));
		CHECK(request->expecting == (!request->landed && !request->local));
	} else {
		CHECK(request->promised_blocks == 0);
	}
	if (request->state == DECODE_ENDING)
		CHECK(request->expecting || seats > 0);
	for (uint32_t i = 0; i < blocks && request->state == DECODE_ENDING; i++)
		CHECK(kv_pool_block(&d->node->pool, request->landing.blocks[i])->state ==
		      KV_QUARANTINED);
	return seats;
}

void decode_check(const struct decode *d)
{
	uint32_t seats = 0, free_seats = 0, requests = 0, running = 0;
	uint64_t promised = 0;

	for (uint32_t i = 0; i < d->config.sequences_max; i++) {
		seats += check_request(d, &d->requests[i]);
		promised += d->requests[i].promised_blocks;
		check_seat(d, &d->seats[i]);
		running += d->seats[i].state == SEAT_RUNNING;
	}
	CHECK(promised == d->promised_blocks);
	list_for_each(node, &d->seats_free) {
		CHECK(list_entry(node, struct decode_seat, link)->state == SEAT_FREE);
		free_seats++;
	}
	CHECK(free_seats == d->seats_free_count);
	CHECK(seats + free_seats == d->config.sequences_max);
	list_for_each(node, &d->requests_free)
		requests++;
	list_for_each(node, &d->requests_used)
		requests++;
	CHECK(requests == d->config.sequences_max);
	CHECK(running == d->running_count);
	list_for_each(node, &d->running) {
		CHECK(list_entry(node, struct decode_seat, running)->state == SEAT_RUNNING);
		running--;
	}
	CHECK(running == 0);
}

static void role_step(void *core, const struct node_event *event, struct node_actions *actions)
{
	decode_step(core, event, actions);
}

static void role_schedule(void *core, uint64_t now_ns, struct node_batch *batch,
			  struct node_actions *actions)
{
	decode_schedule(core, now_ns, batch, actions);
}

static void role_load(const void *core, struct node_load *load)
{
	decode_load(core, load);
}

static bool role_idle(const void *core)
{
	return decode_idle(core);
}

static bool role_knows(const void *core, const struct node_ref *ref)
{
	return decode_knows(core, ref);
}

static void role_check(const void *core)
{
	decode_check(core);
}

static void role_count_refs(const void *core, uint32_t refs[])
{
	decode_count_refs(core, refs);
}

const struct node_role_ops decode_role = {
	.name = "decode",
	.role = NODE_ROLE_DECODE,
	.step = role_step,
	.schedule = role_schedule,
	.load = role_load,
	.idle = role_idle,
	.knows = role_knows,
	.check = role_check,
	.count_refs = role_count_refs,
};
