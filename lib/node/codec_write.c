/* The writing half of codec.h. Messages are built on the stack over borrowed arrays and packed
 * straight into the buf; protobuf-c's structs are not const-correct, hence the casts. */
#include <stdio.h>

#include "baton.pb-c.h"
#include "base/check.h"
#include "node/codec.h"
#include "proto/frame.h"

static void pack(struct buf *out, const ProtobufCMessage *message)
{
	size_t bytes = protobuf_c_message_get_packed_size(message);
	uint8_t *room = buf_reserve(out, bytes);
	if (room)
		out->bytes += protobuf_c_message_pack(message, room);
}

static void write_ref(Baton__Ref *to, const struct node_ref *ref)
{
	baton__ref__init(to);
	to->conductor = ref->conductor;
	to->request = ref->request;
	to->epoch = ref->epoch;
}

static ProtobufCBinaryData binary(const void *data, size_t bytes)
{
	return (ProtobufCBinaryData){ .len = bytes, .data = (uint8_t *)(uintptr_t)data };
}

static char *text(const char *from)
{
	return (char *)(uintptr_t)from;
}

static void write_sampling(Baton__Sampling *to, const struct node_sampling *from)
{
	baton__sampling__init(to);
	to->has_temperature = to->has_top_p = to->has_min_p = to->has_top_k = true;
	to->temperature = from->temperature;
	to->top_p = from->top_p;
	to->min_p = from->min_p;
	to->top_k = from->top_k;
	to->seed = from->seed;
	to->has_top_logprobs = to->has_logprobs = to->has_min_tokens = to->has_ignore_eos = true;
	to->top_logprobs = from->top_logprobs;
	to->logprobs = from->want_logprobs;
	to->max_tokens = from->max_tokens;
	to->min_tokens = from->min_tokens;
	to->ignore_eos = from->ignore_eos;
	to->n_stop_ids = from->stop_id_count;
	to->stop_ids = (uint32_t *)(uintptr_t)from->stop_ids;
}

void node_codec_reserve(struct buf *out, const struct node_action *action, uint64_t source,
			const char *source_node)
{
	const struct node_request *request = action->reserve.request;
	uint32_t *tokens = (uint32_t *)(uintptr_t)request->tokens;
	Baton__Reserve to = BATON__RESERVE__INIT;
	Baton__Ref ref;
	Baton__Sampling sampling;

	CHECK(action->kind == NODE_DO_RESERVE);
	write_ref(&ref, &request->ref);
	write_sampling(&sampling, &request->sampling);
	to.ref = &ref;
	to.source = source;
	to.source_node = text(source_node);
	to.target = action->reserve.peer->incarnation;
	to.model = text(request->model);
	to.sampling = &sampling;
	to.n_prompt = request->prompt_count;
	to.prompt = tokens;
	to.n_output = request->token_count - request->prompt_count;
	to.output = tokens + request->prompt_count;
	to.n_choices = request->choice_count;
	to.choices = (uint32_t *)(uintptr_t)request->choices;
	to.root_key = binary(request->root_key.bytes, sizeof request->root_key.bytes);
	to.has_priority = true;
	to.priority = request->priority;
	to.predicted_tokens = action->reserve.predicted_tokens;
	pack(out, &to.base);
}

void node_codec_reserve_answer(struct buf *out, const struct node_ref *ref, bool accepted,
			       uint32_t cached_blocks, const char *reason, const uint8_t ticket[],
			       uint32_t ticket_bytes)
{
	Baton__ReserveAnswer to = BATON__RESERVE_ANSWER__INIT;
	Baton__Ref to_ref;

	write_ref(&to_ref, ref);
	to.ref = &to_ref;
	to.accepted = accepted;
	if (!accepted)
		to.reason = text(reason ? reason : "");
	to.has_cached_blocks = accepted;
	to.cached_blocks = cached_blocks;
	to.has_ticket = ticket_bytes > 0;
	to.ticket = binary(ticket, ticket_bytes);
	pack(out, &to.base);
}

void node_codec_first_tokens(struct buf *out, const struct node_action *action)
{
	Baton__FirstTokens to = BATON__FIRST_TOKENS__INIT;
	Baton__Ref ref;
	Baton__FirstToken tokens[NODE_CHOICES_MAX], *pointers[NODE_CHOICES_MAX];

	CHECK(action->kind == NODE_DO_FIRST_TOKENS);
	CHECK(action->first.token_count <= NODE_CHOICES_MAX);
	write_ref(&ref, &action->ref);
	to.ref = &ref;
	to.n_tokens = action->first.token_count;
	to.tokens = pointers;
	for (uint32_t i = 0; i < action->first.token_count; i++) {
		const struct node_first_token *from = &action->first.tokens[i];
		baton__first_token__init(&tokens[i]);
		tokens[i].choice = from->choice;
		tokens[i].token = from->token;
		tokens[i].has_ended = from->ended;
		tokens[i].ended = from->ended;
		pointers[i] = &tokens[i];
	}
	pack(out, &to.base);
}

void node_codec_release(struct buf *out, const struct node_ref *ref)
{
	Baton__Release to = BATON__RELEASE__INIT;
	Baton__Ref to_ref;

	write_ref(&to_ref, ref);
	to.ref = &to_ref;
	pack(out, &to.base);
}

static void write_run(Baton__TokenRun *to, const struct node_token *from,
		      const struct sample_result *result)
{
	baton__token_run__init(to);
	to->choice = from->choice;
	to->position = from->position;
	to->n_ids = 1;
	to->ids = (uint32_t *)(uintptr_t)&from->token;
	if (result) {
		to->n_logprobs = 1;
		to->logprobs = (float *)(uintptr_t)&result->logprob;
		to->n_top_ids = to->n_top_logprobs = result->top_count;
		to->top_ids = (uint32_t *)(uintptr_t)result->top_ids;
		to->top_logprobs = (float *)(uintptr_t)result->top_logprobs;
	}
	to->has_finish = from->finish != NODE_FINISH_NONE;
	to->finish = from->finish;
	to->has_stop_id = from->finish == NODE_FINISH_STOP;
	to->stop_id = from->token;
}

static uint32_t microseconds(uint64_t ns)
{
	return (uint32_t)MIN(ns / 1000, UINT32_MAX);
}

void node_codec_tokens(struct buf *out, const struct node_action *action,
		       const struct sample_result results[], uint32_t transport)
{
	Baton__Tokens to = BATON__TOKENS__INIT;
	Baton__Ref ref;
	Baton__TokenRun runs[NODE_CHOICES_MAX], *pointers[NODE_CHOICES_MAX];

	CHECK(action->kind == NODE_DO_TOKENS);
	CHECK(action->tokens.count <= NODE_CHOICES_MAX);
	write_ref(&ref, &action->ref);
	to.ref = &ref;
	to.n_runs = action->tokens.count;
	to.runs = pointers;
	for (uint32_t i = 0; i < action->tokens.count; i++) {
		const struct node_token *from = &action->tokens.v[i];
		write_run(&runs[i], from,
			  action->tokens.want_logprobs ? &results[from->sample] : NULL);
		pointers[i] = &runs[i];
	}
	if (action->tokens.has_prefill) {
		to.has_cached_tokens = to.has_prefill_us = to.has_queue_us = true;
		to.cached_tokens = action->tokens.cached_tokens;
		to.prefill_us = microseconds(action->tokens.prefill_ns);
		to.queue_us = microseconds(action->tokens.queue_ns);
	}
	if (action->tokens.has_transfer) {
		to.has_transfer_us = to.has_transfer_bytes = to.has_transport = true;
		to.transfer_us = microseconds(action->tokens.transfer_ns);
		to.transfer_bytes = action->tokens.transfer_bytes;
		to.transport = transport;
	}
	to.has_hidden_permille = action->tokens.has_hidden;
	to.hidden_permille = action->tokens.hidden_permille;
	pack(out, &to.base);
}

void node_codec_returned(struct buf *out, const struct node_action *action)
{
	Baton__Returned to = BATON__RETURNED__INIT;
	Baton__Ref ref;

	CHECK(action->kind == NODE_DO_RETURNED);
	write_ref(&ref, &action->ref);
	to.ref = &ref;
	to.has_choice = action->returned.one_choice;
	to.choice = action->returned.choice;
	to.reason = action->returned.reason;
	to.detail = text(action->returned.detail);
	pack(out, &to.base);
}

void node_codec_hello(struct buf *out, const struct node_hello *hello)
{
	Baton__Hello to = BATON__HELLO__INIT;
	char admin[NODE_HOST_BYTES + 16];

	to.version_min = FRAME_VERSION_MIN;
	to.version_max = FRAME_VERSION_MAX;
	to.node = text(hello->node);
	to.incarnation = hello->incarnation;
	to.role = hello->role;
	to.model = text(hello->model);
	if (hello->kv_format) {
		to.has_kv_format = true;
		to.kv_format = binary(hello->kv_format, 32);
	}
	to.numerics = text(hello->numerics);
	to.has_block_tokens = to.has_block_bytes = to.has_blocks_total = true;
	to.block_tokens = hello->block_tokens;
	to.block_bytes = hello->block_bytes;
	to.blocks_total = hello->blocks_total;
	to.has_max_num_seqs = to.has_max_num_batched_tokens = to.has_max_model_len = true;
	to.max_num_seqs = hello->max_num_seqs;
	to.max_num_batched_tokens = hello->max_num_batched_tokens;
	to.max_model_len = hello->max_model_len;
	to.peer_host = text(hello->peer_host);
	to.has_peer_port = true;
	to.peer_port = hello->peer_port;
	to.has_transfer = hello->transfer_bytes > 0;
	to.transfer = binary(hello->transfer, hello->transfer_bytes);
	if (hello->admin_host && hello->admin_host[0]) {
		snprintf(admin, sizeof admin, "%s:%u", hello->admin_host, hello->admin_port);
		to.admin = admin;
	}
	pack(out, &to.base);
}

void node_codec_welcome(struct buf *out, const struct node_welcome *welcome)
{
	Baton__Welcome to = BATON__WELCOME__INIT;

	to.accepted = welcome->accepted;
	if (!welcome->accepted)
		to.reason = text(welcome->reason);
	to.has_version = welcome->accepted;
	to.version = FRAME_VERSION_MAX;
	to.has_incarnation = true;
	to.incarnation = welcome->incarnation;
	to.node = text(welcome->node);
	to.has_heartbeat_ms = welcome->heartbeat_ms > 0;
	to.heartbeat_ms = welcome->heartbeat_ms;
	to.has_lease_ms = welcome->lease_ms > 0;
	to.lease_ms = welcome->lease_ms;
	pack(out, &to.base);
}

void node_codec_report(struct buf *out, const struct node_report *report)
{
	const struct node_load *load = &report->load;
	Baton__Report to = BATON__REPORT__INIT;

	to.role = report->role;
	to.state = report->state;
	to.dispatches_seen = report->dispatches_seen;
	to.has_sequence = true;
	to.sequence = report->sequence;
#define FACT(field, value) (to.has_##field = true, to.field = (value))
	FACT(running, load->running);
	FACT(waiting, load->waiting);
	FACT(queued_tokens, load->queued_tokens);
	FACT(running_tokens, load->running_tokens);
	FACT(reserved_tokens, load->reserved_tokens);
	FACT(blocks_free, report->blocks[KV_FREE]);
	FACT(blocks_cached, report->blocks[KV_CACHED]);
	FACT(blocks_used, report->blocks[KV_USED]);
	FACT(blocks_reserved, report->blocks[KV_RESERVED]);
	FACT(blocks_quarantined, report->blocks[KV_QUARANTINED]);
	FACT(transfer_bytes_shm, report->landed_shm);
	FACT(transfer_bytes_tcp, report->landed_tcp);
	FACT(transfer_bytes_rdma, report->landed_rdma);
	FACT(transfer_bytes_sent, report->sent);
	FACT(slices_corrupt, report->slices_corrupt);
	FACT(preemptions, load->preemptions);
	FACT(prefix_queries, load->prefix_queries);
	FACT(prefix_hits, load->prefix_hits);
	FACT(prefill_tokens, load->prefill_tokens);
	FACT(decode_tokens, load->decode_tokens);
	FACT(frames_refused, report->frames_refused);
#undef FACT
	pack(out, &to.base);
}
