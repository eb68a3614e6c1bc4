/* What happened to a request, in words, and how long things take. */
#include "conductor/core/private.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#define LINE_BYTES 320
/* How it began stays, and so does what came last; lines in between make room. */
#define HEAD_BYTES 768

static_assert(HEAD_BYTES + 3 * LINE_BYTES < CONDUCTOR_TRACE_BYTES, "two whole lines lie past the head");

static void text_add(struct trace_text *trace, const char *line, size_t bytes)
{
	while (trace->bytes + bytes > sizeof trace->text - 1) {
		char *middle = strchr(trace->text + HEAD_BYTES, '\n') + 1;
		char *after = strchr(middle, '\n') + 1;
		memmove(middle, after, (size_t)(trace->text + trace->bytes + 1 - after));
		trace->bytes -= (uint32_t)(after - middle);
		trace->dropped++;
	}
	memcpy(trace->text + trace->bytes, line, bytes);
	trace->bytes += (uint32_t)bytes;
	trace->text[trace->bytes] = '\0';
}

void conductor__trace(struct conductor *core, struct request *request, const char *format, ...)
{
	struct trace_text *trace = &core->traces[request_slot(core, request)];
	char line[LINE_BYTES];
	va_list args;

	if (!trace->bytes)
		trace->text[0] = '\0';
	int used = snprintf(line, sizeof line, "%" PRIu64 "\t",
			    (core->now_ns - MIN(core->now_ns, request->facts.arrival_ns)) / NS_PER_MS);
	va_start(args, format);
	int text = vsnprintf(line + used, sizeof line - (size_t)used, format, args);
	va_end(args);
	size_t bytes = MIN((size_t)(used + text), sizeof line - 2);
	for (size_t i = (size_t)used; i < bytes; i++)
		if (line[i] == '\n' || line[i] == '\t')
			line[i] = ' ';
	line[bytes++] = '\n';
	text_add(trace, line, bytes);
}

void conductor__trace_ended(struct conductor *core, struct request *request)
{
	struct ended *ended = &core->ended[core->ended_count++ % core->config.traces_max];
	const struct trace_text *trace = &core->traces[request_slot(core, request)];

	ended->facts = request->facts;
	ended->trace.bytes = trace->bytes;
	ended->trace.dropped = trace->dropped;
	memcpy(ended->trace.text, trace->text, trace->bytes + 1);
}

static void trace_view(const struct request_facts *facts, const struct trace_text *trace,
		       struct conductor_trace_view *ret_view)
{
	*ret_view = (struct conductor_trace_view){
		.name = facts->name,
		.state = facts->state,
		.model = facts->model,
		.lines = trace->text,
		.lines_dropped = trace->dropped,
		.dispatches = facts->epochs,
		.prompt_tokens = facts->prompt_count,
		.output_tokens = facts->tokens,
		.cached_tokens = facts->cached_tokens,
		.ttft_us = facts->first_token_ns ?
				   (facts->first_token_ns - facts->arrival_ns) / NS_PER_US :
				   0,
		.total_us = facts->end_ns ? (facts->end_ns - facts->arrival_ns) / NS_PER_US : 0,
		.queue_us = facts->measured.queue_us,
		.prefill_us = facts->measured.prefill_us,
		.transfer_us = facts->measured.transfer_us,
		.transport = facts->measured.transport,
		.hidden_permille = facts->measured.hidden_permille,
		.transfer_bytes = facts->measured.transfer_bytes,
		.prefill_node = facts->prefill_node,
		.decode_node = facts->decode_node,
	};
}

int conductor_trace_find(const struct conductor *core, const char *name,
			 struct conductor_trace_view *ret_view)
{
	uint64_t kept = MIN(core->ended_count, (uint64_t)core->config.traces_max);

	list_for_each(link, &core->open) {
		const struct request *request = list_entry(link, struct request, open);
		if (strcmp(request->facts.name, name) != 0)
			continue;
		trace_view(&request->facts, &core->traces[request_slot(core, request)], ret_view);
		return 0;
	}
	for (uint64_t i = 1; i <= kept; i++) {
		const struct ended *ended =
			&core->ended[(core->ended_count - i) % core->config.traces_max];
		if (strcmp(ended->facts.name, name) != 0)
			continue;
		trace_view(&ended->facts, &ended->trace, ret_view);
		return 0;
	}
	return -ENOENT;
}

/* Buckets: eight to a doubling, from 1 us up; 2^32 us is more than an hour. */
static uint32_t bucket_of(uint64_t ns)
{
	uint64_t us = ns / NS_PER_US;

	if (us < 8)
		return (uint32_t)us;
	uint32_t power = 63 - (uint32_t)__builtin_clzll(us);
	uint32_t bucket = (power - 2) * 8 + ((us >> (power - 3)) & 7);
	return MIN(bucket, CONDUCTOR_QUANTILE_BUCKETS - 1);
}

static double bucket_floor_us(uint32_t bucket)
{
	if (bucket < 8)
		return bucket;
	return ldexp(8 + bucket % 8, (int)(bucket / 8) - 1);
}

void conductor__quantile_add(struct conductor_quantiles *quantiles, uint64_t ns, uint64_t weight)
{
	quantiles->counts[bucket_of(ns)] += weight;
	quantiles->total += weight;
}

double conductor_quantile_ms(const struct conductor_quantiles *quantiles, double q)
{
	double rank = q * (double)quantiles->total, below = 0;

	if (!quantiles->total)
		return NAN;
	for (uint32_t i = 0; i < CONDUCTOR_QUANTILE_BUCKETS; i++) {
		double here = (double)quantiles->counts[i];
		if (here && below + here >= rank) {
			double part = MAX(rank - below, 0) / here;
			double low = bucket_floor_us(i), high = bucket_floor_us(i + 1);
			return (low + (high - low) * part) / 1000;
		}
		below += here;
	}
	return bucket_floor_us(CONDUCTOR_QUANTILE_BUCKETS - 1) / 1000;
}
