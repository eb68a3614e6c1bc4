/*
 * The process around one or both role cores: loop, engine thread, arena, transfers, the links to
 * conductors and to other nodes. Each daemon's main.c brings the cores; lib/node knows them only
 * through role.h.
 */
#ifndef BATON_NODE_NODE_H
#define BATON_NODE_NODE_H

#include "node/role.h"

/* What a core is built from; each takes what concerns it. */
struct node_role_config {
	uint64_t incarnation;
	const char *model;
	uint32_t layer_count, max_model_len;
	uint32_t requests_max, sequences_max;
	uint32_t chunk_tokens, batch_tokens_max;
	uint32_t predicted_tokens;
	const uint32_t *eos_ids;
	uint32_t eos_count;
	uint64_t reserve_timeout_ns, transfer_timeout_ns, landing_timeout_ns;
};

struct node_role_maker {
	const struct node_role_ops *ops;
	int (*open)(const struct node_role_config *config, struct kv_node *node, void **ret_core);
	void (*close)(void *core);
	/* A new life of the same process: every dispatch of the old one is over already. */
	void (*renew)(void *core, uint64_t incarnation);
};

/* The whole program. @makers: those this binary can run; --role picks. Return: exit status: 0, 1
 * when something leaked or failed, 2 for a wrong setting. */
int node_main(int argc, char **argv, const char *daemon, enum node_role role,
	      const struct node_role_maker makers[], uint32_t maker_count);

#endif
