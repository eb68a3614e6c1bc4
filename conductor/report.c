#include "conductor/report.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

double report_sum(const char *exposition, const char *name)
{
	size_t bytes = strlen(name);
	double sum = 0;
	for (const char *line = exposition; line && *line;) {
		const char *end = strchr(line, '\n');
		if (!strncmp(line, name, bytes) && (line[bytes] == '{' || line[bytes] == ' ')) {
			/* The value stands behind the last blank; labels may hold blanks too. */
			const char *value = end ? end : line + strlen(line);
			while (value > line && value[-1] != ' ')
				value--;
			sum += strtod(value, NULL);
		}
		line = end ? end + 1 : NULL;
	}
	return sum;
}

void report_line(struct report *report, struct metrics *metrics, uint64_t now_ns, struct buf *out)
{
	struct buf text;
	buf_init(&text, 0);
	metrics_render(metrics, &text);
	if (text.failed || !text.data) {
		buf_fini(&text);
		return;
	}
	struct report next = {
		.prompt = report_sum(text.data, "vllm:prompt_tokens_total"),
		.generation = report_sum(text.data, "vllm:generation_tokens_total"),
		.cached = report_sum(text.data, "baton_cached_prompt_tokens_total"),
		.last_ns = now_ns,
	};
	double running = report_sum(text.data, "vllm:num_requests_running");
	double waiting = report_sum(text.data, "vllm:num_requests_waiting");
	double kv = report_sum(text.data, "vllm:kv_cache_usage_perc");
	double seconds = report->last_ns ? (double)(now_ns - report->last_ns) / 1e9 : 0;
	next.idle = next.prompt == report->prompt && next.generation == report->generation &&
		    !running && !waiting;
	/* One line after the last work, so that the throughput is seen to fall to zero. */
	if (seconds > 0 && !(next.idle && report->idle))
		buf_printf(out,
			   "Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f "
			   "tokens/s, Running: %.0f reqs, Waiting: %.0f reqs, GPU KV cache usage: "
			   "%.1f%%, Prefix cache hit rate: %.1f%%",
			   (next.prompt - report->prompt) / seconds,
			   (next.generation - report->generation) / seconds, running, waiting,
			   100 * kv, next.prompt > 0 ? 100 * next.cached / next.prompt : 0);
	if (!report->last_ns)
		next.idle = true;
	*report = next;
	buf_fini(&text);
}
