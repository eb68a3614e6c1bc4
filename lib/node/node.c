/*
 * The node's life, and the way from events through the cores to actions. The rules are role.h's
 * (R1 to R5): actions are done in order; an event that is born while they are being done waits
 * in `deferred` until they all are.
 */
#include "node/node.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "node/private.h"
#include "proto/frame.h"

/* Longer than this, or than a lease, without a turn of the loop, and the lease ran out unseen. */
#define NODE_SLEEP_NS (2 * NS_PER_S)

/* ---- events and actions ---- */

static int role_index(const struct node *node, enum node_role role)
{
	for (uint32_t i = 0; i < node->role_count; i++)
		if (node->roles[i].maker->ops->role == role)
			return (int)i;
	return -1;
}

bool node_has_role(const struct node *node, enum node_role role)
{
	return role_index(node, role) >= 0;
}

static void event_step(struct node *node, struct node_event *event)
{
	enum node_role role = node_event_role(event->kind);
	event->now_ns = clock_now_ns();
	for (uint32_t i = 0; i < node->role_count; i++) {
		if (role && node->roles[i].maker->ops->role != role)
			continue;
		node->roles[i].maker->ops->step(node->roles[i].core, event, &node->roles[i].actions);
		node_do(node, i);
	}
}

void node_flush(struct node *node)
{
	if (node->depth)
		return;
	for (uint32_t i = 0; i < node->deferred.count; i++) {
		struct node_event event = node->deferred.v[i];
		event_step(node, &event);
	}
	node->deferred.count = 0;
}

void node_event(struct node *node, struct node_event *event)
{
	event_step(node, event);
	node_flush(node);
}

void node_defer(struct node *node, const struct node_event *event)
{
	node_event_queue_push(&node->deferred, event);
}

static void do_reserve(struct node *node, const struct node_action *action)
{
	struct buf body;
	if (action->reserve.local) {
		struct node_event event = {
			.kind = NODE_RESERVE,
			.reserve = { .request = *action->reserve.request, .source = node->incarnation,
				     .source_node = node->name, .target = node->incarnation,
				     .predicted_tokens = action->reserve.predicted_tokens, .local = true },
		};
		event_step(node, &event);
		return;
	}
	struct peer_link *link = node__peer_out(node, action->reserve.peer);
	struct xfer_peer *peer = NULL;
	if (link && xfer_peer_ref(node->xfer, action->reserve.peer->transfer,
				  action->reserve.peer->transfer_bytes, &peer) == 0) {
		node__transfer_reserve(node, action, peer);
		buf_init(&body, FRAME_BODY_BYTES_MAX);
		node_codec_reserve(&body, action, node->incarnation, node->name);
		node__peer_send(link, FRAME_RESERVE, &body);
		buf_fini(&body);
		return;
	}
	node_defer(node, &(struct node_event){
				 .kind = NODE_RESERVE_ANSWER,
				 .answer = { .ref = action->ref, .reason = "no connection to the decode node" } });
}

static void answer_local(struct node *node, const struct node_action *action, bool accepted,
			 uint32_t cached_blocks, const char *reason)
{
	node_defer(node, &(struct node_event){ .kind = NODE_RESERVE_ANSWER,
					       .answer = { .ref = action->ref, .accepted = accepted,
							   .cached_blocks = cached_blocks, .reason = reason } });
}

static void answer_peer(struct node *node, const struct node_action *action, uint64_t source,
			bool accepted, uint32_t cached_blocks, const char *reason,
			const uint8_t ticket[], size_t ticket_bytes)
{
	struct buf body;
	buf_init(&body, FRAME_BODY_BYTES_MAX);
	node_codec_reserve_answer(&body, &action->ref, accepted, cached_blocks, reason, ticket,
				  (uint32_t)ticket_bytes);
	/* A source that is gone has its NODE_PEER_LOST coming. */
	(void)node__peer_answer(node, source, FRAME_RESERVE_ANSWER, &body);
	buf_fini(&body);
}

static void do_grant(struct node *node, const struct node_action *action)
{
	uint8_t ticket[XFER_TICKET_BYTES_MAX];
	size_t ticket_bytes = 0;
	if (action->grant.local) {
		answer_local(node, action, true, action->grant.cached_blocks, "");
		return;
	}
	if (action->grant.block_count > action->grant.cached_blocks) {
		int status = node__transfer_grant(node, action, ticket, &ticket_bytes);
		if (status < 0) {
			log_warning("request %llu: no transfer could be granted: %s",
				    (unsigned long long)action->ref.request, err_text(status));
			node_defer(node, &(struct node_event){ .kind = NODE_EXPECT_FAILED,
							       .landed = { .handle = action->handle } });
			return;
		}
	}
	answer_peer(node, action, action->grant.source, true, action->grant.cached_blocks, "", ticket,
		    ticket_bytes);
}

static void do_release_peer(struct node *node, const struct node_action *action)
{
	struct buf body;
	if (action->release.local) {
		struct node_event event = { .kind = NODE_RELEASE,
					    .release = { .ref = action->ref, .by_peer = true } };
		int role = role_index(node, NODE_ROLE_DECODE);
		event.now_ns = clock_now_ns();
		node->roles[role].maker->ops->step(node->roles[role].core, &event, &node->roles[role].actions);
		node_do(node, (uint32_t)role);
		return;
	}
	struct peer_link *link = node__peer_out(node, action->release.peer);
	if (!link)
		return;
	buf_init(&body, FRAME_BODY_BYTES_MAX);
	node_codec_release(&body, &action->ref);
	node__peer_send(link, FRAME_RELEASE, &body);
	buf_fini(&body);
}

static void do_first_tokens(struct node *node, const struct node_action *action)
{
	struct buf body;
	struct peer_link *link = node__peer_out(node, action->first.peer);
	if (!link)
		return;
	buf_init(&body, FRAME_BODY_BYTES_MAX);
	node_codec_first_tokens(&body, action);
	node__peer_send(link, FRAME_FIRST_TOKENS, &body);
	buf_fini(&body);
}

static void do_tokens(struct node *node, const struct node_action *action)
{
	struct buf body;
	buf_init(&body, FRAME_BODY_BYTES_MAX);
	node_codec_tokens(&body, action, node->sample_results, node__transfer_kind(node));
	node__send_conductor(node, action->ref.conductor, FRAME_TOKENS, &body);
	buf_fini(&body);
}

static void do_returned(struct node *node, const struct node_action *action)
{
	struct buf body;
	log_info("request %llu.%u returned: %s", (unsigned long long)action->ref.request,
		 action->ref.epoch, action->returned.detail);
	buf_init(&body, FRAME_BODY_BYTES_MAX);
	node_codec_returned(&body, action);
	node__send_conductor(node, action->ref.conductor, FRAME_RETURNED, &body);
	buf_fini(&body);
}

static void do_action(struct node *node, const struct node_action *action)
{
	switch (action->kind) {
	case NODE_DO_RESERVE:
		do_reserve(node, action);
		return;
	case NODE_DO_SEND:
		node__transfer_send(node, action->handle, action->send.blocks, action->send.first,
				    action->send.end, action->send.base, 0,
				    kv_shape_layer_count(&node->shape));
		return;
	case NODE_DO_RESEND:
		node__transfer_resend(node, action);
		return;
	case NODE_DO_CANCEL_SEND:
		node__transfer_cancel(node, action->handle);
		return;
	case NODE_DO_FIRST_TOKENS:
		do_first_tokens(node, action);
		return;
	case NODE_DO_HAND_OVER:
		event_step(node, &(struct node_event){ .kind = NODE_ADOPT,
						       .adopt = { action->ref, action->adopt.sequence,
								  action->adopt.tokens, action->adopt.token_count } });
		return;
	case NODE_DO_RELEASE_PEER:
		do_release_peer(node, action);
		return;
	case NODE_DO_GRANT:
		do_grant(node, action);
		return;
	case NODE_DO_REFUSE:
		if (action->refuse.local)
			answer_local(node, action, false, 0, action->refuse.reason);
		else
			answer_peer(node, action, action->refuse.source, false, 0, action->refuse.reason, NULL, 0);
		return;
	case NODE_DO_REVOKE:
		node__transfer_revoke(node, action->handle);
		return;
	case NODE_DO_TOKENS:
		do_tokens(node, action);
		return;
	case NODE_DO_RETURNED:
		do_returned(node, action);
		return;
	case NODE_DO_FORGET:
		node__transfer_forget(node, action->handle);
		return;
	case NODE_ACTION_KIND_COUNT:
		break;
	}
	CHECK(!"a known action");
}

void node_do(struct node *node, uint32_t role)
{
	struct node_actions *actions = &node->roles[role].actions;
	node->depth++;
	for (uint32_t i = 0; i < actions->count; i++)
		do_action(node, &actions->v[i]);
	node_actions_clear(actions);
	node->depth--;
}

void node_load(const struct node *node, struct node_load *load)
{
	*load = (struct node_load){ 0 };
	for (uint32_t i = 0; i < node->role_count; i++)
		node->roles[i].maker->ops->load(node->roles[i].core, load);
}

bool node_idle(const struct node *node)
{
	for (uint32_t i = 0; i < node->role_count; i++)
		if (!node->roles[i].maker->ops->idle(node->roles[i].core))
			return false;
	return true;
}

/* ---- sleep, drain, stop ---- */

/* Ordered by time, and no other process's: nodes that one command starts do start within the same
 * microsecond at times, and know each other by this number alone. */
static uint64_t incarnation_now(void)
{
	return clock_wall_us() << 10 | ((uint64_t)getpid() & 1023);
}

void node_renew(struct node *node)
{
	node->incarnation = MAX(node->incarnation + 1024, incarnation_now());
	for (uint32_t i = 0; i < node->role_count; i++)
		node->roles[i].maker->renew(node->roles[i].core, node->incarnation);
}

void node_notice_sleep(struct node *node)
{
	uint64_t now_ns = clock_now_ns();
	uint64_t lease_ns = NODE_SLEEP_NS;
	for (uint32_t i = 0; i < node->conductor_count; i++)
		if (node->conductors[i].welcomed)
			lease_ns = MIN(lease_ns, node->conductors[i].lease_ns);
	bool slept = node->turned_ns && now_ns - node->turned_ns > lease_ns;
	node->turned_ns = now_ns;
	if (!slept || node->state == NODE_STARTING)
		return;
	log_warning("this process stood still for longer than its lease; its work is given up and it joins anew");
	node__links_reset(node);
	node_renew(node);
}

void node_drain(struct node *node, uint64_t grace_ns)
{
	if (node->state != NODE_READY)
		return;
	node->state = NODE_DRAINING;
	log_info("draining");
	node_event(node, &(struct node_event){ .kind = NODE_DRAIN, .drain = { grace_ns } });
}

static void node_exit(struct node *node)
{
	node__links_close(node);
	node_flush(node);
	uv_stop(&node->loop);
}

void node_stop(struct node *node)
{
	if (node->stopping)
		return;
	node->stopping = true;
	node->stop_deadline_ns = clock_now_ns() + node->config.shutdown_timeout_ns;
	node_drain(node, node->config.shutdown_timeout_ns / 2);
	if (node->failed || node->state == NODE_STARTING)
		node_exit(node);
}

static void node_on_signal(uv_signal_t *signal, int number)
{
	struct node *node = signal->data;
	if (node->stopping)
		node_exit(node);
	else
		node_stop(node);
}

static void node_on_tick(uv_timer_t *timer)
{
	struct node *node = timer->data;
	uint64_t now_ns = clock_now_ns();
	node_notice_sleep(node);
	if (node->state == NODE_STARTING)
		return;
	node_event(node, &(struct node_event){ .kind = NODE_TICK });
	if (node->state == NODE_DRAINING && node_idle(node)) {
		node->state = NODE_DRAINED;
		log_info("drained");
	}
	node__links_tick(node, now_ns);
	node_pump(node);
	if (node->stopping && (node->state == NODE_DRAINED || now_ns > node->stop_deadline_ns))
		node_exit(node);
}

/* After the links are gone the cores release everything; what a running batch or a transfer
 * still holds comes back within moments. */
static bool node_settle(struct node *node)
{
	uint64_t deadline_ns = clock_now_ns() + 3 * NS_PER_S;
	while ((!node_idle(node) || !kv_node_idle(&node->kv)) && clock_now_ns() < deadline_ns) {
		if (node->engine && engine_thread_busy(node->engine))
			deadline_ns = clock_now_ns() + 3 * NS_PER_S; /* a step may be long */
		uv_run(&node->loop, UV_RUN_NOWAIT);
		usleep(1000);
	}
	for (uint32_t i = 0; i < node->role_count; i++)
		node->roles[i].maker->ops->check(node->roles[i].core);
	kv_node_check(&node->kv);
	const uint32_t *counts = node->kv.pool.counts;
	if (kv_node_idle(&node->kv) && node_idle(node))
		return true;
	log_error("leaked: %u blocks used, %u reserved, %u quarantined of %u", counts[KV_USED],
		  counts[KV_RESERVED], counts[KV_QUARANTINED], node->kv.pool.block_count);
	return false;
}

/* ---- opening ---- */

static bool host_is_loopback(const char *host)
{
	return !strncmp(host, "127.", 4) || !strcmp(host, "::1") || !strcmp(host, "localhost");
}

static int open_key(struct node *node)
{
	const struct node_config *config = &node->config;
	if (*config->cluster_key_file) {
		int status = wire_key_load(config->cluster_key_file, &node->key);
		if (status < 0)
			log_error("--cluster-key-file %s: %s", config->cluster_key_file, err_text(status));
		return status;
	}
	if (!host_is_loopback(config->peer_host) && !config->allow_open) {
		log_error("--peer-host %s is beyond loopback and there is no cluster key: give "
			  "--cluster-key-file FILE, or --allow-open-network if the network itself is trusted",
			  config->peer_host);
		return -EACCES;
	}
	return 0;
}

static int open_model(struct node *node)
{
	const struct node_config *config = &node->config;
	char error[256] = "";
	if (!*config->model) {
		log_error("--model is missing: give a GGUF file or a Hugging Face folder");
		return -EINVAL;
	}
	int status = model_open(config->model, 0, &node->model, error, sizeof error);
	if (status < 0) {
		log_error("model %s: %s", config->model, error[0] ? error : err_text(status));
		return status;
	}
	const struct model_config *model = model_config(node->model);
	snprintf(node->served_name, sizeof node->served_name, "%s",
		 *config->served_model_name ? config->served_model_name : model->name);
	node->max_model_len = config->max_model_len && config->max_model_len < model->context_tokens
				      ? (uint32_t)config->max_model_len
				      : model->context_tokens;
	if (config->block_tokens % 16) {
		log_error("--block-size %llu: it must be a multiple of 16", (unsigned long long)config->block_tokens);
		return -EINVAL;
	}
	model_kv_shape(node->model, (uint32_t)config->block_tokens, &node->shape);
	model_kv_format(node->model, &node->shape, node->kv_format);
	uint32_t blocks_min = kv_blocks_for(node->max_model_len, node->shape.block_tokens);
	status = arena_open(&node->arena, &node->shape, config->kv_bytes, blocks_min);
	if (status == -ENOSPC)
		log_error("--kv-cache-memory-bytes %llu holds less than one context of %u tokens: give at least %llu, or a smaller --max-model-len",
			  (unsigned long long)config->kv_bytes, node->max_model_len,
			  (unsigned long long)(blocks_min * kv_shape_block_bytes(&node->shape)));
	if (status >= 0)
		status = kv_node_init(&node->kv, node->arena.block_count, node->shape.block_tokens);
	node->kv.caching_off = !config->prefix_caching;
	return status;
}

static int open_roles(struct node *node, const struct node_role_maker makers[], uint32_t maker_count)
{
	const struct node_config *config = &node->config;
	const struct model_config *model = model_config(node->model);
	struct node_role_config role = {
		.incarnation = node->incarnation,
		.model = node->served_name,
		.layer_count = kv_shape_layer_count(&node->shape),
		.max_model_len = node->max_model_len,
		.requests_max = (uint32_t)config->max_num_queued,
		.sequences_max = (uint32_t)config->max_num_seqs,
		.chunk_tokens = (uint32_t)config->prefill_chunk,
		.batch_tokens_max = (uint32_t)config->max_num_batched_tokens,
		.predicted_tokens = 64,
		.eos_ids = model->eos_ids,
		.eos_count = model->eos_count,
		.reserve_timeout_ns = config->reserve_timeout_ns,
		.transfer_timeout_ns = config->reserve_timeout_ns,
		.landing_timeout_ns = config->landing_timeout_ns,
	};
	/* Decode first: its growth is admitted before new prefill. */
	static const enum node_role order[] = { NODE_ROLE_DECODE, NODE_ROLE_PREFILL };
	for (size_t o = 0; o < ARRAY_COUNT(order); o++) {
		for (uint32_t m = 0; m < maker_count; m++) {
			if (makers[m].ops->role != order[o] || !(config->role & order[o]))
				continue;
			uint32_t i = node->role_count;
			int status = makers[m].open(&role, &node->kv, &node->roles[i].core);
			if (status < 0)
				return status;
			node->roles[i].maker = &makers[m];
			node->role_count++;
			status = node_actions_init(&node->roles[i].actions, role.requests_max + role.sequences_max,
						   (uint32_t)config->max_num_batched_tokens + NODE_CHOICES_MAX);
			if (status < 0)
				return status;
		}
	}
	return 0;
}

/* As conductors take it: names go into paths, metrics labels and log lines. */
static int open_name(struct node *node)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:";
	const char *given = node->config.node;
	char host[48] = "node";
	(void)gethostname(host, sizeof host - 1);
	if (*given)
		snprintf(node->name, sizeof node->name, "%s", given);
	else
		snprintf(node->name, sizeof node->name, "%s-%s", host, node->daemon);
	log_init(node->name, (enum log_level)node->config.log_level);
	if (strlen(given) < sizeof node->name && !node->name[strspn(node->name, allowed)])
		return 0;
	log_error("--node %s: give up to %zu letters, digits and - _ . :", *given ? given : node->name,
		  sizeof node->name - 1);
	return -EINVAL;
}

static int node_open(struct node *node, const struct node_role_maker makers[], uint32_t maker_count)
{
	int status = open_name(node);
	node->state = NODE_STARTING;
	node->incarnation = incarnation_now();
	node->metrics = metrics_new();
	list_init(&node->peers);

	if (!status)
		status = open_key(node);
	if (!status)
		status = open_model(node);
	if (!status)
		status = open_roles(node, makers, maker_count);
	if (!status)
		status = node__transfer_open(node);
	if (!status)
		status = node__links_open(node);
	if (!status)
		status = node__admin_open(node);
	if (!status)
		status = node__batch_open(node);
	if (status < 0 && status != -EINVAL && status != -EACCES)
		log_error("could not start: %s", err_text(status));
	return status;
}

static void node_open_loop(struct node *node)
{
	signal(SIGPIPE, SIG_IGN);
	CHECK(uv_loop_init(&node->loop) == 0);
	uv_timer_init(&node->loop, &node->tick);
	uv_signal_init(&node->loop, &node->sigterm);
	uv_signal_init(&node->loop, &node->sigint);
	node->tick.data = node->sigterm.data = node->sigint.data = node;
	uv_timer_start(&node->tick, node_on_tick, NODE_TICK_MS, NODE_TICK_MS);
	uv_signal_start(&node->sigterm, node_on_signal, SIGTERM);
	uv_signal_start(&node->sigint, node_on_signal, SIGINT);
}

static void node_close(struct node *node)
{
	node__batch_close(node);
	node__admin_close(node);
	node__transfer_close(node);
	uv_close((uv_handle_t *)&node->tick, NULL);
	uv_close((uv_handle_t *)&node->sigterm, NULL);
	uv_close((uv_handle_t *)&node->sigint, NULL);
	uv_run(&node->loop, UV_RUN_DEFAULT);
	int status = uv_loop_close(&node->loop);
	if (status)
		log_error("leaked: a handle of the loop is still open");
	for (uint32_t i = 0; i < node->role_count; i++) {
		node->roles[i].maker->close(node->roles[i].core);
		node_actions_fini(&node->roles[i].actions);
	}
	kv_node_fini(&node->kv);
	if (node->arena.base)
		arena_close(&node->arena);
	model_close(node->model);
	metrics_free(node->metrics);
	node_codec_free(node->codec);
	node_event_queue_fini(&node->deferred);
}

int node_main(int argc, char **argv, const char *daemon, enum node_role role,
	      const struct node_role_maker makers[], uint32_t maker_count)
{
	static struct node node;
	int status = node_config_load(&node.config, daemon, role, argc, argv);
	if (status)
		return status < 0 ? 2 : 0;
	node.daemon = daemon;
	node_open_loop(&node);
	status = node_open(&node, makers, maker_count);
	bool clean = true;
	if (!status) {
		uv_run(&node.loop, UV_RUN_DEFAULT);
		clean = node_settle(&node);
	} else {
		node__links_close(&node);
	}
	node_close(&node);
	node_config_free(&node.config);
	return status < 0 || node.failed || !clean ? 1 : 0;
}
