#include "prefill-node/maker.h"

#include <string.h>

#include "prefill-node/core/prefill.h"

static int maker_open(const struct node_role_config *in, struct kv_node *node, void **ret_core)
{
	struct prefill_config config = {
		.incarnation = in->incarnation,
		.model = in->model,
		.layer_count = in->layer_count,
		.max_model_len = in->max_model_len,
		.requests_max = in->requests_max,
		.chunk_tokens = in->chunk_tokens,
		.ahead_tokens = in->batch_tokens_max,
		.predicted_tokens = in->predicted_tokens,
		.eos_count = in->eos_count,
		.answer_timeout_ns = in->reserve_timeout_ns,
		.send_timeout_ns = in->transfer_timeout_ns,
	};
	memcpy(config.eos_ids, in->eos_ids, in->eos_count * sizeof *in->eos_ids);
	return prefill_new(&config, node, (struct prefill **)ret_core);
}

static void maker_close(void *core)
{
	prefill_free(core);
}

static void maker_renew(void *core, uint64_t incarnation)
{
	prefill_renew(core, incarnation);
}

const struct node_role_maker prefill_maker = { &prefill_role, maker_open, maker_close, maker_renew };
