#include "decode-node/core/decode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "decode-node/core/decode_core.h"

/* ---- Reserve ---- */

static void refuse(const struct node_event *event, node_handle handle, const char *reason,
		   struct node_actions *actions)
{
	struct node_action *action = node_actions_add(actions, NODE_DO_REFUSE,
						      &event->reserve.request.ref, handle);
	action->refuse.source = event->reserve.source;
	action->refuse.reason = reason;
	action->refuse.local = event->reserve.local;
}

/* Why a Reserve is refused without looking at blocks; NULL: it is not. */
static const char *refusal(const struct decode *d, const struct node_event *event)
{
	const struct node_request *request = &event->reserve.request;

	if (event->reserve.target != d->config.incarnation)
		return "meant for an earlier life of this node";
	if (d->draining)
		return "the node is draining";
	if (strcmp(request->model, d->config.model) != 0)
		return "another model is served here";
	if (decode__find(d, &request->ref))
		return "known already";
	if (request->token_count >= d->config.max_model_len)
		return "longer than this node can hold";
	if (request->choice_count > d->seats_free_count || list_empty(&d->requests_free))
		return "every sequence is taken";
	return NULL;
}

/* Blocks that the predicted output of all choices will take: growth of each, and a copy of the
 * prompt's partly filled tail for each but the last. */
static uint32_t growth_blocks(const struct decode *d, const struct node_event *event)
{
	const struct node_request *request = &event->reserve.request;
	uint32_t block_tokens = d->node->block_tokens;
	uint64_t end = MIN((uint64_t)request->token_count + event->reserve.predicted_tokens,
			   d->config.max_model_len);
	uint32_t each = kv_blocks_for(end, block_tokens) -
			kv_blocks_for(request->token_count, block_tokens);
	uint32_t copies = request->token_count % block_tokens ? request->choice_count - 1 : 0;
	return each * request->choice_count + copies;
}

/* Blocks for a newcomer: what is neither promised nor the next block of those who run. Without
 * the latter it would be let in only to be preempted by their next growth, again and again. */
static uint64_t room(const struct decode *d)
{
	uint64_t spoken_for = d->promised_blocks + d->running_count;
	uint32_t available = kv_node_available(d->node);
	return available > spoken_for ? available - spoken_for : 0;
}

/* Takes the prompt's blocks, those that are here already first. Return: blocks that were here,
 * or -ENOSPC. */
static int take_blocks(struct decode *d, struct kv_sequence *landing,
		       const struct node_request *from, uint32_t growth)
{
	kv_sequence_start(landing, &from->root_key, from->tokens, from->token_count);
	uint32_t matched = kv_sequence_match(landing, d->node, 0);
	uint64_t rest = kv_blocks_for(from->token_count, d->node->block_tokens) - matched;

	if (rest + growth > room(d)) {
		kv_sequence_drop(landing, d->node);
		return -ENOSPC;
	}
	CHECK(kv_sequence_cover(landing, d->node, KV_RESERVED) >= 0);
	return (int)matched;
}

static void on_reserve(struct decode *d, const struct node_event *event,
		       struct node_actions *actions)
{
	const struct node_request *from = &event->reserve.request;

	CHECK(from->token_count > 0 && from->token_count >= from->prompt_count);
	CHECK(from->choice_count > 0 && from->choice_count <= NODE_CHOICES_MAX);
	const char *reason = refusal(d, event);
	if (reason)
		return refuse(event, (node_handle){ 0 }, reason, actions);

	struct decode_request *request = list_entry(d->requests_free.next, struct decode_request,
						    link);
	uint32_t growth = growth_blocks(d, event);
	int cached = 0;
	if (!event->reserve.local)
		cached = take_blocks(d, &request->landing, from, growth);
	else if (growth > room(d))
		cached = -ENOSPC;
	if (cached < 0)
		return refuse(event, (node_handle){ 0 }, "no room for prompt and predicted output",
			      actions);

	CHECK(decode__open(d, event) == request);
	request->promised_blocks = growth;
	d->promised_blocks += growth;
	request->landed = !event->reserve.local && (uint32_t)cached == request->landing.block_count;
	request->expecting = !event->reserve.local && !request->landed;

	struct node_action *action = node_actions_add(actions, NODE_DO_GRANT, &request->ref,
						      decode__handle(d, request));
	action->grant.source = request->source;
	action->grant.blocks = request->landing.blocks;
	action->grant.cached_blocks = (uint32_t)cached;
	action->grant.block_count = request->landing.block_count;
	action->grant.local = request->local;
}

/* ---- landing ---- */

/* Everything has landed and the first tokens are known: the choices take over the blocks. */
static void run(struct decode *d, struct decode_request *request)
{
	d->promised_blocks -= request->promised_blocks;
	request->promised_blocks = 0;
	sm_move(decode__states, &request->state, DECODE_RUNNING);
	list_for_each(node, &request->seats) {
		struct decode_seat *seat = list_entry(node, struct decode_seat, link);
		if (node->next == &request->seats)
			kv_sequence_move(&seat->sequence, &request->landing);
		else
			kv_sequence_fork(&seat->sequence, &request->landing, d->node);
		seat->position = request->output_base + 1;
		sm_move(decode__seat_states, &seat->state, SEAT_RUNNING);
		decode__enter(d, seat);
	}
}

static void progress(struct decode *d, struct decode_request *request, uint64_t now_ns)
{
	request->progress_ns = now_ns;
	if (request->landed && request->first_known)
		run(d, request);
	else if (request->state == DECODE_RESERVED)
		sm_move(decode__states, &request->state, DECODE_LANDING);
}

static void on_slice_landed(struct decode *d, const struct node_event *event)
{
	struct decode_request *request = decode__by_handle(d, event->landed.handle);

	if (!request || !request->expecting || request->state == DECODE_ENDING) {
		d->counters.events_stale++;
		return;
	}
	request->landed_bytes += event->landed.bytes;
	progress(d, request, event->now_ns);
}

/* The transfer is over, by landing whole, by being taken back or by never having begun. From
 * here on nothing is written into its blocks any more. */
static void on_transfer_over(struct decode *d, const struct node_event *event,
			     struct node_actions *actions)
{
	struct decode_request *request = decode__by_handle(d, event->landed.handle);

	if (!request || !request->expecting) {
		d->counters.events_stale++;
		return;
	}
	request->expecting = false;
	if (request->state == DECODE_ENDING) {
		kv_sequence_unquarantine(&request->landing, d->node);
		return decode__settle(d, request, actions);
	}
	if (event->kind != NODE_LANDED_ALL)
		return decode__return(d, request, RETURNED_TRANSFER, actions);
	kv_sequence_land(&request->landing, d->node);
	kv_sequence_commit(&request->landing, d->node, request->prompt_tokens);
	request->landed = true;
	if (request->first_known)
		request->exposed_ns = event->now_ns - request->first_ns;
	progress(d, request, event->now_ns);
}

/* No transfer could be granted: p hears a refusal, the conductor hears it from p. */
static void on_expect_failed(struct decode *d, const struct node_event *event,
			     struct node_actions *actions)
{
	struct decode_request *request = decode__by_handle(d, event->landed.handle);

	if (!request || !request->expecting) {
		d->counters.events_stale++;
		return;
	}
	request->expecting = false;
	if (request->state == DECODE_ENDING) {
		kv_sequence_unquarantine(&request->landing, d->node);
		return decode__settle(d, request, actions);
	}
	struct node_action *action = node_actions_add(actions, NODE_DO_REFUSE, &request->ref,
						      decode__handle(d, request));
	action->refuse.source = request->source;
	action->refuse.reason = "too many transfers are open";
	decode__end(d, request, actions);
}

/* Choices that p names go on, unless they have ended; those it does not name were released. */
static void know_first(struct decode *d, struct decode_request *request,
		       const struct node_event *event, const struct node_first_token tokens[],
		       uint32_t token_count, struct node_actions *actions)
{
	request->first_known = true;
	request->first_ns = event->now_ns;
	list_for_each_safe(node, after, &request->seats) {
		struct decode_seat *seat = list_entry(node, struct decode_seat, link);
		for (uint32_t i = 0; i < token_count; i++) {
			if (tokens[i].choice != seat->choice || tokens[i].ended)
				continue;
			seat->first_known = true;
			seat->token = tokens[i].token;
		}
		if (seat->first_known)
			continue;
		bool last = request->seats.next->next == &request->seats;
		decode__seat_end(d, seat, actions);
		if (last)
			return;
	}
	progress(d, request, event->now_ns);
}

static bool waits_for_first(const struct decode_request *request)
{
	return (request->state == DECODE_RESERVED || request->state == DECODE_LANDING) &&
	       !request->first_known;
}

static void on_first_tokens(struct decode *d, const struct node_event *event,
			    struct node_actions *actions)
{
	struct decode_request *request = decode__find(d, &event->first.ref);

	if (!request || !waits_for_first(request) || request->local) {
		d->counters.events_stale++;
		return;
	}
	know_first(d, request, event, event->first.tokens, event->first.token_count, actions);
}

static void on_adopt(struct decode *d, const struct node_event *event, struct node_actions *actions)
{
	struct decode_request *request = decode__find(d, &event->adopt.ref);

	if (!request || !waits_for_first(request) || !request->local) {
		d->counters.events_stale++;
		kv_sequence_drop(event->adopt.sequence, d->node);
		return;
	}
	kv_sequence_move(&request->landing, event->adopt.sequence);
	request->landed = true;
	know_first(d, request, event, event->adopt.tokens, event->adopt.token_count, actions);
}

/* ---- a batch is done ---- */

/* Adds a token to the Tokens of this request; neighbours in the batch share one. */
static void report(struct decode *d, struct decode_request *request, struct node_token token,
		   struct node_actions *actions)
{
	struct node_action *action = actions->count ? &actions->v[actions->count - 1] : NULL;

	CHECK(actions->token_count < actions->token_capacity);
	actions->tokens[actions->token_count] = token;
	if (!action || action->kind != NODE_DO_TOKENS ||
	    !node_ref_equal(&action->ref, &request->ref)) {
		action = node_actions_add(actions, NODE_DO_TOKENS, &request->ref,
					  decode__handle(d, request));
		action->tokens.v = &actions->tokens[actions->token_count];
		action->tokens.want_logprobs = request->sampling.want_logprobs;
		if (!request->reported && !request->local) {
			action->tokens.has_transfer = true;
			action->tokens.transfer_ns = request->exposed_ns;
			action->tokens.transfer_bytes = request->landed_bytes;
		}
		request->reported = true;
	}
	action->tokens.count++;
	actions->token_count++;
}

static struct decode_seat *seat_by_handle(struct decode *d, node_handle handle)
{
	uint32_t index = node_handle_index(handle);
	CHECK(index < d->config.sequences_max);
	CHECK(decode__seat_handle(d, &d->seats[index]).v == handle.v);
	return &d->seats[index];
}

static void on_token(struct decode *d, struct decode_seat *seat, uint32_t sample, uint32_t token,
		     struct node_actions *actions)
{
	struct decode_request *request = seat->request;
	uint32_t held = seat->sequence.token_count + 1; /* with this token */
	enum node_finish finish = node_token_finish(
		&request->stops, &request->sampling, token, seat->position,
		held < d->config.max_model_len ? d->config.max_model_len - held : 0);

	report(d, request,
	       (struct node_token){ seat->choice, seat->position, token, sample, finish }, actions);
	seat->token = token;
	seat->position++;
	if (finish != NODE_FINISH_NONE)
		decode__seat_end(d, seat, actions);
}

static void on_batch_done(struct decode *d, const struct node_event *event,
			  struct node_actions *actions)
{
	const struct node_batch *batch = event->batch.batch;

	for (uint32_t i = 0; i < batch->row_count; i++) {
		const struct node_rows *row = &batch->rows[i];
		if (row->role != NODE_ROLE_DECODE)
			continue;
		struct decode_seat *seat = seat_by_handle(d, row->handle);
		CHECK(seat->in_batch);
		seat->in_batch = false;
		d->counters.decode_tokens++;
		kv_sequence_commit(&seat->sequence, d->node, seat->sequence.token_count);
		if (seat->state == SEAT_RUNNING)
			on_token(d, seat, row->sample_first,
				 event->batch.sampled[row->sample_first], actions);
	}
	d->batch_out = false;
	list_for_each_safe(node, after, &d->requests_used)
		decode__settle(d, list_entry(node, struct decode_request, link), actions);
}

/* ---- ends from outside ---- */

static void on_release(struct decode *d, const struct node_event *event,
		       struct node_actions *actions)
{
	struct decode_request *request = decode__find(d, &event->release.ref);

	if (!request || request->state == DECODE_ENDING) {
		d->counters.events_stale++;
		return;
	}
	/* p may end (lose the conductor, tire of waiting for the last outcome) after all has landed
	 * here. The conductor counts on this node to go on, and tells it when it does not. */
	if (event->release.by_peer && request->state == DECODE_RUNNING) {
		d->counters.events_stale++;
		return;
	}
	if (!event->release.one_choice)
		return decode__end(d, request, actions);
	list_for_each_safe(node, after, &request->seats) {
		struct decode_seat *seat = list_entry(node, struct decode_seat, link);
		if (seat->choice == event->release.choice && seat->state != SEAT_ENDING)
			return decode__seat_end(d, seat, actions);
	}
	d->counters.events_stale++;
}

static void for_each_living(struct decode *d, const struct node_event *event,
			    struct node_actions *actions,
			    void (*end)(struct decode *, struct decode_request *,
					const struct node_event *, struct node_actions *))
{
	list_for_each_safe(node, after, &d->requests_used) {
		struct decode_request *request = list_entry(node, struct decode_request, link);
		if (request->state != DECODE_ENDING)
			end(d, request, event, actions);
	}
}

static void end_with_peer(struct decode *d, struct decode_request *request,
			  const struct node_event *event, struct node_actions *actions)
{
	if (request->state != DECODE_RUNNING && !request->local &&
	    request->source == event->lost.incarnation)
		decode__return(d, request, RETURNED_PEER_LOST, actions);
}

static void end_with_conductor(struct decode *d, struct decode_request *request,
			       const struct node_event *event, struct node_actions *actions)
{
	if (request->ref.conductor == event->lost.incarnation)
		decode__end(d, request, actions);
}

static void end_drained(struct decode *d, struct decode_request *request,
			const struct node_event *event, struct node_actions *actions)
{
	if (event->now_ns >= d->drain_until_ns)
		decode__return(d, request, RETURNED_DRAIN, actions);
}

static void end_late(struct decode *d, struct decode_request *request,
		     const struct node_event *event, struct node_actions *actions)
{
	/* A prompt that this process computes itself needs no such guard. */
	if (request->state != DECODE_RUNNING && !request->local &&
	    event->now_ns - request->progress_ns >= d->config.landing_timeout_ns)
		decode__return(d, request, RETURNED_TIMEOUT, actions);
}

/* ---- the interface ---- */

void decode_step(struct decode *d, const struct node_event *event, struct node_actions *actions)
{
	switch (event->kind) {
	case NODE_RESERVE:
		return on_reserve(d, event, actions);
	case NODE_EXPECT_FAILED:
		return on_expect_failed(d, event, actions);
	case NODE_SLICE_LANDED:
		return on_slice_landed(d, event);
	case NODE_LANDED_ALL:
	case NODE_REVOKED:
		return on_transfer_over(d, event, actions);
	case NODE_FIRST_TOKENS:
		return on_first_tokens(d, event, actions);
	case NODE_ADOPT:
		return on_adopt(d, event, actions);
	case NODE_BATCH_DONE:
		return on_batch_done(d, event, actions);
	case NODE_RELEASE:
		return on_release(d, event, actions);
	case NODE_PEER_LOST:
		return for_each_living(d, event, actions, end_with_peer);
	case NODE_CONDUCTOR_LOST:
		return for_each_living(d, event, actions, end_with_conductor);
	case NODE_DRAIN:
		d->draining = true;
		d->drain_until_ns = event->now_ns + event->drain.grace_ns;
		return for_each_living(d, event, actions, end_drained);
	case NODE_UNDRAIN:
		d->draining = false;
		return;
	case NODE_TICK:
		for_each_living(d, event, actions, end_late);
		if (d->draining)
			for_each_living(d, event, actions, end_drained);
		return;
	case NODE_PREFILL:
	case NODE_RESERVE_ANSWER:
	case NODE_SLICE_SENT:
	case NODE_EVENT_KIND_COUNT:
		break;
	}
	CHECK(!"an event of the decode role");
}

int decode_new(const struct decode_config *config, struct kv_node *node, struct decode **ret_decode)
{
	if (!config->model || !config->sequences_max || !config->max_model_len ||
	    config->eos_count > NODE_EOS_MAX)
		return -EINVAL;
	struct decode *d = calloc(1, sizeof *d);
	if (!d)
		return -ENOMEM;
	d->config = *config;
	d->node = node;
	d->blocks_max = kv_blocks_for(config->max_model_len, node->block_tokens);
	list_init(&d->requests_free);
	list_init(&d->requests_used);
	list_init(&d->seats_free);
	list_init(&d->running);
	d->requests = calloc(config->sequences_max, sizeof *d->requests);
	d->seats = calloc(config->sequences_max, sizeof *d->seats);
	int r = d->requests && d->seats ? 0 : -ENOMEM;
	for (uint32_t i = 0; r == 0 && i < config->sequences_max; i++) {
		struct decode_request *request = &d->requests[i];
		struct decode_seat *seat = &d->seats[i];
		request->generation = seat->generation = 1;
		list_init(&request->seats);
		list_init(&seat->running);
		list_push_back(&d->requests_free, &request->link);
		list_push_back(&d->seats_free, &seat->link);
		r = kv_sequence_init(&request->landing, d->blocks_max, node->block_tokens);
		if (r == 0)
			r = kv_sequence_init(&seat->sequence, d->blocks_max, node->block_tokens);
	}
	if (r < 0) {
		decode_free(d);
		return r;
	}
	d->seats_free_count = config->sequences_max;
	*ret_decode = d;
	return 0;
}

void decode_free(struct decode *d)
{
	if (!d)
		return;
	for (uint32_t i = 0; d->requests && d->seats && i < d->config.sequences_max; i++) {
		kv_sequence_fini(&d->requests[i].landing);
		kv_sequence_fini(&d->seats[i].sequence);
	}
	free(d->requests);
	free(d->seats);
	free(d);
}

void decode_renew(struct decode *d, uint64_t incarnation)
{
	d->config.incarnation = incarnation;
}
