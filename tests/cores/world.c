#include "tests/cores/world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "baton.pb-c.h"
#include "proto/frame.h"
#include "tests/cores/world_private.h"

uint32_t world_random(struct world *w, uint32_t below)
{
	return (uint32_t)(rand_next(&w->random) >> 33) % below;
}

bool world_chance(struct world *w, uint32_t permille)
{
	return world_random(w, 1000) < permille;
}

struct world_item *world__item_at(struct world *w, enum item_kind kind, uint64_t at_ns)
{
	struct world_item *item = calloc(1, sizeof *item), **place = &w->items;
	item->kind = kind;
	item->at_ns = at_ns;
	item->sequence = w->sequence++;
	while (*place && (*place)->at_ns <= at_ns)
		place = &(*place)->next;
	item->next = *place;
	*place = item;
	return item;
}

static struct world_item *item_in_order(struct world *w, enum item_kind kind, uint32_t from,
					uint32_t to)
{
	uint64_t at = w->now_ns + (10 + world_random(w, 1000)) * NS_PER_US;
	at = MAX(at, w->channel_ns[from][to] + 1);
	w->channel_ns[from][to] = at;
	struct world_item *item = world__item_at(w, kind, at);
	item->from = from;
	item->to = to;
	item->from_incarnation = from < WORLD_NODES ? w->nodes[from].incarnation : 0;
	item->to_incarnation = to < WORLD_NODES ? w->nodes[to].incarnation : 0;
	return item;
}

void world__send_frame(struct world *w, uint32_t from, uint32_t to, uint64_t to_incarnation,
		       uint16_t type, struct buf *body)
{
	struct world_item *item = item_in_order(w, ITEM_FRAME, from, to);
	CHECK(!body->failed);
	item->to_incarnation = to_incarnation;
	if (from != WORLD_CONDUCTOR && world_chance(w, w->faults.frame_loss_permille))
		item->to_incarnation = UINT64_MAX; /* nobody's */
	item->type = type;
	item->bytes = (uint32_t)body->bytes;
	item->body = buf_steal(body);
}

uint32_t world__node_of(const struct world *w, uint64_t incarnation)
{
	for (uint32_t i = 0; i < WORLD_NODES; i++) {
		if (w->nodes[i].incarnation == incarnation)
			return i;
	}
	return WORLD_NODES;
}

/* ---- actions ---- */

static void to_conductor(struct world *w, uint32_t node, const struct node_action *action)
{
	struct world_item *item = item_in_order(w, ITEM_REPORT, node, WORLD_CONDUCTOR);
	item->action = *action;
	if (action->kind == NODE_DO_TOKENS) {
		CHECK(action->tokens.count <= NODE_CHOICES_MAX);
		for (uint32_t i = 0; i < action->tokens.count; i++)
			item->tokens[i] = action->tokens.v[i];
		item->action.tokens.v = item->tokens;
	}
	/* The bytes that would go out have to be good too. */
	static struct sample_result results[WORLD_SEQUENCES + NODE_CHOICES_MAX];
	struct buf body;
	buf_init(&body, 0);
	if (action->kind == NODE_DO_TOKENS) {
		node_codec_tokens(&body, action, results, 2);
		Baton__Tokens *read = baton__tokens__unpack(NULL, body.bytes,
							    (const uint8_t *)body.data);
		CHECK(read && read->n_runs == action->tokens.count);
		baton__tokens__free_unpacked(read, NULL);
	} else {
		node_codec_returned(&body, action);
		Baton__Returned *read = baton__returned__unpack(NULL, body.bytes,
								(const uint8_t *)body.data);
		CHECK(read && read->reason == action->returned.reason);
		baton__returned__free_unpacked(read, NULL);
	}
	buf_fini(&body);
}

static void do_reserve(struct world *w, uint32_t node, const struct node_action *action)
{
	struct world_node *n = &w->nodes[node];
	struct buf body;

	if (action->reserve.local) {
		struct node_event event = { .kind = NODE_RESERVE, .now_ns = w->now_ns };
		event.reserve.request = *action->reserve.request;
		event.reserve.source = event.reserve.target = n->incarnation;
		event.reserve.source_node = "";
		event.reserve.predicted_tokens = action->reserve.predicted_tokens;
		event.reserve.local = true;
		return world__step_core(w, node, &event, true);
	}
	world__remember_sender(w, node, action);
	uint32_t target = world__node_of(w, action->reserve.peer->incarnation);
	if (target == WORLD_NODES)
		return; /* the connection fails; PEER_LOST says so */
	buf_init(&body, 0);
	node_codec_reserve(&body, action, n->incarnation, "p");
	world__send_frame(w, node, target, action->reserve.peer->incarnation, FRAME_RESERVE, &body);
}

static void answer_local(struct world *w, uint32_t node, const struct node_action *action,
			 bool accepted)
{
	struct node_event event = { .kind = NODE_RESERVE_ANSWER, .now_ns = w->now_ns };
	event.answer.ref = action->ref;
	event.answer.accepted = accepted;
	event.answer.reason = "";
	world__step_core(w, node, &event, false);
}

static void to_peer(struct world *w, uint32_t node, uint64_t incarnation, uint16_t type,
		    const struct node_action *action)
{
	struct buf body;
	buf_init(&body, 0);
	if (type == FRAME_FIRST_TOKENS)
		node_codec_first_tokens(&body, action);
	else if (type == FRAME_RELEASE)
		node_codec_release(&body, &action->ref);
	else
		node_codec_reserve_answer(&body, &action->ref, false, 0, action->refuse.reason,
					  NULL, 0);
	uint32_t target = world__node_of(w, incarnation);
	if (target < WORLD_NODES)
		world__send_frame(w, node, target, incarnation, type, &body);
	buf_fini(&body);
}

static void release_local(struct world *w, uint32_t node, const struct node_ref *ref)
{
	struct node_event event = { .kind = NODE_RELEASE, .now_ns = w->now_ns };
	event.release.ref = *ref;
	world__step_core(w, node, &event, true);
}

static void do_action(struct world *w, uint32_t node, const struct node_action *action)
{
	struct world_node *n = &w->nodes[node];
	struct node_event event = { .now_ns = w->now_ns };

	switch (action->kind) {
	case NODE_DO_RESERVE:
		return do_reserve(w, node, action);
	case NODE_DO_SEND:
		for (uint32_t b = action->send.first; b < action->send.end; b++) {
			for (uint32_t l = 0; l < WORLD_LAYERS; l++)
				world__send_slice(w, node, action->handle, action->send.blocks,
						  action->send.base,
						  (b - action->send.base) * WORLD_LAYERS + l);
		}
		return;
	case NODE_DO_RESEND:
		w->resends++;
		return world__send_slice(w, node, action->handle, action->resend.blocks,
					 action->resend.base, action->resend.index);
	case NODE_DO_CANCEL_SEND:
		return; /* those under way end as they do */
	case NODE_DO_FIRST_TOKENS:
		return to_peer(w, node, action->first.peer->incarnation, FRAME_FIRST_TOKENS,
			       action);
	case NODE_DO_HAND_OVER:
		event.kind = NODE_ADOPT;
		event.adopt.ref = action->ref;
		event.adopt.sequence = action->adopt.sequence;
		event.adopt.tokens = action->adopt.tokens;
		event.adopt.token_count = action->adopt.token_count;
		return world__step_core(w, node, &event, true);
	case NODE_DO_RELEASE_PEER:
		if (action->release.local)
			return release_local(w, node, &action->ref);
		return to_peer(w, node, action->release.peer->incarnation, FRAME_RELEASE, action);
	case NODE_DO_GRANT:
		return action->grant.local ? answer_local(w, node, action, true)
					   : world__grant(w, node, action);
	case NODE_DO_REFUSE:
		if (action->refuse.local)
			return answer_local(w, node, action, false);
		return to_peer(w, node, action->refuse.source, FRAME_RESERVE_ANSWER, action);
	case NODE_DO_REVOKE:
		return world__revoke_expect(w, node, action->handle);
	case NODE_DO_TOKENS:
	case NODE_DO_RETURNED:
		n->preemptions += action->kind == NODE_DO_RETURNED &&
				  action->returned.reason == RETURNED_PREEMPTED;
		return to_conductor(w, node, action);
	case NODE_DO_FORGET:
		for (uint32_t i = 0; i < WORLD_SENDERS; i++) {
			if (n->senders[i].handle.v == action->handle.v)
				n->senders[i].handle.v = 0;
		}
		return;
	case NODE_ACTION_KIND_COUNT:
		break;
	}
	CHECK(!"an action");
}

/* Doing an action may step a core again (R5), whose actions then need a place of their own. */
static struct node_actions *actions_push(struct world *w)
{
	CHECK(w->depth < WORLD_DEPTH);
	node_actions_clear(&w->actions[w->depth]);
	return &w->actions[w->depth++];
}

void world__step_core(struct world *w, uint32_t node, const struct node_event *event,
		      bool to_decode)
{
	struct world_node *n = &w->nodes[node];
	struct node_actions *actions = actions_push(w);

	CHECK(to_decode ? n->decode != NULL : n->prefill != NULL);
	if (to_decode)
		decode_step(n->decode, event, actions);
	else
		prefill_step(n->prefill, event, actions);
	for (uint32_t i = 0; i < actions->count; i++)
		do_action(w, node, &actions->v[i]);
	w->depth--;
}

static void step_both(struct world *w, uint32_t node, const struct node_event *event)
{
	if (w->nodes[node].decode)
		world__step_core(w, node, event, true);
	if (w->nodes[node].prefill)
		world__step_core(w, node, event, false);
}

/* ---- batches ---- */

static void start_batch(struct world *w, uint32_t node)
{
	struct world_node *n = &w->nodes[node];

	if (n->batch_out)
		return;
	struct node_actions *actions = actions_push(w);
	node_batch_clear(&n->batch);
	if (n->decode)
		decode_schedule(n->decode, w->now_ns, &n->batch, actions);
	if (n->prefill)
		prefill_schedule(n->prefill, w->now_ns, &n->batch, actions);
	CHECK(n->batch.token_count <= n->batch.token_max);
	if (n->batch.row_count > 0) {
		n->batch_out = true;
		struct world_item *item = world__item_at(
			w, ITEM_BATCH, w->now_ns + (500 + world_random(w, 3000)) * NS_PER_US);
		item->to = node;
		item->to_incarnation = n->incarnation;
	}
	for (uint32_t i = 0; i < actions->count; i++)
		do_action(w, node, &actions->v[i]);
	w->depth--;
}

static void end_batch(struct world *w, uint32_t node)
{
	struct world_node *n = &w->nodes[node];
	uint32_t sampled[WORLD_SEQUENCES + NODE_CHOICES_MAX] = { 0 };

	for (uint32_t i = 0; i < n->batch.copy_count; i++) {
		CHECK(kv_pool_block(&n->kv.pool, n->batch.copies[i].source)->state == KV_USED);
		n->memory[n->batch.copies[i].target.v] = n->memory[n->batch.copies[i].source.v];
	}
	n->copies += n->batch.copy_count;
	n->batches++;
	for (uint32_t i = 0; i < n->batch.row_count; i++)
		world__engine_row(n, &n->batch.rows[i], sampled);
	for (uint32_t i = 0; i < n->batch.row_count; i++) {
		const struct node_rows *row = &n->batch.rows[i];
		for (uint32_t b = row->send_first; b < row->send_end; b++) {
			for (uint32_t l = 0; l < WORLD_LAYERS; l++)
				world__send_slice(w, node, row->handle, row->blocks, row->send_base,
						  (b - row->send_base) * WORLD_LAYERS + l);
		}
	}
	n->batch_out = false;
	struct node_event event = { .kind = NODE_BATCH_DONE, .now_ns = w->now_ns };
	event.batch.batch = &n->batch;
	event.batch.sampled = sampled;
	step_both(w, node, &event);
}

/* ---- what happens next ---- */

static void frame_arrives(struct world *w, struct world_item *item)
{
	struct world_node *n = &w->nodes[item->to];
	struct node_event event = { 0 };

	CHECK(node_codec_read(w->codec, item->type, (const uint8_t *)item->body, item->bytes,
			      &event) == 0);
	event.now_ns = w->now_ns;
	if (item->type == FRAME_RELEASE)
		return step_both(w, item->to, &event);
	if (item->type == FRAME_RESERVE_ANSWER && event.answer.accepted) {
		for (uint32_t i = 0; i < WORLD_SENDERS; i++) {
			if (n->senders[i].handle.v &&
			    node_ref_equal(&n->senders[i].ref, &event.answer.ref))
				world__keep_ticket(&n->senders[i], &event);
		}
	}
	world__step_core(w, item->to, &event,
			 item->type == FRAME_RESERVE || item->type == FRAME_FIRST_TOKENS);
}

static void transfer_event(struct world *w, struct world_item *item, enum node_event_kind kind,
			   node_handle handle)
{
	struct node_event event = { .kind = kind, .now_ns = w->now_ns };
	event.landed.handle = handle;
	world__step_core(w, item->to, &event, true);
}

static void happen(struct world *w, struct world_item *item)
{
	struct world_node *n = item->to < WORLD_NODES ? &w->nodes[item->to] : NULL;

	if (item->kind == ITEM_SLICE)
		return world__slice_arrives(w, item);
	if (item->kind == ITEM_REPORT)
		return w->on_action(w->context, item->from, &item->action);
	if (item->to_incarnation != n->incarnation)
		return; /* fenced */
	if (item->kind == ITEM_FRAME && item->from < WORLD_NODES &&
	    item->from_incarnation != w->nodes[item->from].incarnation)
		return; /* the sender's connection is gone */
	switch (item->kind) {
	case ITEM_FRAME:
		frame_arrives(w, item);
		break;
	case ITEM_SENT: {
		struct node_event event = { .kind = NODE_SLICE_SENT, .now_ns = w->now_ns };
		event.slice.handle = item->handle;
		event.slice.index = item->index;
		event.slice.status = item->status;
		world__step_core(w, item->to, &event, false);
		break;
	}
	case ITEM_REVOKED: {
		struct world_expect *expect = &n->expects[item->expect];
		if (!expect->open || expect->generation != item->generation)
			break;
		expect->open = expect->revoking = false;
		transfer_event(w, item, NODE_REVOKED, expect->handle);
		break;
	}
	case ITEM_EXPECT_FAILED:
		transfer_event(w, item, NODE_EXPECT_FAILED, item->handle);
		break;
	case ITEM_BATCH:
		end_batch(w, item->to);
		break;
	default:
		CHECK(!"a kind");
	}
}

bool world_step(struct world *w)
{
	for (uint32_t i = 0; i < WORLD_NODES; i++)
		start_batch(w, i);
	struct world_item *item = w->items;
	if (!item)
		return false;
	w->items = item->next;
	w->now_ns = MAX(w->now_ns, item->at_ns);
	happen(w, item);
	free(item->body);
	free(item);
	return true;
}

/* ---- nodes ---- */

static void poison(void *context, kv_block_id block)
{
	struct world_node *n = context;
	memset(&n->memory[block.v], 0xdd, sizeof n->memory[block.v]);
}

static void node_start(struct world *w, struct world_node *n)
{
	n->alive = true;
	n->incarnation = ++w->incarnations + 1000;
	/* Each life has its own size, down to an arena that one sequence can fill. */
	uint32_t blocks = WORLD_BLOCKS_MIN + world_random(w, WORLD_BLOCKS - WORLD_BLOCKS_MIN + 1);
	uint32_t budget = 1 + world_random(w, 32);
	CHECK(kv_node_init(&n->kv, blocks, WORLD_BLOCK_TOKENS) == 0);
	n->memory = calloc(WORLD_BLOCKS, sizeof *n->memory);
	n->kv.pool.poison = poison;
	n->kv.pool.poison_context = n;
	CHECK(node_batch_init(&n->batch, WORLD_SEQUENCES, budget) == 0);
	n->batch_out = false;
	memset(n->senders, 0, sizeof n->senders);
	memset(n->expects, 0, sizeof n->expects);
	if (n->role & NODE_ROLE_PREFILL) {
		struct prefill_config config = {
			.incarnation = n->incarnation,
			.model = WORLD_MODEL,
			.layer_count = WORLD_LAYERS,
			.max_model_len = WORLD_MODEL_LEN,
			.requests_max = 16,
			.chunk_tokens = 1 + world_random(w, 20),
			.ahead_tokens = budget,
			.predicted_tokens = 6,
			.eos_ids = { WORLD_EOS },
			.eos_count = 1,
			.answer_timeout_ns = 200 * NS_PER_MS,
			.send_timeout_ns = 500 * NS_PER_MS,
		};
		CHECK(prefill_new(&config, &n->kv, &n->prefill) == 0);
	}
	if (n->role & NODE_ROLE_DECODE) {
		struct decode_config config = {
			.incarnation = n->incarnation,
			.model = WORLD_MODEL,
			.layer_count = WORLD_LAYERS,
			.max_model_len = WORLD_MODEL_LEN,
			.sequences_max = WORLD_SEQUENCES,
			.eos_ids = { WORLD_EOS },
			.eos_count = 1,
			.landing_timeout_ns = NS_PER_S,
		};
		CHECK(decode_new(&config, &n->kv, &n->decode) == 0);
	}
}

static void node_stop(struct world_node *n)
{
	prefill_free(n->prefill);
	decode_free(n->decode);
	n->prefill = NULL;
	n->decode = NULL;
	kv_node_fini(&n->kv);
	node_batch_fini(&n->batch);
	free(n->memory);
}

void world_init(struct world *w, uint64_t seed, const enum node_role roles[WORLD_NODES])
{
	*w = (struct world){ .random = seed, .now_ns = NS_PER_S };
	w->codec = node_codec_new(
		&(struct node_codec_limits){ WORLD_VOCAB, WORLD_MODEL_LEN });
	CHECK(w->codec);
	for (uint32_t i = 0; i < WORLD_DEPTH; i++)
		CHECK(node_actions_init(&w->actions[i], 64, WORLD_SEQUENCES + NODE_CHOICES_MAX) ==
		      0);
	for (uint32_t i = 0; i < WORLD_NODES; i++) {
		w->nodes[i].role = roles[i];
		node_start(w, &w->nodes[i]);
	}
}

void world_fini(struct world *w)
{
	for (uint32_t i = 0; i < WORLD_NODES; i++)
		node_stop(&w->nodes[i]);
	node_codec_free(w->codec);
	for (uint32_t i = 0; i < WORLD_DEPTH; i++)
		node_actions_fini(&w->actions[i]);
	while (w->items) {
		struct world_item *item = w->items;
		w->items = item->next;
		free(item->body);
		free(item);
	}
}

void world_crash(struct world *w, uint32_t node)
{
	struct world_node *n = &w->nodes[node];
	uint64_t lost = n->incarnation;

	node_stop(n);
	node_start(w, n);
	for (uint32_t i = 0; i < WORLD_NODES; i++) {
		if (i != node)
			world_tell(w, i, NODE_PEER_LOST, lost);
	}
}

void world_tell(struct world *w, uint32_t node, enum node_event_kind kind, uint64_t value)
{
	struct node_event event = { .kind = kind, .now_ns = w->now_ns };
	if (kind == NODE_DRAIN)
		event.drain.grace_ns = value;
	else
		event.lost.incarnation = value;
	step_both(w, node, &event);
}

/* The conductor's frames, packed here since its codec is its own. */
static void pack_prefill(const struct node_event *event, struct buf *out)
{
	const struct node_request *request = &event->prefill.request;
	uint32_t output = request->token_count - request->prompt_count;
	Baton__Prefill to = BATON__PREFILL__INIT;
	Baton__Ref ref = BATON__REF__INIT;
	Baton__Sampling sampling = BATON__SAMPLING__INIT;
	struct node_sampling from = request->sampling;

	ref.conductor = request->ref.conductor;
	ref.request = request->ref.request;
	ref.epoch = request->ref.epoch;
	sampling.seed = from.seed;
	sampling.max_tokens = from.max_tokens;
	sampling.has_min_tokens = true;
	sampling.min_tokens = from.min_tokens;
	sampling.has_ignore_eos = true;
	sampling.ignore_eos = from.ignore_eos;
	sampling.n_stop_ids = from.stop_id_count;
	sampling.stop_ids = from.stop_ids;
	to.ref = &ref;
	to.dispatch = event->prefill.dispatch;
	to.model = (char *)(uintptr_t)WORLD_MODEL;
	to.sampling = &sampling;
	to.prompt = (uint32_t *)(uintptr_t)request->tokens;
	to.n_prompt = request->prompt_count;
	to.output = to.prompt + request->prompt_count;
	to.n_output = output;
	to.choices = (uint32_t *)(uintptr_t)request->choices;
	to.n_choices = request->choice_count;
	to.root_key.data = (uint8_t *)(uintptr_t)request->root_key.bytes;
	to.root_key.len = sizeof request->root_key.bytes;
	to.has_priority = true;
	to.priority = request->priority;
	if (event->prefill.has_decode) {
		to.decode_node = (char *)(uintptr_t) "d";
		to.has_decode_incarnation = true;
		to.decode_incarnation = event->prefill.decode.incarnation;
	}
	size_t bytes = protobuf_c_message_get_packed_size(&to.base);
	out->bytes += protobuf_c_message_pack(&to.base, buf_reserve(out, bytes));
}

void world_send_prefill(struct world *w, uint32_t node, const struct node_event *event)
{
	struct buf body;
	buf_init(&body, 0);
	pack_prefill(event, &body);
	world__send_frame(w, WORLD_CONDUCTOR, node, w->nodes[node].incarnation, FRAME_PREFILL,
			  &body);
}

void world_send_release(struct world *w, uint32_t node, const struct node_ref *ref, bool one_choice,
			uint32_t choice)
{
	Baton__Release to = BATON__RELEASE__INIT;
	Baton__Ref to_ref = BATON__REF__INIT;
	struct buf body;

	to_ref.conductor = ref->conductor;
	to_ref.request = ref->request;
	to_ref.epoch = ref->epoch;
	to.ref = &to_ref;
	to.has_choice = one_choice;
	to.choice = choice;
	buf_init(&body, 0);
	size_t bytes = protobuf_c_message_get_packed_size(&to.base);
	body.bytes += protobuf_c_message_pack(&to.base, buf_reserve(&body, bytes));
	world__send_frame(w, WORLD_CONDUCTOR, node, w->nodes[node].incarnation, FRAME_RELEASE,
			  &body);
}

/* ---- invariants ---- */

void world_check(const struct world *w)
{
	for (uint32_t i = 0; i < WORLD_NODES; i++) {
		const struct world_node *n = &w->nodes[i];
		uint32_t refs[WORLD_BLOCKS] = { 0 };

		kv_node_check(&n->kv);
		if (n->prefill) {
			prefill_check(n->prefill);
			prefill_count_refs(n->prefill, refs);
		}
		if (n->decode) {
			decode_check(n->decode);
			decode_count_refs(n->decode, refs);
		}
		for (uint32_t b = 0; b < n->kv.pool.block_count; b++)
			CHECK(refs[b] == n->kv.pool.blocks[b].refs);
	}
}

bool world_idle(const struct world *w)
{
	for (uint32_t i = 0; i < WORLD_NODES; i++) {
		const struct world_node *n = &w->nodes[i];
		if ((n->prefill && !prefill_idle(n->prefill)) ||
		    (n->decode && !decode_idle(n->decode)) || !kv_node_idle(&n->kv))
			return false;
	}
	return true;
}
