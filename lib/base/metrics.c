/*
 * The registry is a list of families that only grows; so is each family's list of series. Both
 * are read without a lock: a reader acquires the head or the next pointer that the writer
 * released. Writers (registration, a new series) take one mutex; the update of a value is a
 * compare-and-swap on the bits of a double, for which C11 has no atomic add.
 */
#include "base/metrics.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define SERIES_MAX 4096
#define LABEL_BYTES_MAX 1024
#define SLOT_COUNT 256 /* hash chains of a family's series */

enum family_type { FAMILY_COUNTER, FAMILY_GAUGE, FAMILY_HISTOGRAM };

struct metric {
	struct metric_family *family;
	_Atomic(struct metric *) next; /* in the order of making */
	_Atomic(struct metric *) chain;
	char *labels;
	_Atomic uint64_t value;     /* bits of a double; histogram: the sum */
	_Atomic uint64_t buckets[]; /* histogram: bound_count + 1, each its own share */
};

struct metric_family {
	struct metrics *metrics;
	_Atomic(struct metric_family *) next;
	const char *name, *help;
	enum family_type type;
	const double *bounds;
	size_t bound_count;
	_Atomic(struct metric *) first;
	_Atomic(struct metric *) slots[SLOT_COUNT];
	struct metric *last;     /* under the mutex */
	size_t series_count;     /* under the mutex */
	struct metric *overflow; /* made with the family, listed from its first use */
	bool overflow_listed;    /* under the mutex */
};

struct metrics {
	pthread_mutex_t mutex;
	_Atomic(struct metric_family *) first;
	struct metric_family *last; /* under the mutex */
};

const double metrics_bounds_ttft[22] = { .001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
					 1,    2.5,  5,	  7.5, 10,  20,	 40,  80, 160, 640, 2560 };
const double metrics_bounds_itl[19] = { .01, .025, .05, .075, .1, .15, .2, .3, .4, .5,
					.75, 1,	   2.5, 5,    7.5, 10, 20, 40, 80 };
const double metrics_bounds_latency[21] = { .3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,  15,  20,
					    30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680 };
const double metrics_bounds_tokens[20] = { 1,	 2,    5,    10,    20,	   50,	  100,	  200,	  500,	  1000,
					   2000, 5000, 1e4,  2e4,   5e4,   1e5,	  2e5,	  5e5,	  1e6,	  2e6 };

static double bits_to_double(uint64_t bits)
{
	double value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

static uint64_t double_to_bits(double value)
{
	uint64_t bits;
	memcpy(&bits, &value, sizeof bits);
	return bits;
}

static void atomic_add_double(_Atomic uint64_t *target, double amount)
{
	uint64_t old = atomic_load_explicit(target, memory_order_relaxed);
	while (!atomic_compare_exchange_weak_explicit(target, &old,
						      double_to_bits(bits_to_double(old) + amount),
						      memory_order_relaxed, memory_order_relaxed))
		;
}

struct metrics *metrics_new(void)
{
	struct metrics *m = calloc(1, sizeof *m);
	CHECK(m); /* at start, before anything depends on this process */
	pthread_mutex_init(&m->mutex, NULL);
	return m;
}

static void metric_free(struct metric *metric)
{
	free(metric->labels);
	free(metric);
}

static void family_free(struct metric_family *family)
{
	struct metric *metric = family->first;
	while (metric) {
		struct metric *next = metric->next;
		if (metric != family->overflow)
			metric_free(metric);
		metric = next;
	}
	metric_free(family->overflow);
	free(family);
}

void metrics_free(struct metrics *m)
{
	if (!m)
		return;
	struct metric_family *family = m->first;
	while (family) {
		struct metric_family *next = family->next;
		family_free(family);
		family = next;
	}
	pthread_mutex_destroy(&m->mutex);
	free(m);
}

static struct metric *metric_new(struct metric_family *family, const char *labels)
{
	size_t buckets = family->type == FAMILY_HISTOGRAM ? family->bound_count + 1 : 0;
	struct metric *metric = calloc(1, sizeof *metric + buckets * sizeof metric->buckets[0]);
	if (!metric)
		return NULL;
	metric->family = family;
	metric->labels = strdup(labels);
	if (!metric->labels) {
		free(metric);
		return NULL;
	}
	return metric;
}

static struct metric_family *family_register(struct metrics *m, const char *name, const char *help,
					     enum family_type type, const double bounds[],
					     size_t bound_count)
{
	struct metric_family *family = calloc(1, sizeof *family);
	CHECK(family); /* families are registered at start */
	*family = (struct metric_family){
		.metrics = m,
		.name = name,
		.help = help,
		.type = type,
		.bounds = bounds,
		.bound_count = bound_count,
	};
	for (size_t i = 1; i < bound_count; i++)
		CHECK(bounds[i - 1] < bounds[i]);
	family->overflow = metric_new(family, "overflow=\"1\"");
	CHECK(family->overflow);

	pthread_mutex_lock(&m->mutex);
	for (struct metric_family *other = m->first; other; other = other->next)
		CHECK(strcmp(other->name, name)); /* one family, one name */
	if (m->last)
		atomic_store_explicit(&m->last->next, family, memory_order_release);
	else
		atomic_store_explicit(&m->first, family, memory_order_release);
	m->last = family;
	pthread_mutex_unlock(&m->mutex);
	return family;
}

struct metric_family *metrics_counter(struct metrics *m, const char *name, const char *help)
{
	return family_register(m, name, help, FAMILY_COUNTER, NULL, 0);
}

struct metric_family *metrics_gauge(struct metrics *m, const char *name, const char *help)
{
	return family_register(m, name, help, FAMILY_GAUGE, NULL, 0);
}

struct metric_family *metrics_histogram(struct metrics *m, const char *name, const char *help,
					const double bounds[], size_t bound_count)
{
	return family_register(m, name, help, FAMILY_HISTOGRAM, bounds, bound_count);
}

static uint32_t label_slot(const char *labels)
{
	uint32_t hash = 2166136261u; /* FNV-1a */
	for (; *labels; labels++)
		hash = (hash ^ (unsigned char)*labels) * 16777619u;
	return (hash ^ hash >> 16) % SLOT_COUNT;
}

static struct metric *series_find(struct metric_family *family, const char *labels, uint32_t slot)
{
	struct metric *metric = atomic_load_explicit(&family->slots[slot], memory_order_acquire);
	while (metric && strcmp(metric->labels, labels))
		metric = atomic_load_explicit(&metric->chain, memory_order_acquire);
	return metric;
}

/* Under the mutex. Rendering starts to see the series here. */
static void series_list(struct metric_family *family, struct metric *metric)
{
	if (family->last)
		atomic_store_explicit(&family->last->next, metric, memory_order_release);
	else
		atomic_store_explicit(&family->first, metric, memory_order_release);
	family->last = metric;
}

static struct metric *series_make(struct metric_family *family, const char *labels, uint32_t slot)
{
	struct metric *metric = NULL;

	if (labels && family->series_count < SERIES_MAX)
		metric = metric_new(family, labels);
	if (metric) {
		family->series_count++;
		atomic_store_explicit(&metric->chain, family->slots[slot], memory_order_relaxed);
		series_list(family, metric);
		atomic_store_explicit(&family->slots[slot], metric, memory_order_release);
		return metric;
	}
	if (!family->overflow_listed) {
		family->overflow_listed = true;
		series_list(family, family->overflow);
	}
	return family->overflow;
}

struct metric *metric_series(struct metric_family *family, const char *label_format, ...)
{
	char room[LABEL_BYTES_MAX];
	va_list args;

	va_start(args, label_format);
	int bytes = vsnprintf(room, sizeof room, label_format, args);
	va_end(args);
	/* Cut labels would be invalid exposition, so that such a series overflows too. */
	const char *labels = bytes >= 0 && (size_t)bytes < sizeof room ? room : NULL;
	uint32_t slot = labels ? label_slot(labels) : 0;
	struct metric *metric = labels ? series_find(family, labels, slot) : NULL;
	if (metric)
		return metric;
	pthread_mutex_lock(&family->metrics->mutex);
	metric = labels ? series_find(family, labels, slot) : NULL;
	if (!metric)
		metric = series_make(family, labels, slot);
	pthread_mutex_unlock(&family->metrics->mutex);
	return metric;
}

void metric_add(struct metric *metric, double amount)
{
	CHECK(metric->family->type != FAMILY_HISTOGRAM);
	CHECK(metric->family->type != FAMILY_COUNTER || amount >= 0);
	atomic_add_double(&metric->value, amount);
}

void metric_set(struct metric *metric, double value)
{
	CHECK(metric->family->type == FAMILY_GAUGE);
	atomic_store_explicit(&metric->value, double_to_bits(value), memory_order_relaxed);
}

void metric_observe(struct metric *metric, double value)
{
	const struct metric_family *family = metric->family;
	size_t bucket = 0;

	CHECK(family->type == FAMILY_HISTOGRAM);
	if (isnan(value))
		return;
	while (bucket < family->bound_count && value > family->bounds[bucket])
		bucket++;
	atomic_fetch_add_explicit(&metric->buckets[bucket], 1, memory_order_relaxed);
	atomic_add_double(&metric->value, value);
}

static uint64_t histogram_count(const struct metric *metric)
{
	uint64_t count = 0;
	for (size_t i = 0; i <= metric->family->bound_count; i++)
		count += atomic_load_explicit(&metric->buckets[i], memory_order_relaxed);
	return count;
}

double metric_value(const struct metric *metric)
{
	if (metric->family->type == FAMILY_HISTOGRAM)
		return (double)histogram_count(metric);
	return bits_to_double(atomic_load_explicit(&metric->value, memory_order_relaxed));
}

double metric_quantile(const struct metric *metric, double quantile)
{
	const struct metric_family *family = metric->family;

	CHECK(family->type == FAMILY_HISTOGRAM);
	uint64_t count = histogram_count(metric), below = 0;
	if (!count || !family->bound_count)
		return NAN;
	double rank = quantile * (double)count;
	for (size_t i = 0; i < family->bound_count; i++) {
		uint64_t own = atomic_load_explicit(&metric->buckets[i], memory_order_relaxed);
		if (own && (double)(below + own) >= rank) {
			double low = i ? family->bounds[i - 1] : MIN(0.0, family->bounds[0]);
			double part = MAX(rank - (double)below, 0.0) / (double)own;
			return low + (family->bounds[i] - low) * part;
		}
		below += own;
	}
	/* Past the last bound nothing is known but that bound, as in Prometheus. */
	return family->bounds[family->bound_count - 1];
}

static void render_number(double value, struct buf *out)
{
	if (isnan(value))
		buf_append_text(out, "NaN");
	else if (isinf(value))
		buf_append_text(out, value > 0 ? "+Inf" : "-Inf");
	else if (value == trunc(value) && fabs(value) < 1e15)
		buf_printf(out, "%.0f", value);
	else
		buf_printf(out, "%.15g", value);
}

static void render_line(const struct metric *metric, const char *suffix, const char *more_label,
			double value, struct buf *out)
{
	buf_printf(out, "%s%s", metric->family->name, suffix);
	if (*metric->labels || *more_label)
		buf_printf(out, "{%s%s%s}", metric->labels, *metric->labels && *more_label ? "," : "",
			   more_label);
	buf_append_text(out, " ");
	render_number(value, out);
	buf_append_text(out, "\n");
}

static void render_histogram(const struct metric *metric, struct buf *out)
{
	const struct metric_family *family = metric->family;
	uint64_t count = 0;
	char label[64];

	for (size_t i = 0; i <= family->bound_count; i++) {
		count += atomic_load_explicit(&metric->buckets[i], memory_order_relaxed);
		if (i < family->bound_count)
			snprintf(label, sizeof label, "le=\"%.15g\"", family->bounds[i]);
		else
			snprintf(label, sizeof label, "le=\"+Inf\"");
		render_line(metric, "_bucket", label, (double)count, out);
	}
	render_line(metric, "_sum", "",
		    bits_to_double(atomic_load_explicit(&metric->value, memory_order_relaxed)), out);
	/* The same sum as the +Inf line, whatever was observed meanwhile. */
	render_line(metric, "_count", "", (double)count, out);
}

void metrics_render(struct metrics *m, struct buf *out)
{
	static const char *const types[] = { "counter", "gauge", "histogram" };

	for (struct metric_family *family = atomic_load_explicit(&m->first, memory_order_acquire); family;
	     family = atomic_load_explicit(&family->next, memory_order_acquire)) {
		struct metric *metric = atomic_load_explicit(&family->first, memory_order_acquire);
		const char *suffix = family->type == FAMILY_COUNTER ? "_total" : "";
		if (!metric)
			continue;
		buf_printf(out, "# HELP %s%s %s\n# TYPE %s%s %s\n", family->name, suffix, family->help,
			   family->name, suffix, types[family->type]);
		for (; metric; metric = atomic_load_explicit(&metric->next, memory_order_acquire)) {
			if (family->type == FAMILY_HISTOGRAM)
				render_histogram(metric, out);
			else
				render_line(metric, suffix, "", metric_value(metric), out);
		}
	}
}

const char *metrics_escape(const char *text, char *out, size_t capacity)
{
	size_t at = 0;

	CHECK(capacity);
	for (; *text; text++) {
		bool escaped = *text == '\\' || *text == '"' || *text == '\n';
		if (at + (escaped ? 2 : 1) >= capacity)
			break;
		if (escaped)
			out[at++] = '\\';
		out[at++] = *text == '\n' ? 'n' : *text;
	}
	out[at] = 0;
	return out;
}
