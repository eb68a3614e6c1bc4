#include "decode-node/maker.h"

#include <string.h>

#include "decode-node/core/decode.h"

static int maker_open(const struct node_role_config *in, struct kv_node *node, void **ret_core)
{
	struct decode_config config = {
		.incarnation = in->incarnation,
		.model = in->model,
		.layer_count = in->layer_count,
		.max_model_len = in->max_model_len,
		.sequences_max = in->sequences_max,
		.eos_count = in->eos_count,
		.landing_timeout_ns = in->landing_timeout_ns,
	};
	memcpy(config.eos_ids, in->eos_ids, in->eos_count * sizeof *in->eos_ids);
	return decode_new(&config, node, (struct decode **)ret_core);
}

static void maker_close(void *core)
{
	decode_free(core);
}

static void maker_renew(void *core, uint64_t incarnation)
{
	decode_renew(core, incarnation);
}

const struct node_role_maker decode_maker = { &decode_role, maker_open, maker_close, maker_renew };
