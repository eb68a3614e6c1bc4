/* The node's admin listener: metrics for scrapers, probes, its own stats as JSON. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "node/private.h"

#define JSON_TYPE "application/json"

static const double step_bounds[] = { .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10 };

/* Gauges are read from the cores when somebody looks. */
static void admin_update(struct node *node)
{
	struct node_load load;
	struct xfer_stats transfers;
	struct metrics *m = node->metrics;
	const uint32_t *blocks = node->kv.pool.counts;
	char labels[256], name[NODE_NAME_BYTES * 2], model[256];

	node_load(node, &load);
	xfer_stats(node->xfer, &transfers);
	snprintf(labels, sizeof labels, "model_name=\"%s\",engine=\"%s\"",
		 metrics_escape(node->served_name, model, sizeof model / 2), metrics_escape(node->name, name, sizeof name));
	const struct {
		const char *name, *help;
		double value;
	} gauges[] = {
		{ "vllm:num_requests_running", "Sequences in decode.", load.running },
		{ "vllm:num_requests_waiting", "Dispatches waiting for prefill.", load.waiting },
		{ "vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 0..1.",
		  node->kv.pool.block_count ? (double)(blocks[KV_USED] + blocks[KV_RESERVED] + blocks[KV_QUARANTINED]) / node->kv.pool.block_count : 0 },
		{ "baton_blocks_free", "KV blocks that hold nothing.", blocks[KV_FREE] },
		{ "baton_blocks_cached", "KV blocks kept for later prompts.", blocks[KV_CACHED] },
		{ "baton_blocks_used", "KV blocks of sequences.", blocks[KV_USED] },
		{ "baton_blocks_reserved", "KV blocks that a transfer will fill.", blocks[KV_RESERVED] },
		{ "baton_blocks_quarantined", "KV blocks that a late write might still reach.", blocks[KV_QUARANTINED] },
	};
	const struct {
		const char *name, *help;
		double value;
	} counters[] = {
		{ "vllm:num_preemptions", "Sequences given back because blocks ran out.", (double)load.preemptions },
		{ "vllm:prefix_cache_queries", "Prompt tokens looked up.", (double)load.prefix_queries },
		{ "vllm:prefix_cache_hits", "Prompt tokens found cached here.", (double)load.prefix_hits },
		{ "baton_prefill_tokens", "Prompt tokens computed.", (double)load.prefill_tokens },
		{ "baton_decode_tokens", "Tokens decoded.", (double)load.decode_tokens },
		{ "baton_slices_corrupt", "KV slices that arrived with a wrong checksum.", (double)transfers.slices_corrupt },
		{ "baton_slices_resent", "KV slices sent a second time.", (double)load.slices_resent },
		{ "baton_frames_refused", "Control frames refused: fenced, stale or out of place.", (double)node->frames_refused },
		{ "baton_events_stale", "Events for dispatches that were over.", (double)load.events_stale },
		{ "baton_evictions", "Cached blocks dropped for new ones.", (double)node->kv.evictions },
	};
	for (size_t i = 0; i < ARRAY_COUNT(gauges); i++)
		metric_set(metric_series(metrics_gauge(m, gauges[i].name, gauges[i].help), "%s", labels), gauges[i].value);
	for (size_t i = 0; i < ARRAY_COUNT(counters); i++)
		metric_set(metric_series(metrics_counter(m, counters[i].name, counters[i].help), "%s", labels), counters[i].value);
	static const char *const transports[] = { "auto", "shm", "tcp", "rdma", "sim" };
	for (size_t i = XFER_SHM; i <= XFER_RDMA; i++) {
		metric_set(metric_series(metrics_counter(m, "baton_transfer_landed_bytes", "KV bytes received, verified."),
					 "%s,transport=\"%s\"", labels, transports[i]), (double)transfers.landed_bytes[i]);
		metric_set(metric_series(metrics_counter(m, "baton_transfer_sent_bytes", "KV bytes sent and acknowledged."),
					 "%s,transport=\"%s\"", labels, transports[i]), (double)transfers.sent_bytes[i]);
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
