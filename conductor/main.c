/*
 * baton-conductor. The main thread is the core thread: its loop runs the shell. SIGTERM stops in
 * phases: no new requests; what is open may finish, up to --shutdown-timeout; what is still open
 * ends with an error; then everything closes, and the exit status says whether anything leaked.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#ifdef HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "conductor/models.h"
#include "conductor/report.h"

#define PHASE_TICK_MS 10
#define ABORT_NS (2 * NS_PER_S)
#define REPORT_MS 10000
#define KEYS_PERIOD_NS (500 * NS_PER_MS)
#define REDIS_TIMEOUT_NS (400 * NS_PER_MS)

enum phase { SERVING, DRAINING, ABORTING, CLOSING };

struct conductor_main {
	struct config config;
	struct config_list api_keys;
	struct key_source *key_source;
	struct models models;
	struct wire_key key;
	struct metrics *metrics;
	struct bridge bridge;
	struct shell *shell;
	struct fronts_config fronts_config;
	struct fronts *fronts;
	uv_loop_t loop;
	uv_signal_t terminate, interrupt;
	uv_timer_t phase_timer, watchdog, report_timer;
	struct report report;
	enum phase phase;
	uint64_t phase_ns;
	uint16_t port, admin_port, control_port;
	bool leaked;
};

static void notify(const char *text)
{
#ifdef HAVE_SYSTEMD
	(void)sd_notify(0, text);
#endif
}

/* ---- the end ---- */

static void on_shell_closed(void *context)
{
	struct conductor_main *m = context;
	m->shell = NULL;
	uv_close((uv_handle_t *)&m->terminate, NULL);
	uv_close((uv_handle_t *)&m->interrupt, NULL);
	uv_close((uv_handle_t *)&m->phase_timer, NULL);
	uv_close((uv_handle_t *)&m->watchdog, NULL);
	uv_close((uv_handle_t *)&m->report_timer, NULL);
}

static void enter(struct conductor_main *m, enum phase phase)
{
	m->phase = phase;
	m->phase_ns = clock_now_ns();
	if (phase == DRAINING) {
		atomic_store(&m->bridge.draining, true);
		notify("STOPPING=1");
		fronts_drain(m->fronts);
	} else if (phase == ABORTING) {
		fronts_abort(m->fronts);
	} else if (phase == CLOSING) {
		uint32_t open = atomic_load(&m->bridge.requests_open);
		if (open) {
			log_error("%u requests are still open", open);
			m->leaked = true;
		}
		if (shell_close(m->shell, on_shell_closed, m))
			m->leaked = true;
	}
}

static void on_phase_timer(uv_timer_t *timer)
{
	struct conductor_main *m = timer->data;
	uint64_t waited_ns = clock_now_ns() - m->phase_ns;
	uint32_t answers = fronts_open(m->fronts), requests = atomic_load(&m->bridge.requests_open);
	uint32_t open = MAX(answers, requests);
	if (m->phase == DRAINING && (!open || waited_ns > m->config.shutdown_timeout_ns)) {
		if (open)
			log_warning("%u requests did not finish within the shutdown timeout", open);
		enter(m, ABORTING);
	} else if (m->phase == ABORTING && (!open || waited_ns > ABORT_NS)) {
		enter(m, CLOSING);
	}
}

static void on_signal(uv_signal_t *handle, int number)
{
	struct conductor_main *m = handle->data;
	if (m->phase == SERVING) {
		log_info("%s: stopping", number == SIGTERM ? "SIGTERM" : "SIGINT");
		enter(m, DRAINING);
		uv_timer_start(&m->phase_timer, on_phase_timer, PHASE_TICK_MS, PHASE_TICK_MS);
	} else if (m->phase == DRAINING) {
		enter(m, ABORTING); /* a second signal waits for nothing */
	}
}

/* ---- the beginning ---- */

static void on_watchdog(uv_timer_t *timer)
{
	notify("WATCHDOG=1");
}

static void on_report(uv_timer_t *timer)
{
	struct conductor_main *m = timer->data;
	struct buf line;
	buf_init(&line, 0);
	report_line(&m->report, m->metrics, clock_now_ns(), &line);
	if (line.bytes)
		log_info("%s", line.data);
	buf_fini(&line);
}

static void watch(struct conductor_main *m)
{
	uv_timer_init(&m->loop, &m->watchdog);
	uv_timer_init(&m->loop, &m->report_timer);
	m->report_timer.data = m;
	uv_timer_start(&m->report_timer, on_report, 0, REPORT_MS);
#ifdef HAVE_SYSTEMD
	uint64_t period_us = 0;
	if (sd_watchdog_enabled(0, &period_us) > 0)
		uv_timer_start(&m->watchdog, on_watchdog, period_us / 2000, period_us / 2000);
#else
	(void)on_watchdog;
#endif
}

/* A client is a descriptor: take as many as the system grants. */
static void raise_descriptors(void)
{
	struct rlimit limit;
	if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static int load_key(struct conductor_main *m)
{
	if (!*m->config.cluster_key_file)
		return 0;
	int result = wire_key_load(m->config.cluster_key_file, &m->key);
	if (result)
		log_error("cluster key %s: %s", m->config.cluster_key_file, err_text(result));
	return result;
}

static int open_keys(struct conductor_main *m)
{
	const struct config *config = &m->config;
	const char *place = *config->redis ? config->redis : config->api_keys_file;
	struct store *store;
	if (!*place)
		return 0;
	int result = *config->redis ? store_redis_open(place, REDIS_TIMEOUT_NS, &store) :
				      store_file_open(place, &store);
	if (!result)
		result = key_source_open(store, place, KEYS_PERIOD_NS, m->metrics,
					 (uint32_t)config->metrics_tenants, &m->key_source);
	if (result)
		log_error("API keys %s: %s", place,
			  result == -EINVAL ? "must read HOST:PORT or HOST:PORT/PREFIX" :
					      err_text(result));
	return result;
}

static int open_shell(struct conductor_main *m)
{
	const struct config *config = &m->config;
	struct shell_config shell_config = {
		.node = config->node,
		.control_host = config->control_host,
		.control_port = (uint16_t)config->control_port,
		.cluster_key = m->key,
		.models = m->models.shell,
		.model_count = m->models.count,
		.policy = config->policy,
		.policy_seed = config->policy_seed,
		/* One HTTP request may bring many prompts past the gate. */
		.requests_max = (uint32_t)config->max_num_queued + 1024,
		.heartbeat_ns = config->heartbeat_ns,
		.lease_ns = config->lease_ns,
		.resume_wait_ns = config->resume_wait_ns,
		.predicted_tokens = (uint32_t)config->predicted_tokens,
	};
	int result = shell_open(&m->loop, &shell_config, &m->bridge, &m->shell, &m->control_port);
	if (result)
		log_error("cannot listen on %s port %llu (control): %s", config->control_host,
			  (unsigned long long)config->control_port, err_text(result));
	return result;
}

static int open_fronts(struct conductor_main *m)
{
	const struct config *config = &m->config;
	m->fronts_config = (struct fronts_config){
		.host = config->host,
		.admin_host = config->admin_host,
		.port = (uint16_t)config->port,
		.admin_port = (uint16_t)config->admin_port,
		.thread_count = (uint32_t)config->front_threads,
		.api_keys = m->api_keys.items,
		.api_key_count = m->api_keys.count,
		.key_source = m->key_source,
		.admin_keyed = !config_admin_is_local(config),
		.requests_max = (uint32_t)config->max_num_queued,
		.limits = {
			.body_bytes_max = config->max_body_bytes,
			.connections_max = (uint32_t)config->max_connections,
			.header_timeout_ns = config->header_timeout_ns,
			.body_timeout_ns = config->body_timeout_ns,
			.idle_timeout_ns = config->idle_timeout_ns,
			.send_timeout_ns = config->send_timeout_ns,
		},
		.models = m->models.front,
		.model_count = m->models.count,
	};
	return fronts_start(&m->fronts_config, &m->bridge, &m->fronts, &m->port, &m->admin_port);
}

/* An IPv6 address stands in brackets before its port. */
static void print_place(const char *name, const char *host, uint16_t port)
{
	bool bare = strchr(host, ':') && *host != '[';
	printf(" %s=%s%s%s:%u", name, bare ? "[" : "", host, bare ? "]" : "", port);
}

static int serve(struct conductor_main *m)
{
	uv_signal_init(&m->loop, &m->terminate);
	uv_signal_init(&m->loop, &m->interrupt);
	uv_timer_init(&m->loop, &m->phase_timer);
	m->terminate.data = m->interrupt.data = m->phase_timer.data = m;
	watch(m);
	int result = open_shell(m);
	if (result)
		return result;
	result = open_fronts(m);
	if (result) {
		enter(m, CLOSING);
		uv_run(&m->loop, UV_RUN_DEFAULT);
		return result;
	}
	uv_signal_start(&m->terminate, on_signal, SIGTERM);
	uv_signal_start(&m->interrupt, on_signal, SIGINT);
	printf("ready");
	print_place("client", m->config.host, m->port);
	print_place("admin", m->config.admin_host, m->admin_port);
	print_place("control", m->config.control_host, m->control_port);
	printf("\n");
	fflush(stdout);
	notify("READY=1");
	uv_run(&m->loop, UV_RUN_DEFAULT);
	if (fronts_stop(m->fronts))
		m->leaked = true;
	return 0;
}

static int run(struct conductor_main *m)
{
	int result = load_key(m);
	if (!result)
		result = models_open(&m->models, &m->config);
	if (!result)
		result = config_list_init(&m->api_keys, m->config.api_keys);
	if (!result && bridge_init(&m->bridge, (uint32_t)m->config.front_threads, m->metrics))
		result = -ENOMEM;
	if (!result) {
		result = open_keys(m);
		if (!result)
			result = serve(m);
		key_source_close(m->key_source);
		bridge_fini(&m->bridge);
	}
	models_close(&m->models);
	config_list_fini(&m->api_keys);
	return result;
}

int main(int argc, char **argv)
{
	static struct conductor_main m;
	int result = config_load(&m.config, argc, argv);
	if (result)
		return result > 0 ? 0 : 2;
	if (config_check(&m.config))
		return 2;
	log_init(m.config.node, (enum log_level)m.config.log_level);
	signal(SIGPIPE, SIG_IGN);
	raise_descriptors();
	m.metrics = metrics_new();
	if (!m.metrics || uv_loop_init(&m.loop)) {
		log_error("out of memory");
		return 1;
	}
	result = run(&m);
	metrics_free(m.metrics);
	(void)uv_loop_close(&m.loop);
	if (!result && !m.leaked)
		log_info("stopped; nothing leaked");
	config_free(&m.config);
	return result || m.leaked;
}
