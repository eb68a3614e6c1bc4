/* The conductor's process: its real core and codec; connections and token arrays are the world's. */
#include "sim/private.h"

#include "base/err.h"
#include "frame.h"

#define TICK_NS (50 * NS_PER_MS)
#define LEASE_NS (3 * NS_PER_S)

struct member {
	struct sim_conn *conn;
	struct conductor_node_id node;
	bool greeted;
	char name[CONDUCTOR_NAME_BYTES];
	char host[CONDUCTOR_NAME_BYTES];
	uint64_t incarnation;
	uint8_t transfer[CODEC_TRANSFER_BYTES_MAX];
	uint32_t transfer_bytes;
};

struct sim_conductor {
	struct conductor *core;
	struct conductor_actions actions;
	struct codec *codec;
	struct buf out;
	struct member *members[CONDUCTOR_NODES_MAX];
	uint64_t incarnation;
	const struct codec_run *arriving; /* of the token event that is being stepped */
};

static const uint8_t kv_format[32] = { 's', 'i', 'm' };

struct conductor *sim_conductor_core(struct sim *sim)
{
	return sim->conductor->core;
}

static struct member *member_of(struct sim *sim, struct conductor_node_id node)
{
	struct member *member =
		node.index < CONDUCTOR_NODES_MAX ? sim->conductor->members[node.index] : NULL;

	return member && member->node.generation == node.generation ? member : NULL;
}

static void send_to(struct sim *sim, struct conductor_node_id node, uint16_t type)
{
	struct member *member = member_of(sim, node);

	if (member)
		sim_send(sim, member->conn, SERVER_SIDE, type, &sim->conductor->out);
}

/* ---- actions ---- */

static void welcome(struct sim *sim, struct member *member, bool accepted, const char *reason)
{
	struct codec_welcome welcome = {
		.accepted = accepted,
		.reason = reason,
		.node = "conductor",
		.incarnation = sim->conductor->incarnation,
		.version = 1,
		.heartbeat_ms = 500,
		.lease_ms = LEASE_NS / NS_PER_MS,
	};

	CHECK(codec_write_welcome(&sim->conductor->out, &welcome) == 0);
	sim_send(sim, member->conn, SERVER_SIDE, FRAME_WELCOME, &sim->conductor->out);
}

static void do_prefill(struct sim *sim, const struct conductor_action *action)
{
	struct sim_client *client = sim_client_find(sim, action->request);
	struct member *decode = member_of(sim, action->peer);
	struct codec_prefill prefill = {
		.ref = action->ref,
		.dispatch = action->dispatch,
		.model = SIM_MODEL,
		.trace = client->name,
		.temperature = 1,
		.top_p = 1,
		.seed = client->seed,
		.max_tokens = client->max_tokens,
		.min_tokens = client->min_tokens,
		.ignore_eos = client->ignore_eos,
		.prompt = client->prompt,
		.prompt_count = client->prompt_count,
		.choices = action->choices,
		.root_key = client->root,
	};

	sim_trace(sim, "%llu.%u goes out, choices %llx from %u",
		  (unsigned long long)action->ref.request, action->ref.epoch,
		  (unsigned long long)action->choices[0], action->position);
	for (uint32_t i = 0; i < client->choice_count && action->position; i++)
		if (action->choices[0] >> i & 1)
			prefill.output = client->choices[i].kept;
	prefill.output_count = action->position;
	if (decode) {
		prefill.decode_node = decode->name;
		prefill.decode_incarnation = decode->incarnation;
		prefill.decode_host = decode->host;
		prefill.decode_port = 1;
		prefill.decode_transfer = decode->transfer;
		prefill.decode_transfer_bytes = decode->transfer_bytes;
	}
	CHECK(codec_write_prefill(&sim->conductor->out, &prefill) == 0);
	send_to(sim, action->node, FRAME_PREFILL);
}

static void do_keep(struct sim *sim, const struct conductor_action *action)
{
	struct sim_client *client = sim_client_find(sim, action->request);
	const struct codec_run *run = sim->conductor->arriving;

	CHECK(client && run && run->position == action->position && run->count == action->count);
	CHECK(action->position + action->count <= client->max_tokens);
	for (uint32_t i = 0; i < run->count; i++)
		client->choices[action->choice].kept[run->position + i] = run->ids[i];
}

static void do_close(struct sim *sim, const struct conductor_action *action)
{
	struct member *member = member_of(sim, action->node);

	if (!member)
		return;
	sim->conductor->members[action->node.index] = NULL;
	member->node.index = CONDUCTOR_NODE_NONE;
	sim_close(sim, member->conn, SERVER_SIDE);
}

static void perform(struct sim *sim, const struct conductor_action *action)
{
	struct sim_conductor *conductor = sim->conductor;
	struct member *member = (struct member *)(uintptr_t)action->connection;

	switch (action->kind) {
	case ACTION_PREFILL:
		do_prefill(sim, action);
		break;
	case ACTION_RELEASE:
		sim_trace(sim, "%llu.%u is released, %d",
			  (unsigned long long)action->ref.request, action->ref.epoch,
			  action->choice == CONDUCTOR_CHOICE_ALL ? -1 : (int)action->choice);
		CHECK(codec_write_release(&conductor->out, &action->ref, action->choice) == 0);
		send_to(sim, action->node, FRAME_RELEASE);
		break;
	case ACTION_KEEP:
		do_keep(sim, action);
		break;
	case ACTION_DELIVER:
		sim_client_tokens(sim, action);
		break;
	case ACTION_FAIL:
		sim_client_failed(sim, action);
		break;
	case ACTION_END:
		sim_client_ended(sim, action->request);
		break;
	case ACTION_COMMAND:
		CHECK(codec_write_command(&conductor->out, action->command, action->role) == 0);
		send_to(sim, action->node, FRAME_COMMAND);
		break;
	case ACTION_NODE_ADMIT:
		member->node = action->node;
		conductor->members[action->node.index] = member;
		welcome(sim, member, true, NULL);
		break;
	case ACTION_NODE_REFUSE:
		welcome(sim, member, false, action->text);
		sim_close(sim, member->conn, SERVER_SIDE);
		break;
	case ACTION_NODE_FENCE:
		sim->result.fenced++;
		break;
	case ACTION_NODE_CLOSE:
		do_close(sim, action);
		break;
	}
}

void sim_conductor_step(struct sim *sim, struct conductor_event *event)
{
	struct sim_conductor *conductor = sim->conductor;

	event->now_ns = sim->now_ns;
	event->result = conductor_step(conductor->core, event, &conductor->actions);
	for (uint32_t i = 0; i < conductor->actions.count; i++)
		perform(sim, &conductor->actions.items[i]);
}

void sim_conductor_command(struct sim *sim, const char *node, enum conductor_command command)
{
	uint32_t index = conductor_node_find(sim->conductor->core, node);
	struct conductor_node_view view;

	if (index == CONDUCTOR_NODE_NONE)
		return;
	conductor_node_view(sim->conductor->core, index, &view);
	sim_conductor_step(sim, &(struct conductor_event){ .kind = EVENT_COMMAND,
							   .node = view.id,
							   .command = command });
}

/* ---- connections ---- */

void *sim_conductor_accept(struct sim *sim, struct sim_conn *conn)
{
	struct member *member = calloc(1, sizeof *member);

	(void)sim;
	CHECK(member);
	member->conn = conn;
	member->node.index = CONDUCTOR_NODE_NONE;
	return member;
}

static void on_hello(struct sim *sim, struct member *member, const struct codec_hello *hello)
{
	struct conductor_hello join = {
		.name = member->name,
		.incarnation = hello->incarnation,
		.role = hello->role,
		.block_tokens = hello->block_tokens,
		.blocks_total = hello->blocks_total,
		.max_num_seqs = hello->max_num_seqs,
		.max_model_len = hello->max_model_len,
		.connection = (uintptr_t)member,
	};

	CHECK(hello->kv_format && !memcmp(hello->kv_format, kv_format, sizeof kv_format));
	member->greeted = true;
	member->incarnation = hello->incarnation;
	snprintf(member->name, sizeof member->name, "%s", hello->node);
	snprintf(member->host, sizeof member->host, "%.60s", hello->peer_host);
	member->transfer_bytes = hello->transfer_bytes;
	if (hello->transfer_bytes)
		memcpy(member->transfer, hello->transfer, hello->transfer_bytes);
	sim_conductor_step(sim, &(struct conductor_event){ .kind = EVENT_NODE_JOINED, .hello = &join });
}

static void on_tokens(struct sim *sim, struct member *member, const struct codec_tokens *tokens)
{
	sim_conductor_step(sim, &(struct conductor_event){ .kind = EVENT_MEASURED,
							   .node = member->node,
							   .ref = tokens->ref,
							   .measured = &tokens->measured });
	for (uint32_t i = 0; i < tokens->run_count; i++) {
		const struct codec_run *run = &tokens->runs[i];
		sim->conductor->arriving = run;
		sim_trace(sim, "%s says %llu.%u/%u: %u tokens from %u%s", member->name,
			  (unsigned long long)tokens->ref.request, tokens->ref.epoch, run->choice,
			  run->count, run->position, run->finish ? ", the end" : "");
		sim_conductor_step(sim, &(struct conductor_event){ .kind = EVENT_TOKENS,
								   .node = member->node,
								   .ref = tokens->ref,
								   .choice = run->choice,
								   .position = run->position,
								   .count = run->count,
								   .finish = run->finish,
								   .has_stop_id = run->has_stop_id,
								   .stop_id = run->stop_id });
		sim->conductor->arriving = NULL;
	}
}

static void on_frame(struct sim *sim, struct sim_conn *conn, uint16_t type, const uint8_t *body,
		     uint32_t bytes, void *context)
{
	struct member *member = context;
	struct codec_frame frame;

	(void)conn;
	int error = codec_read(sim->conductor->codec, type, body, bytes, &frame);
	if (error < 0) {
		sim_fail(sim, "the conductor cannot read a frame of type %u: %s", type,
			 err_text(error));
		return;
	}
	if (frame.type == FRAME_HELLO && !member->greeted) {
		on_hello(sim, member, &frame.hello);
	} else if (member->node.index == CONDUCTOR_NODE_NONE) {
		sim_close(sim, member->conn, SERVER_SIDE);
	} else if (frame.type == FRAME_REPORT) {
		struct conductor_event event = { .kind = EVENT_NODE_REPORT,
						 .node = member->node,
						 .report = &frame.report };
		struct conductor_node_id node = member->node;
		sim_conductor_step(sim, &event);
		if (event.result == 0) {
			CHECK(codec_write_ack(&sim->conductor->out, frame.report.sequence) == 0);
			send_to(sim, node, FRAME_ACK);
		}
	} else if (frame.type == FRAME_TOKENS) {
		on_tokens(sim, member, &frame.tokens);
	} else if (frame.type == FRAME_RETURNED) {
		sim_trace(sim, "%s gives back %llu.%u: %s", member->name,
			  (unsigned long long)frame.returned.ref.request, frame.returned.ref.epoch,
			  conductor_cause_name(frame.returned.cause));
		sim_conductor_step(sim, &(struct conductor_event){ .kind = EVENT_RETURNED,
								   .node = member->node,
								   .ref = frame.returned.ref,
								   .choice = frame.returned.choice,
								   .cause = frame.returned.cause,
								   .detail = frame.returned.detail });
	}
}

static void on_close(struct sim *sim, struct sim_conn *conn, void *context)
{
	struct member *member = context;
	struct conductor_node_id node = member->node;

	(void)conn;
	free(member);
	if (node.index == CONDUCTOR_NODE_NONE)
		return;
	sim->conductor->members[node.index] = NULL;
	sim_conductor_step(sim, &(struct conductor_event){ .kind = EVENT_NODE_LOST, .node = node });
}

static void on_ready(struct sim *sim, struct sim_conn *conn, void *context)
{
	(void)sim;
	(void)conn;
	(void)context;
	CHECK(!"the conductor dials nobody");
}

const struct sim_conn_ops sim_conductor_ops = { on_ready, on_frame, on_close };

/* ---- life ---- */

static void run_tick(struct sim *sim, void *argument, bool alive)
{
	(void)argument;
	if (!alive || sim->failed)
		return;
	sim_conductor_step(sim, &(struct conductor_event){ .kind = EVENT_TICK });
	sim_post(sim, &sim->conductor_process, TICK_NS, run_tick, NULL);
}

struct sim_conductor *sim_conductor_new(struct sim *sim)
{
	struct sim_conductor *conductor = calloc(1, sizeof *conductor);
	struct conductor_config config = {
		.incarnation = sim->now_ns / NS_PER_US + 1,
		.requests_max = 256,
		.traces_max = 8,
		.model_count = 1,
		.policy = conductor_policy_find(sim->config.policy),
		.lease_ns = LEASE_NS,
		.resume_wait_ns = 10 * NS_PER_S,
		.predicted_tokens = 16,
	};

	CHECK(conductor && config.policy);
	conductor->incarnation = config.incarnation;
	CHECK(conductor_new(&config, &conductor->core) == 0);
	CHECK(conductor_actions_init(&conductor->actions, conductor->core) == 0);
	CHECK(codec_new(&conductor->codec) == 0);
	buf_init(&conductor->out, 0);
	sim->conductor_process = (struct sim_process){ .name = "conductor", .alive = true };
	sim_post(sim, &sim->conductor_process, 0, run_tick, NULL);
	return conductor;
}

void sim_conductor_free(struct sim_conductor *conductor)
{
	for (uint32_t i = 0; i < CONDUCTOR_NODES_MAX; i++)
		free(conductor->members[i]);
	buf_fini(&conductor->out);
	codec_free(conductor->codec);
	conductor_actions_fini(&conductor->actions);
	conductor_free(conductor->core);
	free(conductor);
}
