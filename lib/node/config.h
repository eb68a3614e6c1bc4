/* Settings of both node daemons; only the default role differs. */
#ifndef BATON_NODE_CONFIG_H
#define BATON_NODE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "node/role.h"


struct node_config {
	const char *model, *served_model_name, *node, *conductors, *cluster_key_file, *state_dir;
	const char *admin_host, *peer_host;
	uint64_t role, engine, transport, isa, log_level;
	uint64_t admin_port, peer_port, transfer_port;
	uint64_t threads, max_model_len, max_num_seqs, max_num_batched_tokens, prefill_chunk;
	uint64_t max_num_queued, block_tokens, kv_bytes, transfer_streams;
	uint64_t shutdown_timeout_ns, reserve_timeout_ns, landing_timeout_ns;
	bool prefix_caching;
	bool allow_open; /* listen beyond loopback without a cluster key */
	double sim_prefill_token_us, sim_prefill_square_ns, sim_step_ms, sim_step_seq_us, sim_step_context_ns;
	double sim_speed;
	uint64_t fault_flip_every, fault_delay_us, fault_drop_every;
};

/* settings_load() with this daemon's table. @daemon: "prefill-node" or "decode-node". */
int node_config_load(struct node_config *config, const char *daemon, enum node_role role, int argc,
		     char **argv);
void node_config_free(struct node_config *config);

#endif
