#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "conductor/config.h"
#include "conductor/report.h"

static void test_sum(void **state)
{
	static const char text[] = "# HELP a help\na{x=\"p q\"} 2\na{x=\"b\"} 3.5\nab 7\na_total 9\na 1\n";
	assert_true(report_sum(text, "a") == 6.5);
	assert_true(report_sum(text, "ab") == 7);
	assert_true(report_sum(text, "b") == 0);
	assert_true(report_sum("", "b") == 0);
}

static void test_lines(void **state)
{
	struct metrics *m = metrics_new();
	struct metric *prompt = metric_series(metrics_counter(m, "vllm:prompt_tokens", "h"), "a=\"b\"");
	struct metric *cached = metric_series(metrics_counter(m, "baton_cached_prompt_tokens", "h"),
					      "a=\"b\"");
	struct metric *running = metric_series(metrics_gauge(m, "vllm:num_requests_running", "h"),
					       "a=\"b\"");
	struct report report = { 0 };
	struct buf out;
	uint64_t now_ns = NS_PER_S;
	buf_init(&out, 0);
	report_line(&report, m, now_ns, &out);
	report_line(&report, m, now_ns += 10 * NS_PER_S, &out);
	assert_int_equal(out.bytes, 0); /* idle from the start: silent */
	metric_add(prompt, 250);
	metric_add(cached, 50);
	metric_set(running, 3);
	report_line(&report, m, now_ns += 10 * NS_PER_S, &out);
	assert_string_equal(out.data, "Avg prompt throughput: 25.0 tokens/s, Avg generation throughput: "
				      "0.0 tokens/s, Running: 3 reqs, Waiting: 0 reqs, GPU KV cache "
				      "usage: 0.0%, Prefix cache hit rate: 20.0%");
	buf_clear(&out);
	metric_set(running, 0);
	report_line(&report, m, now_ns += 10 * NS_PER_S, &out);
	assert_non_null(strstr(out.data, "Avg prompt throughput: 0.0"));
	buf_clear(&out);
	report_line(&report, m, now_ns += 10 * NS_PER_S, &out);
	assert_int_equal(out.bytes, 0);
	buf_fini(&out);
	metrics_free(m);
}

static struct config sound(void)
{
	return (struct config){ .models = "m.gguf", .block_tokens = 64, .lease_ns = 3 * NS_PER_S,
				.heartbeat_ns = NS_PER_S, .policy = "least-loaded",
				.control_host = "127.0.0.1", .admin_host = "localhost",
				.cluster_key_file = "", .api_keys = "", .api_keys_file = "", .redis = "" };
}

static void test_config(void **state)
{
	struct config config = sound();
	assert_int_equal(config_check(&config), 0);
	config.models = "";
	assert_int_not_equal(config_check(&config), 0);
	config = sound();
	config.control_host = "0.0.0.0"; /* open to the network, without a cluster key */
	assert_int_not_equal(config_check(&config), 0);
	config.cluster_key_file = "key";
	assert_int_equal(config_check(&config), 0);
	config = sound();
	config.admin_host = "";
	assert_int_not_equal(config_check(&config), 0);
	config.api_keys = "sk";
	assert_int_equal(config_check(&config), 0);
	config.api_keys = "";
	config.api_keys_file = "keys";
	assert_int_equal(config_check(&config), 0);
	assert_false(config_admin_is_local(&config));
	config.redis = "h:1";
	assert_int_not_equal(config_check(&config), 0);
	config = sound();
	config.control_host = "::";
	assert_int_not_equal(config_check(&config), 0);
	config.allow_open = true;
	assert_int_equal(config_check(&config), 0);
	config = sound();
	config.block_tokens = 40;
	assert_int_not_equal(config_check(&config), 0);
	config = sound();
	config.lease_ns = NS_PER_S;
	assert_int_not_equal(config_check(&config), 0);
	config = sound();
	config.policy = "best";
	assert_int_not_equal(config_check(&config), 0);
	struct config_list list;
	assert_int_equal(config_list_init(&list, "a\nb c\nd"), 0);
	assert_int_equal(list.count, 3);
	assert_string_equal(list.items[1], "b c");
	config_list_fini(&list);
	assert_int_equal(config_list_init(&list, ""), 0);
	assert_int_equal(list.count, 0);
	config_list_fini(&list);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sum),
		cmocka_unit_test(test_lines),
		cmocka_unit_test(test_config),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
