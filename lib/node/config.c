#include "node/config.h"

#include <stddef.h>
#include <string.h>

#include "base/check.h"
#include "base/settings.h"

static const char *const roles[] = { "prefill", "decode", "both", NULL };
static const char *const engines[] = { "cpu", "sim", "cuda", NULL };
static const char *const transports[] = { "auto", "shm", "tcp", "rdma", NULL };
static const char *const isas[] = { "auto", "plain", "avx2", "avx512", "vnni", NULL };
static const char *const levels[] = { "error", "warning", "info", "debug", NULL };

#define AT(field) .offset = offsetof(struct node_config, field)

/* The rows; `role` and `node` get the daemon's own initial value below. */
static const struct setting rows[] = {
	{ "model", SETTING_TEXT, "", "", .help = "GGUF file or Hugging Face folder.", AT(model) },
	{ "served-model-name", SETTING_TEXT, "", "", .help = "Name that requests use; the file's own name when empty.",
	  AT(served_model_name) },
	{ "role", SETTING_CHOICE, "", "prefill", .choices = roles,
	  .help = "prefill, decode, or both (the coupled baseline: no transfer).", AT(role) },
	{ "node", SETTING_TEXT, "", "", .help = "This node's name in the cluster; the host's name and the role when empty.",
	  AT(node) },
	{ "conductor", SETTING_LIST, "", "127.0.0.1:7600", .help = "HOST:PORT of a conductor; may be given several times.",
	  AT(conductors) },
	{ "cluster-key-file", SETTING_TEXT, "", "", .help = "File with the key that every process of the cluster holds.",
	  AT(cluster_key_file) },
	{ "allow-open-network", SETTING_BOOL, "", "false", .help = "Listen beyond loopback even without a cluster key.",
	  AT(allow_open) },
	{ "state-dir", SETTING_TEXT, "", "", .help = "Folder for what outlives the process and for local sockets.",
	  AT(state_dir) },
	{ "engine", SETTING_CHOICE, "", "cpu", .choices = engines, .help = "What computes: cpu, sim (a cost model), cuda.",
	  AT(engine) },
	{ "threads", SETTING_COUNT, "threads", "0", 0, 256, .help = "Engine threads; 0: one per CPU.", AT(threads) },
	{ "isa", SETTING_CHOICE, "", "auto", .choices = isas, .help = "Forces the CPU engine's instruction set.", AT(isa) },
	{ "transport", SETTING_CHOICE, "", "auto", .choices = transports,
	  .help = "How KV travels; auto: shm on the same machine, else tcp.", AT(transport) },
	{ "transfer-streams", SETTING_COUNT, "connections", "2", 1, 16, .help = "tcp connections to one peer.",
	  AT(transfer_streams) },
	{ "admin-host", SETTING_TEXT, "", "127.0.0.1", .help = "Address of the admin and metrics listener.", AT(admin_host) },
	{ "admin-port", SETTING_COUNT, "", "9600", 0, 65535, .help = "Its port; 0 picks a free one.", AT(admin_port) },
	{ "peer-host", SETTING_TEXT, "", "127.0.0.1", .help = "Address where other nodes reach this one.", AT(peer_host) },
	{ "peer-port", SETTING_COUNT, "", "0", 0, 65535, .help = "Control port for other nodes; 0 picks a free one.",
	  AT(peer_port) },
	{ "transfer-port", SETTING_COUNT, "", "0", 0, 65535, .help = "Data port for other nodes; 0 picks a free one.",
	  AT(transfer_port) },
	{ "max-model-len", SETTING_COUNT, "tokens", "0", 0, 1 << 24, .help = "Longest context; 0: the model's.",
	  AT(max_model_len) },
	{ "max-num-seqs", SETTING_COUNT, "sequences", "64", 1, 4096, .help = "Sequences in decode at a time.",
	  AT(max_num_seqs) },
	{ "max-num-batched-tokens", SETTING_COUNT, "tokens", "512", 1, 65536, .help = "Token budget of one step.",
	  AT(max_num_batched_tokens) },
	{ "prefill-chunk", SETTING_COUNT, "tokens", "512", 1, 65536, .help = "Prompt tokens of one request in one step.",
	  AT(prefill_chunk) },
	{ "max-num-queued-reqs", SETTING_COUNT, "requests", "1024", 1, 65536, .help = "Dispatches this node holds at a time.",
	  AT(max_num_queued) },
	{ "block-size", SETTING_COUNT, "tokens", "64", 16, 256, .help = "Tokens of a KV block, a multiple of 16; one value per model in the cluster.",
	  AT(block_tokens) },
	{ "kv-cache-memory-bytes", SETTING_BYTES, "bytes", "1G", 1, 1e15, .help = "KV memory of this node.", AT(kv_bytes) },
	{ "enable-prefix-caching", SETTING_BOOL, "", "true", .help = "Keep finished blocks for later prompts.",
	  AT(prefix_caching) },
	{ "reserve-timeout", SETTING_DURATION, "ms", "10s", 1, 1e7,
	  .help = "prefill: how long the answer to Reserve, and then each next slice's, may take.",
	  AT(reserve_timeout_ns) },
	{ "landing-timeout", SETTING_DURATION, "ms", "300s", 1, 1e8,
	  .help = "decode: how long a reservation waits for the next sign of a prefill that is slow, not lost.",
	  AT(landing_timeout_ns) },
	{ "shutdown-timeout", SETTING_DURATION, "ms", "5s", 0, 1e7, .help = "How long SIGTERM waits for work to finish.",
	  AT(shutdown_timeout_ns) },
	{ "log-level", SETTING_CHOICE, "", "info", .choices = levels, .help = "error, warning, info or debug.", AT(log_level) },
	{ "sim-prefill-token", SETTING_REAL, "us", "110", 0, 1e9, .help = "sim engine: time of a prompt token.",
	  AT(sim_prefill_token_us) },
	{ "sim-prefill-square", SETTING_REAL, "ns", "0.76", 0, 1e9, .help = "sim engine: time of a squared prompt token.",
	  AT(sim_prefill_square_ns) },
	{ "sim-step", SETTING_REAL, "ms", "26.7", 0, 1e6, .help = "sim engine: base time of a decode step.", AT(sim_step_ms) },
	{ "sim-step-seq", SETTING_REAL, "us", "100", 0, 1e9, .help = "sim engine: more per sequence.", AT(sim_step_seq_us) },
	{ "sim-step-context", SETTING_REAL, "ns", "32.6", 0, 1e9, .help = "sim engine: more per context token.",
	  AT(sim_step_context_ns) },
	{ "sim-speed", SETTING_REAL, "", "1", 1e-3, 1e6, .help = "sim engine: modelled seconds per real second.", AT(sim_speed) },
	{ "fault-flip-every", SETTING_COUNT, "slices", "0", 0, 1e9, .help = "Test fault: flips a bit in every n-th slice sent.",
	  AT(fault_flip_every) },
	{ "fault-delay", SETTING_COUNT, "us", "0", 0, 1e9, .help = "Test fault: holds each slice back at the receiver.",
	  AT(fault_delay_us) },
	{ "fault-drop-every", SETTING_COUNT, "slices", "0", 0, 1e9, .help = "Test fault: breaks the connection at every n-th slice.",
	  AT(fault_drop_every) },
};

static struct setting own_rows[ARRAY_COUNT(rows)];
static struct settings settings;

int node_config_load(struct node_config *config, const char *daemon, enum node_role role, int argc,
		     char **argv)
{
	memcpy(own_rows, rows, sizeof rows);
	for (size_t i = 0; i < ARRAY_COUNT(own_rows); i++)
		if (!strcmp(own_rows[i].name, "role"))
			own_rows[i].initial = roles[role - 1];
	settings = (struct settings){
		.daemon = daemon,
		.summary = role == NODE_ROLE_PREFILL ? "computes prompts and sends their KV to decode nodes"
						: "receives KV and generates tokens",
		.rows = own_rows,
		.row_count = ARRAY_COUNT(own_rows),
	};
	int status = settings_load(&settings, argc, argv, config);
	config->role += NODE_ROLE_PREFILL; /* choices count from 0 */
	return status;
}

void node_config_free(struct node_config *config)
{
	settings_free(&settings, config);
}
