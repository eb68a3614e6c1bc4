#include "node/role.h"

#include <errno.h>
#include <stdlib.h>

#include "base/check.h"

const char *node_returned_text(enum returned_reason reason)
{
	switch (reason) {
	case RETURNED_REFUSED:
		return "the decode node has no room";
	case RETURNED_PREEMPTED:
		return "preempted, blocks ran out";
	case RETURNED_TRANSFER:
		return "the KV transfer failed";
	case RETURNED_PEER_LOST:
		return "the other node of the placement was lost";
	case RETURNED_DRAIN:
		return "the node is draining";
	case RETURNED_NO_ROOM:
		return "the node has no room";
	case RETURNED_TIMEOUT:
		return "the other node made no progress";
	case RETURNED_MODEL:
		return "another model is served here";
	}
	return "unknown";
}

void node_stops_make(struct node_stops *stops, const struct node_sampling *sampling,
		     const uint32_t eos_ids[], uint32_t eos_count)
{
	CHECK(sampling->stop_id_count <= NODE_STOP_IDS_MAX);
	CHECK(eos_count <= NODE_EOS_MAX);
	stops->count = 0;
	for (uint32_t i = 0; i < sampling->stop_id_count; i++)
		stops->ids[stops->count++] = sampling->stop_ids[i];
	for (uint32_t i = 0; i < eos_count && !sampling->ignore_eos; i++)
		stops->ids[stops->count++] = eos_ids[i];
}

enum node_finish node_token_finish(const struct node_stops *stops,
				   const struct node_sampling *sampling, uint32_t token,
				   uint32_t position, uint32_t context_left)
{
	for (uint32_t i = 0; i < stops->count; i++) {
		if (stops->ids[i] == token)
			return NODE_FINISH_STOP;
	}
	if (position + 1 >= sampling->max_tokens || !context_left)
		return NODE_FINISH_LENGTH;
	return NODE_FINISH_NONE;
}

/* One event may end every slot (a conductor is lost), and a slot's end takes a few actions; a
 * batch gives each sample one token and each row at most one more action. */
int node_actions_init(struct node_actions *actions, uint32_t slots_max, uint32_t samples_max)
{
	*actions = (struct node_actions){
		.capacity = 5 * slots_max + 2 * samples_max + 16,
		.token_capacity = samples_max,
		.first_capacity = samples_max,
	};
	actions->v = calloc(actions->capacity, sizeof *actions->v);
	actions->tokens = calloc(samples_max, sizeof *actions->tokens);
	actions->firsts = calloc(samples_max, sizeof *actions->firsts);
	if (!actions->v || !actions->tokens || !actions->firsts) {
		node_actions_fini(actions);
		return -ENOMEM;
	}
	return 0;
}

void node_actions_fini(struct node_actions *actions)
{
	free(actions->v);
	free(actions->tokens);
	free(actions->firsts);
	*actions = (struct node_actions){ 0 };
}

void node_actions_clear(struct node_actions *actions)
{
	actions->count = actions->token_count = actions->first_count = 0;
}

struct node_action *node_actions_add(struct node_actions *actions, enum node_action_kind kind,
				     const struct node_ref *ref, node_handle handle)
{
	CHECK(actions->count < actions->capacity);
	struct node_action *action = &actions->v[actions->count++];
	*action = (struct node_action){ .kind = kind, .ref = *ref, .handle = handle };
	return action;
}

int node_batch_init(struct node_batch *batch, uint32_t row_max, uint32_t token_max)
{
	*batch = (struct node_batch){
		.row_max = row_max,
		.token_max = token_max,
		.sample_max = row_max + NODE_CHOICES_MAX,
	};
	batch->rows = calloc(row_max, sizeof *batch->rows);
	batch->samples = calloc(batch->sample_max, sizeof *batch->samples);
	batch->copies = calloc(row_max, sizeof *batch->copies);
	if (!batch->rows || !batch->samples || !batch->copies) {
		node_batch_fini(batch);
		return -ENOMEM;
	}
	return 0;
}

void node_batch_fini(struct node_batch *batch)
{
	free(batch->rows);
	free(batch->samples);
	free(batch->copies);
	*batch = (struct node_batch){ 0 };
}

void node_batch_clear(struct node_batch *batch)
{
	batch->row_count = batch->sample_count = batch->copy_count = batch->token_count = 0;
}

enum node_role node_event_role(enum node_event_kind kind)
{
	switch (kind) {
	case NODE_PREFILL:
	case NODE_RESERVE_ANSWER:
	case NODE_SLICE_SENT:
		return NODE_ROLE_PREFILL;
	case NODE_RESERVE:
	case NODE_EXPECT_FAILED:
	case NODE_SLICE_LANDED:
	case NODE_LANDED_ALL:
	case NODE_REVOKED:
	case NODE_FIRST_TOKENS:
	case NODE_ADOPT:
		return NODE_ROLE_DECODE;
	default:
		return 0;
	}
}

void node_event_queue_push(struct node_event_queue *queue, const struct node_event *event)
{
	if (queue->count == queue->capacity) {
		uint32_t capacity = MAX(64u, queue->capacity * 2);
		struct node_event *v = realloc(queue->v, capacity * sizeof *v);
		CHECK(v); /* losing an outcome would leak its blocks */
		queue->v = v;
		queue->capacity = capacity;
	}
	queue->v[queue->count++] = *event;
}

void node_event_queue_fini(struct node_event_queue *queue)
{
	free(queue->v);
	*queue = (struct node_event_queue){ 0 };
}
