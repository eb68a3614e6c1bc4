/* The node's admin listener: metrics for scrapers, probes, its own stats as JSON. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "node/private.h"

#define JSON_TYPE "application/json"

static const double step_bounds[] = { .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10 };

struct named {
	const char *name, *help;
};

/* In the order of admin_update()'s values. */
static const struct named gauges[] = {
	{ "vllm:num_requests_running", "Sequences in decode." },
	{ "vllm:num_requests_waiting", "Dispatches waiting for prefill." },
	{ "vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 0..1." },
	{ "baton_blocks_free", "KV blocks that hold nothing." },
	{ "baton_blocks_cached", "KV blocks kept for later prompts." },
	{ "baton_blocks_used", "KV blocks of sequences." },
	{ "baton_blocks_reserved", "KV blocks that a transfer will fill." },
	{ "baton_blocks_quarantined", "KV blocks that a late write might still reach." },
};
static const struct named counters[] = {
	{ "vllm:num_preemptions", "Sequences given back because blocks ran out." },
	{ "vllm:prefix_cache_queries", "Prompt tokens looked up." },
	{ "vllm:prefix_cache_hits", "Prompt tokens found cached here." },
	{ "baton_prefill_tokens", "Prompt tokens computed." },
	{ "baton_decode_tokens", "Tokens decoded." },
	{ "baton_slices_corrupt", "KV slices that arrived with a wrong checksum." },
	{ "baton_slices_resent", "KV slices sent a second time." },
	{ "baton_frames_refused", "Control frames refused: fenced, stale or out of place." },
	{ "baton_events_stale", "Events for dispatches that were over." },
	{ "baton_evictions", "Cached blocks dropped for new ones." },
};
static const char *const transports[] = { "shm", "tcp", "rdma" }; /* XFER_SHM .. XFER_RDMA */

static_assert(ARRAY_COUNT(gauges) == ADMIN_GAUGES, "a slot for each");
static_assert(ARRAY_COUNT(counters) == ADMIN_COUNTERS, "a slot for each");

/* Counts that are kept elsewhere: the series follows them when somebody looks. */
static void counter_follow(struct metric *metric, double value)
{
	metric_add(metric, value - metric_value(metric));
}

static void admin_update(struct node *node)
{
	struct node_load load;
	struct xfer_stats transfers;
	const uint32_t *blocks = node->kv.pool.counts;

	node_load(node, &load);
	xfer_stats(node->xfer, &transfers);
	const double gauge_values[] = {
		load.running,
		load.waiting,
		(double)(blocks[KV_USED] + blocks[KV_RESERVED] + blocks[KV_QUARANTINED]) /
			MAX(1u, node->kv.pool.block_count),
		blocks[KV_FREE],
		blocks[KV_CACHED],
		blocks[KV_USED],
		blocks[KV_RESERVED],
		blocks[KV_QUARANTINED],
	};
	const uint64_t counter_values[] = {
		load.preemptions,    load.prefix_queries,      load.prefix_hits,   load.prefill_tokens,
		load.decode_tokens,  transfers.slices_corrupt, load.slices_resent, node->frames_refused,
		load.events_stale,   node->kv.evictions,
	};
	static_assert(ARRAY_COUNT(gauge_values) == ADMIN_GAUGES, "a value for each");
	static_assert(ARRAY_COUNT(counter_values) == ADMIN_COUNTERS, "a value for each");
	for (size_t i = 0; i < ADMIN_GAUGES; i++)
		metric_set(node->gauges[i], gauge_values[i]);
	for (size_t i = 0; i < ADMIN_COUNTERS; i++)
		counter_follow(node->counters[i], (double)counter_values[i]);
	for (size_t i = 0; i < ARRAY_COUNT(transports); i++) {
		counter_follow(node->landed[i], (double)transfers.landed_bytes[XFER_SHM + i]);
		counter_follow(node->sent[i], (double)transfers.sent_bytes[XFER_SHM + i]);
	}
}

static void admin_register(struct node *node, const char *labels)
{
	struct metrics *m = node->metrics;
	struct metric_family *landed = metrics_counter(m, "baton_transfer_landed_bytes", "KV bytes received, verified.");
	struct metric_family *sent = metrics_counter(m, "baton_transfer_sent_bytes", "KV bytes sent and acknowledged.");
	for (size_t i = 0; i < ADMIN_GAUGES; i++)
		node->gauges[i] = metric_series(metrics_gauge(m, gauges[i].name, gauges[i].help), "%s", labels);
	for (size_t i = 0; i < ADMIN_COUNTERS; i++)
		node->counters[i] = metric_series(metrics_counter(m, counters[i].name, counters[i].help), "%s", labels);
	for (size_t i = 0; i < ARRAY_COUNT(transports); i++) {
		node->landed[i] = metric_series(landed, "%s,transport=\"%s\"", labels, transports[i]);
		node->sent[i] = metric_series(sent, "%s,transport=\"%s\"", labels, transports[i]);
	}
}

static void answer_metrics(struct node *node, struct http_exchange *exchange)
{
	struct buf text;
	buf_init(&text, 16u << 20);
	admin_update(node);
	metrics_render(node->metrics, &text);
	if (text.failed)
		http_respond(exchange, 500, "text/plain", "", 0);
	else
		http_respond(exchange, 200, "text/plain; version=0.0.4; charset=utf-8", text.data, text.bytes);
	buf_fini(&text);
}

static void answer_stats(struct node *node, struct http_exchange *exchange)
{
	static const char *const states[] = { "", "starting", "ready", "draining", "drained" };
	static const char *const roles[] = { "", "prefill", "decode", "both" };
	const uint32_t *blocks = node->kv.pool.counts;
	struct node_load load;
	struct buf text;
	node_load(node, &load);
	buf_init(&text, 1u << 20);
	buf_printf(&text,
		   "{\"name\":\"%s\",\"role\":\"%s\",\"state\":\"%s\",\"incarnation\":%llu,\"engine\":\"%s\",\"running\":%u,"
		   "\"waiting\":%u,\"queued_tokens\":%llu,\"running_tokens\":%llu,\"blocks\":{\"total\":%u,\"free\":%u,"
		   "\"cached\":%u,\"used\":%u,\"reserved\":%u,\"quarantined\":%u}}\n",
		   node->name, roles[node->config.role], states[node->state], (unsigned long long)node->incarnation,
		   engine_thread_engine(node->engine) ? engine_describe(engine_thread_engine(node->engine)) : "",
		   load.running, load.waiting, (unsigned long long)load.queued_tokens,
		   (unsigned long long)load.running_tokens, node->kv.pool.block_count, blocks[KV_FREE],
		   blocks[KV_CACHED], blocks[KV_USED], blocks[KV_RESERVED], blocks[KV_QUARANTINED]);
	http_respond(exchange, text.failed ? 500 : 200, JSON_TYPE, text.data, text.bytes);
	buf_fini(&text);
}

static void answer_text(struct http_exchange *exchange, int status, const char *text)
{
	http_respond(exchange, status, JSON_TYPE, text, strlen(text));
}

static void admin_on_request(struct http_exchange *exchange, const struct http_request *request, void *context)
{
	struct node *node = context;
	const char *path = request->path;
	if (strcmp(request->method, "GET") && strcmp(request->method, "HEAD"))
		answer_text(exchange, 405, "{\"error\":{\"message\":\"only GET is served here\"}}\n");
	else if (!strcmp(path, "/metrics"))
		answer_metrics(node, exchange);
	else if (!strcmp(path, "/stats"))
		answer_stats(node, exchange);
	else if (!strcmp(path, "/livez"))
		answer_text(exchange, 200, "{\"status\":\"ok\"}\n");
	else if (!strcmp(path, "/health") || !strcmp(path, "/readyz"))
		answer_text(exchange, node->state == NODE_READY ? 200 : 503,
			    node->state == NODE_READY ? "{\"status\":\"ok\"}\n" : "{\"status\":\"not ready\"}\n");
	else if (!strcmp(path, "/version"))
		answer_text(exchange, 200, "{\"version\":\"" BATON_VERSION "\"}\n");
	else
		answer_text(exchange, 404, "{\"error\":{\"message\":\"known paths: /metrics /stats /livez /readyz /health /version\"}}\n");
}

static const struct http_callbacks admin_callbacks = { .on_request = admin_on_request };

int node__admin_open(struct node *node)
{
	const struct node_config *config = &node->config;
	struct metrics *m = node->metrics;
	char name[NODE_NAME_BYTES * 2], model[256], labels[256];
	snprintf(labels, sizeof labels, "model_name=\"%s\",engine=\"%s\"",
		 metrics_escape(node->served_name, model, sizeof model / 2), metrics_escape(node->name, name, sizeof name));
	admin_register(node, labels);
	node->steps = metric_series(metrics_counter(m, "baton_steps", "Batches run."), "%s", labels);
	node->step_tokens = metric_series(metrics_histogram(m, "vllm:iteration_tokens_total", "Tokens per step.",
							    metrics_bounds_tokens, ARRAY_COUNT(metrics_bounds_tokens)),
					  "%s", labels);
	node->step_seconds = metric_series(metrics_histogram(m, "baton_step_seconds", "Duration of a step.", step_bounds,
							     ARRAY_COUNT(step_bounds)),
					   "%s", labels);
	metric_set(metric_series(metrics_gauge(m, "vllm:cache_config_info", "Shape of the KV cache."),
				 "%s,block_size=\"%u\",num_gpu_blocks=\"%u\"", labels, node->shape.block_tokens,
				 node->arena.block_count), 1);
	int status = http_listen(&node->loop, config->admin_host, (uint16_t)config->admin_port, false, NULL,
				 &admin_callbacks, node, &node->admin, &node->admin_port);
	if (status < 0)
		log_error("cannot listen on %s:%llu: %s", config->admin_host, (unsigned long long)config->admin_port,
			  err_text(status));
	return status;
}

void node__admin_close(struct node *node)
{
	if (node->admin)
		http_close(node->admin);
	node->admin = NULL;
}
