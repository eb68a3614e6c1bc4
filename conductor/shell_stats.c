/* What the conductor tells of itself: GET /stats, GET /debug/requests/ID, /metrics. */
#include "conductor/private.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"

static const char *const transports[] = { "auto", "shm", "tcp", "rdma", "sim" };

static const char *transport_name(uint32_t transport)
{
	return transport && transport < ARRAY_COUNT(transports) ? transports[transport] : "none";
}

static json_t *real_or_null(double value)
{
	return isfinite(value) ? json_real(value) : json_null();
}

static json_t *count(uint64_t value)
{
	return json_integer((json_int_t)value);
}

static json_t *quantiles_json(const struct conductor_quantiles *quantiles)
{
	return json_pack("{s:o, s:o, s:o, s:o}", "p50",
			 real_or_null(conductor_quantile_ms(quantiles, 0.50)), "p90",
			 real_or_null(conductor_quantile_ms(quantiles, 0.90)), "p99",
			 real_or_null(conductor_quantile_ms(quantiles, 0.99)), "count",
			 count(quantiles->total));
}

/* Placements that took a request on after it had begun somewhere; a refusal costs nothing. */
static uint64_t resumed_total(const struct conductor_counters *counters)
{
	uint64_t total = 0;

	for (uint32_t cause = 0; cause < CAUSE_COUNT; cause++)
		if (cause != CAUSE_REFUSED)
			total += counters->resumes[cause];
	return total;
}

static json_t *conductor_json(struct shell *shell, const struct conductor_counters *counters)
{
	json_t *causes = json_object(), *requests;

	for (uint32_t cause = 0; cause < CAUSE_COUNT; cause++)
		json_object_set_new(causes, conductor_cause_name(cause),
				    count(counters->resumes[cause]));
	requests = json_pack("{s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "running",
			     (int)counters->requests_running, "waiting",
			     (int)counters->requests_waiting, "open", (int)counters->requests_open,
			     "submitted", count(counters->submitted), "finished",
			     count(counters->finished), "failed", count(counters->failed), "cancelled",
			     count(counters->cancelled), "resumed", count(resumed_total(counters)),
			     "resumed_by_cause", causes);
	return json_pack("{s:s, s:o, s:f, s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name",
			 shell->node, "incarnation", count(shell->incarnation), "uptime_s",
			 (double)(clock_now_ns() - shell->start_ns) / NS_PER_S, "policy",
			 shell->config.policy, "ready", (int)conductor_ready(shell->core), "requests",
			 requests, "ttft_ms", quantiles_json(conductor_ttft(shell->core)), "tbt_ms",
			 quantiles_json(conductor_tbt(shell->core)), "dispatches",
			 count(counters->dispatches), "tokens_delivered",
			 count(counters->tokens_delivered), "frames_refused",
			 count(counters->frames_refused), "nodes_fenced", count(counters->nodes_fenced));
}

static json_t *node_blocks_json(const struct conductor_node_view *view)
{
	const struct conductor_report *report = view->report;

	return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "total", (int)view->blocks_total,
			 "tokens", (int)view->block_tokens, "free", (int)report->blocks_free, "cached",
			 (int)report->blocks_cached, "used", (int)report->blocks_used, "reserved",
			 (int)report->blocks_reserved, "quarantined", (int)report->blocks_quarantined);
}

static json_t *node_transfer_json(const struct conductor_report *report)
{
	return json_pack("{s:o, s:o, s:o, s:o, s:o}", "shm_bytes", count(report->transfer_bytes_shm),
			 "tcp_bytes", count(report->transfer_bytes_tcp), "rdma_bytes",
			 count(report->transfer_bytes_rdma), "sent_bytes",
			 count(report->transfer_bytes_sent), "corrupt", count(report->slices_corrupt));
}

static json_t *node_json(struct shell *shell, const struct conductor_node_view *view)
{
	const struct shell_conn *conn = shell__member(shell, view->id);
	const struct conductor_report *report = view->report;
	json_t *node = json_pack(
		"{s:s, s:s, s:s, s:o, s:s, s:s, s:s, s:s, s:i, s:i}", "name", view->name, "role",
		conductor_role_name(view->role), "state", conductor_node_state_name(view->state),
		"incarnation", count(view->incarnation), "address",
		conn ? wire_peer_name(conn->wire) : "", "admin", conn ? conn->admin : "", "model",
		shell->config.models[view->model].name, "numerics", conn ? conn->numerics : "",
		"running", (int)report->running, "waiting", (int)report->waiting);

	if (!node)
		return NULL;
	json_object_set_new(node, "queued_tokens", count(view->queued_tokens));
	json_object_set_new(node, "running_tokens", count(view->running_tokens));
	json_object_set_new(node, "reserved_tokens", count(report->reserved_tokens));
	json_object_set_new(node, "prefills", count(view->prefills));
	json_object_set_new(node, "decodes", count(view->decodes));
	json_object_set_new(node, "dispatches", count(view->dispatches));
	json_object_set_new(node, "blocks", node_blocks_json(view));
	json_object_set_new(node, "transfer", node_transfer_json(report));
	json_object_set_new(node, "preemptions", count(report->preemptions));
	json_object_set_new(node, "prefix_queries", count(report->prefix_queries));
	json_object_set_new(node, "prefix_hits", count(report->prefix_hits));
	json_object_set_new(node, "prefill_tokens", count(report->prefill_tokens));
	json_object_set_new(node, "decode_tokens", count(report->decode_tokens));
	json_object_set_new(node, "frames_refused", count(view->frames_refused));
	json_object_set_new(node, "peer_frames_refused", count(report->frames_refused));
	json_object_set_new(node, "last_report_ms",
			    count((clock_now_ns() - view->report_ns) / NS_PER_MS));
	return node;
}

static json_t *transfers_json(const struct conductor_counters *counters)
{
	double share = counters->hidden_count ?
			       (double)counters->hidden_permille_sum / 1000 /
				       (double)counters->hidden_count :
			       NAN;

	return json_pack("{s:o, s:o, s:o, s:o}", "shm", count(counters->transfer_bytes[1]), "tcp",
			 count(counters->transfer_bytes[2]), "rdma",
			 count(counters->transfer_bytes[3]), "hidden_share", real_or_null(share));
}

char *shell__stats_json(struct shell *shell)
{
	struct conductor_counters counters;
	struct conductor_node_view view;
	json_t *nodes = json_array();

	conductor_counters(shell->core, &counters);
	for (uint32_t i = 0; i < conductor_node_count(shell->core); i++) {
		conductor_node_view(shell->core, i, &view);
		if (view.state != NODE_FREE)
			json_array_append_new(nodes, node_json(shell, &view));
	}
	json_t *all = json_pack("{s:o, s:o, s:o}", "conductor", conductor_json(shell, &counters),
				"nodes", nodes, "transfers", transfers_json(&counters));
	char *text = all ? json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
	json_decref(all);
	return text;
}

/* "MS\tTEXT\n" lines to objects. */
static json_t *events_json(const char *lines)
{
	json_t *events = json_array();

	while (*lines) {
		char *after;
		unsigned long long ms = strtoull(lines, &after, 10);
		const char *text = *after == '\t' ? after + 1 : after;
		size_t length = strcspn(text, "\n");
		json_array_append_new(events, json_pack("{s:I, s:s%}", "ms", (json_int_t)ms, "text",
							text, length));
		lines = text + length + (text[length] == '\n');
	}
	return events;
}

char *shell__trace_json(struct shell *shell, const char *name, int *ret_status)
{
	struct conductor_trace_view view;

	if (conductor_trace_find(shell->core, name, &view) < 0) {
		*ret_status = 404;
		return strdup("{\"error\":\"no request of this id is open or was one of the last\"}");
	}
	json_t *all = json_pack("{s:s, s:s, s:s, s:o, s:i}", "id", view.name, "model",
				shell->config.models[view.model].name, "state", view.state, "events",
				events_json(view.lines), "events_dropped", (int)view.lines_dropped);
	json_t *timings = json_pack(
		"{s:f, s:f, s:f, s:o, s:s, s:f, s:o, s:o}", "queue_ms", view.queue_us / 1e3,
		"prefill_ms", view.prefill_us / 1e3, "transfer_ms", view.transfer_us / 1e3,
		"transfer_bytes", count(view.transfer_bytes), "transport",
		transport_name(view.transport), "hidden_share", view.hidden_permille / 1e3, "ttft_ms",
		view.ttft_us ? json_real((double)view.ttft_us / 1e3) : json_null(), "total_ms",
		view.total_us ? json_real((double)view.total_us / 1e3) : json_null());
	*ret_status = 200;
	if (all && timings) {
		json_object_set_new(all, "timings", timings);
		json_object_set_new(all, "prefill_node", json_string(view.prefill_node));
		json_object_set_new(all, "decode_node", json_string(view.decode_node));
		json_object_set_new(all, "dispatches", count(view.dispatches));
		json_object_set_new(all, "prompt_tokens", count(view.prompt_tokens));
		json_object_set_new(all, "output_tokens", count(view.output_tokens));
		json_object_set_new(all, "cached_tokens", count(view.cached_tokens));
	}
	char *text = all ? json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
	json_decref(all);
	return text;
}

/* ---- /metrics ---- */

struct shell_metrics {
	struct metric *resumes[CAUSE_COUNT], *dispatches, *frames_refused, *fenced, *tokens;
	struct metric *nodes[NODE_GONE + 1];
	struct metric *running, *waiting, *kv_usage;
	struct metric *transfers[ARRAY_COUNT(transports)];
};

static const struct {
	const char *name, *help;
} counter_rows[] = {
	{ "baton_dispatches", "Placements sent to nodes." },
	{ "baton_frames_refused", "Frames of fenced nodes, older lives and ended placements." },
	{ "baton_nodes_fenced", "Nodes whose lease ran out." },
	{ "baton_tokens_delivered", "Output tokens passed to the HTTP fronts." },
};

static void metrics_series(struct shell *shell, struct shell_metrics *own)
{
	struct metrics *all = shell->bridge->metrics;
	struct metric **counters[] = { &own->dispatches, &own->frames_refused, &own->fenced,
				       &own->tokens };
	struct metric_family *family;
	char model[512];

	for (size_t i = 0; i < ARRAY_COUNT(counter_rows); i++)
		*counters[i] = metric_series(
			metrics_counter(all, counter_rows[i].name, counter_rows[i].help), "%s", "");
	family = metrics_counter(all, "baton_resumes",
				 "Placements that ended before their choices did, by cause.");
	for (uint32_t i = 0; i < CAUSE_COUNT; i++)
		own->resumes[i] = metric_series(family, "cause=\"%s\"", conductor_cause_name(i));
	family = metrics_gauge(all, "baton_nodes", "Nodes by state.");
	for (uint32_t i = NODE_STARTING; i <= NODE_GONE; i++)
		own->nodes[i] = metric_series(family, "state=\"%s\"", conductor_node_state_name(i));
	family = metrics_counter(all, "baton_transfer_bytes", "KV bytes that reached decode nodes.");
	for (uint32_t i = 1; i < ARRAY_COUNT(transports); i++)
		own->transfers[i] = metric_series(family, "transport=\"%s\"", transports[i]);
	metrics_escape(shell->config.models[0].name, model, sizeof model);
	own->running = metric_series(metrics_gauge(all, "vllm:num_requests_running",
						   "Requests that have begun to run on a node."),
				     "model_name=\"%s\",engine=\"cluster\"", model);
	own->waiting = metric_series(metrics_gauge(all, "vllm:num_requests_waiting",
						   "Requests that wait for a node or in its queue."),
				     "model_name=\"%s\",engine=\"cluster\"", model);
	own->kv_usage = metric_series(metrics_gauge(all, "vllm:kv_cache_usage_perc",
						    "Share of the KV blocks in use, 0 to 1."),
				      "model_name=\"%s\",engine=\"cluster\"", model);
}

int shell__metrics_open(struct shell *shell)
{
	if (!shell->bridge->metrics)
		return 0;
	shell->metrics = calloc(1, sizeof *shell->metrics);
	if (!shell->metrics)
		return -ENOMEM;
	metrics_series(shell, shell->metrics);
	return 0;
}

void shell__metrics_close(struct shell *shell)
{
	free(shell->metrics);
	shell->metrics = NULL;
}

static void counter_follow(struct metric *metric, uint64_t value)
{
	metric_add(metric, (double)value - metric_value(metric));
}

static void metrics_nodes(struct shell *shell, struct shell_metrics *own)
{
	uint32_t states[NODE_GONE + 1] = { 0 };
	uint64_t used = 0, total = 0;
	struct conductor_node_view view;

	for (uint32_t i = 0; i < conductor_node_count(shell->core); i++) {
		conductor_node_view(shell->core, i, &view);
		states[view.state]++;
		if (view.state < NODE_STARTING || view.state > NODE_DRAINED)
			continue;
		used += view.report->blocks_used + view.report->blocks_reserved;
		total += view.blocks_total;
	}
	for (uint32_t i = NODE_STARTING; i <= NODE_GONE; i++)
		metric_set(own->nodes[i], states[i]);
	metric_set(own->kv_usage, total ? (double)used / (double)total : 0);
}

void shell__metrics_update(struct shell *shell)
{
	struct shell_metrics *own = shell->metrics;
	struct conductor_counters counters;

	if (!own)
		return;
	conductor_counters(shell->core, &counters);
	counter_follow(own->dispatches, counters.dispatches);
	counter_follow(own->frames_refused, counters.frames_refused);
	counter_follow(own->fenced, counters.nodes_fenced);
	counter_follow(own->tokens, counters.tokens_delivered);
	for (uint32_t i = 0; i < CAUSE_COUNT; i++)
		counter_follow(own->resumes[i], counters.resumes[i]);
	for (uint32_t i = 1; i < ARRAY_COUNT(transports); i++)
		counter_follow(own->transfers[i], counters.transfer_bytes[i]);
	metric_set(own->running, counters.requests_running);
	metric_set(own->waiting, counters.requests_waiting);
	metrics_nodes(shell, own);
}
