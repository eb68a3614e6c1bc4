/*
 * Metrics in Prometheus text exposition. A family is registered once at start; series are
 * found by their label text. Values are atomics: any thread may update, any may render.
 *
 *     struct metric_family *f = metrics_counter(m, "vllm:prompt_tokens", "Prefilled tokens.");
 *     struct metric *prompt = metric_series(f, "model_name=\"%s\",engine=\"cluster\"", name);
 *     metric_add(prompt, 12);
 */
#ifndef BATON_BASE_METRICS_H
#define BATON_BASE_METRICS_H

#include <stddef.h>

#include "base/buf.h"

struct metrics;
struct metric_family;
struct metric;

struct metrics *metrics_new(void);
void metrics_free(struct metrics *metrics);

/* Counters are exposed as NAME_total. All names and helps are kept by reference. */
struct metric_family *metrics_counter(struct metrics *m, const char *name, const char *help);
struct metric_family *metrics_gauge(struct metrics *m, const char *name, const char *help);
/* @bounds: rising upper bounds without +Inf; kept by reference. */
struct metric_family *metrics_histogram(struct metrics *m, const char *name, const char *help,
					const double bounds[], size_t bound_count);

/* Finds or makes the series; label values must already be escaped (metrics_escape). Never NULL:
 * past 4096 series of a family the overflow series (labels `overflow="1"`) is returned. */
struct metric *metric_series(struct metric_family *family, const char *label_format, ...)
	__attribute__((format(printf, 2, 3)));

void metric_add(struct metric *metric, double amount);     /* counter, gauge */
void metric_set(struct metric *metric, double value);      /* gauge */
void metric_observe(struct metric *metric, double value);  /* histogram */
double metric_value(const struct metric *metric);          /* counter, gauge; histogram: its count */
/* Quantile 0..1 interpolated inside the histogram's bucket; NaN when empty. */
double metric_quantile(const struct metric *metric, double quantile);

void metrics_render(struct metrics *m, struct buf *out);
/* Escapes \ " and newline into @out (NUL-terminated, cut at @capacity). Returns @out. */
const char *metrics_escape(const char *text, char *out, size_t capacity);

/* Bucket bounds that vLLM uses (CONVENTIONS: buckets). */
extern const double metrics_bounds_ttft[22], metrics_bounds_itl[19], metrics_bounds_latency[21];
extern const double metrics_bounds_tokens[20]; /* 1-2-5 series */

#endif
