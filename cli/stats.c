#include "cli/stats.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"

static const json_t *at(const json_t *object, const char *key)
{
	return json_object_get(object, key);
}

static const char *text_at(const json_t *object, const char *key)
{
	const char *text = json_string_value(at(object, key));
	return text ? text : "-";
}

static long long count_at(const json_t *object, const char *key)
{
	return (long long)json_integer_value(at(object, key));
}

/* 1474560 -> "1.41 MiB" */
static const char *bytes_text(long long bytes, char room[32])
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
	double value = (double)bytes;
	size_t unit = 0;

	while (value >= 1024 && unit + 1 < ARRAY_COUNT(units)) {
		value /= 1024;
		unit++;
	}
	snprintf(room, 32, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
	return room;
}

static const char *ms_text(const json_t *value, char room[32])
{
	if (!json_is_number(value))
		return "-";
	snprintf(room, 32, "%.1f", json_number_value(value));
	return room;
}

static void print_latency(const char *name, const json_t *quantiles)
{
	char p50[32], p90[32], p99[32];

	printf("  %-8s %10s %10s %10s %12lld\n", name, ms_text(at(quantiles, "p50"), p50),
	       ms_text(at(quantiles, "p90"), p90), ms_text(at(quantiles, "p99"), p99),
	       count_at(quantiles, "count"));
}

static void print_conductor(const json_t *conductor)
{
	const json_t *requests = at(conductor, "requests"), *causes = at(requests, "resumed_by_cause"), *value;
	const char *cause;

	printf("conductor %s: %s, policy %s, up %.0f s, %lld tokens delivered\n", text_at(conductor, "name"),
	       json_is_true(at(conductor, "ready")) ? "ready" : "not ready", text_at(conductor, "policy"),
	       json_number_value(at(conductor, "uptime_s")), count_at(conductor, "tokens_delivered"));
	printf("requests: %lld running, %lld waiting; %lld finished, %lld failed, %lld cancelled, %lld resumed",
	       count_at(requests, "running"), count_at(requests, "waiting"), count_at(requests, "finished"),
	       count_at(requests, "failed"), count_at(requests, "cancelled"), count_at(requests, "resumed"));
	json_object_foreach((json_t *)causes, cause, value)
		if (json_integer_value(value))
			printf(" [%s: %lld]", cause, (long long)json_integer_value(value));
	printf("\n\n  %-8s %10s %10s %10s %12s\n", "ms", "p50", "p90", "p99", "count");
	print_latency("TTFT", at(conductor, "ttft_ms"));
	print_latency("TBT", at(conductor, "tbt_ms"));
}

static void print_node(const json_t *node)
{
	const json_t *blocks = at(node, "blocks");
	long long total = count_at(blocks, "total"), queries = count_at(node, "prefix_queries");
	long long busy = count_at(blocks, "used") + count_at(blocks, "reserved") + count_at(blocks, "quarantined");

	printf("  %-16s %-8s %-9s %7lld %7lld %9lld %9lld %6.1f%% %6.1f%% %6.1f%% %8lld\n", text_at(node, "name"),
	       text_at(node, "role"), text_at(node, "state"), count_at(node, "running"), count_at(node, "waiting"),
	       count_at(node, "queued_tokens"), count_at(node, "running_tokens"),
	       total ? 100.0 * (double)busy / (double)total : 0.0,
	       total ? 100.0 * (double)count_at(blocks, "cached") / (double)total : 0.0,
	       queries ? 100.0 * (double)count_at(node, "prefix_hits") / (double)queries : 0.0,
	       count_at(node, "preemptions"));
}

void stats_print(const json_t *stats)
{
	const json_t *nodes = at(stats, "nodes"), *transfers = at(stats, "transfers");
	static const char *const transports[] = { "shm", "tcp", "rdma" };
	char room[32];

	print_conductor(at(stats, "conductor"));
	printf("\n  %-16s %-8s %-9s %7s %7s %9s %9s %7s %7s %7s %8s\n", "node", "role", "state", "running", "waiting",
	       "queued t", "context t", "KV use", "cached", "hits", "preempt");
	for (size_t i = 0; i < json_array_size(nodes); i++)
		print_node(json_array_get(nodes, i));
	printf("\nKV moved:");
	for (size_t i = 0; i < ARRAY_COUNT(transports); i++)
		printf(" %s over %s%s", bytes_text(count_at(transfers, transports[i]), room), transports[i],
		       i + 1 < ARRAY_COUNT(transports) ? "," : "");
	if (json_is_number(at(transfers, "hidden_share")))
		printf("; %.0f%% of transfer time hidden behind prefill",
		       100 * json_number_value(at(transfers, "hidden_share")));
	printf("\n");
}

void trace_print(const json_t *trace)
{
	const json_t *timings = at(trace, "timings"), *events = at(trace, "events");
	char ttft[32], total[32], bytes[32];

	printf("request %s: %s, model %s, %s -> %s, %lld placements\n", text_at(trace, "id"), text_at(trace, "state"),
	       text_at(trace, "model"), text_at(trace, "prefill_node"), text_at(trace, "decode_node"),
	       count_at(trace, "dispatches"));
	printf("tokens: %lld prompt, of them %lld cached; %lld output\n", count_at(trace, "prompt_tokens"),
	       count_at(trace, "cached_tokens"), count_at(trace, "output_tokens"));
	printf("times: queue %.1f ms, prefill %.1f ms, transfer %.1f ms (%s over %s, %.0f%% hidden), TTFT %s ms, total %s ms\n",
	       json_number_value(at(timings, "queue_ms")), json_number_value(at(timings, "prefill_ms")),
	       json_number_value(at(timings, "transfer_ms")), bytes_text(count_at(timings, "transfer_bytes"), bytes),
	       text_at(timings, "transport"), 100 * json_number_value(at(timings, "hidden_share")),
	       ms_text(at(timings, "ttft_ms"), ttft), ms_text(at(timings, "total_ms"), total));
	for (size_t i = 0; i < json_array_size(events); i++) {
		const json_t *event = json_array_get(events, i);
		printf("  [%6lld ms] %s\n", count_at(event, "ms"), text_at(event, "text"));
	}
	if (count_at(trace, "events_dropped"))
		printf("  (%lld later events were not kept)\n", count_at(trace, "events_dropped"));
}
