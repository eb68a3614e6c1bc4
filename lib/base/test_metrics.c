#include "base/test_util.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/metrics.h"

static char *render(struct metrics *m)
{
	struct buf out;
	buf_init(&out, 0);
	metrics_render(m, &out);
	return buf_steal(&out);
}

static void test_exposition(void **state)
{
	static const double bounds[] = { 0.5, 1, 2.5 };
	struct metrics *m = metrics_new();
	struct metric_family *counter = metrics_counter(m, "baton_things", "Things seen.");
	struct metric_family *gauge = metrics_gauge(m, "baton_level", "The level.");
	struct metric_family *times = metrics_histogram(m, "baton_seconds", "Times.", bounds, 3);
	metrics_gauge(m, "baton_unused", "Has no series, hence no lines.");
	char label[32];

	metric_add(metric_series(counter, "kind=\"%s\"", metrics_escape("a\"b\\\n", label, sizeof label)), 2);
	metric_add(metric_series(counter, "kind=\"%s\"", label), 1);
	metric_set(metric_series(gauge, "%s", ""), -0.25);
	metric_add(metric_series(gauge, "%s", ""), 1);
	struct metric *seconds = metric_series(times, "node=\"%d\"", 7);
	metric_observe(seconds, 0.5); /* on a bound: belongs below it */
	metric_observe(seconds, 2);
	metric_observe(seconds, 100);
	metric_observe(seconds, NAN);
	char *text = render(m);
	assert_string_equal(text, "# HELP baton_things_total Things seen.\n"
				  "# TYPE baton_things_total counter\n"
				  "baton_things_total{kind=\"a\\\"b\\\\\\n\"} 3\n"
				  "# HELP baton_level The level.\n"
				  "# TYPE baton_level gauge\n"
				  "baton_level 0.75\n"
				  "# HELP baton_seconds Times.\n"
				  "# TYPE baton_seconds histogram\n"
				  "baton_seconds_bucket{node=\"7\",le=\"0.5\"} 1\n"
				  "baton_seconds_bucket{node=\"7\",le=\"1\"} 1\n"
				  "baton_seconds_bucket{node=\"7\",le=\"2.5\"} 2\n"
				  "baton_seconds_bucket{node=\"7\",le=\"+Inf\"} 3\n"
				  "baton_seconds_sum{node=\"7\"} 102.5\n"
				  "baton_seconds_count{node=\"7\"} 3\n");
	free(text);
	assert_true(metric_value(seconds) == 3);
	assert_dies(metric_add(metric_series(counter, "kind=\"x\""), -1));
	assert_dies(metric_observe(metric_series(gauge, "%s", ""), 1));
	assert_dies(metrics_gauge(m, "baton_things", "A second family of that name."));
	metrics_free(m);
	metrics_free(NULL);
}

static void test_quantile(void **state)
{
	struct metrics *m = metrics_new();
	struct metric_family *family =
		metrics_histogram(m, "t", "T.", metrics_bounds_ttft, ARRAY_COUNT(metrics_bounds_ttft));
	struct metric *metric = metric_series(family, "a=\"1\"");

	assert_true(isnan(metric_quantile(metric, 0.5)));
	for (int i = 0; i < 100; i++)
		metric_observe(metric, 0.015); /* in .01 to .02 */
	assert_true(fabs(metric_quantile(metric, 0.5) - 0.015) < 1e-9);
	assert_true(fabs(metric_quantile(metric, 1) - 0.02) < 1e-9);
	for (int i = 0; i < 900; i++)
		metric_observe(metric, 1e9);
	assert_true(metric_quantile(metric, 0.99) == 2560);
	metrics_free(m);
}

static void test_overflow(void **state)
{
	struct metrics *m = metrics_new();
	struct metric_family *family = metrics_counter(m, "t", "T.");
	struct metric *first = metric_series(family, "a=\"0\""), *overflow = NULL;
	char huge[2000];

	for (int i = 0; i < 4096; i++)
		assert_true(metric_series(family, "a=\"%d\"", i) != overflow);
	overflow = metric_series(family, "a=\"4096\"");
	assert_ptr_equal(metric_series(family, "a=\"4097\""), overflow);
	assert_ptr_equal(metric_series(family, "a=\"0\""), first);
	memset(huge, 'x', sizeof huge - 1);
	huge[sizeof huge - 1] = 0;
	assert_ptr_equal(metric_series(family, "a=\"%s\"", huge), overflow);
	metric_add(overflow, 5);
	char *text = render(m);
	assert_non_null(strstr(text, "t_total{overflow=\"1\"} 5\n"));
	free(text);
	metrics_free(m);
}

static void test_escape_cut(void **state)
{
	char room[4];

	assert_string_equal(metrics_escape("abcdef", room, sizeof room), "abc");
	/* An escape is never cut in half. */
	assert_string_equal(metrics_escape("ab\"c", room, sizeof room), "ab");
}

struct worker {
	struct metrics *m;
	struct metric_family *counter, *histogram;
};

static void *work(void *context)
{
	struct worker *worker = context;
	for (int i = 0; i < 5000; i++) {
		metric_add(metric_series(worker->counter, "a=\"%d\"", i % 50), 1);
		metric_observe(metric_series(worker->histogram, "a=\"%d\"", i % 3), i);
		if (i % 500 == 0)
			free(render(worker->m));
	}
	return NULL;
}

static void test_threads(void **state)
{
	struct worker worker = { .m = metrics_new() };
	pthread_t threads[4];
	double sum = 0;

	worker.counter = metrics_counter(worker.m, "c", "C.");
	worker.histogram = metrics_histogram(worker.m, "h", "H.", metrics_bounds_tokens, 20);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, work, &worker), 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	for (int i = 0; i < 50; i++)
		sum += metric_value(metric_series(worker.counter, "a=\"%d\"", i));
	assert_true(sum == 20000);
	for (int i = 0; i < 3; i++)
		sum += metric_value(metric_series(worker.histogram, "a=\"%d\"", i));
	assert_true(sum == 40000);
	metrics_free(worker.m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_exposition), cmocka_unit_test(test_quantile),
		cmocka_unit_test(test_overflow),   cmocka_unit_test(test_escape_cut),
		cmocka_unit_test(test_threads),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
