/*
 * baton up: a local cluster of separate processes, for a laptop, for tests and for a first look.
 *
 * It is a convenience and nothing more: it runs the daemons with the flags anybody could type, and
 * the daemons know nothing of it. Start: the conductor, which says where its control listener
 * is, then all nodes at once, then /readyz is asked until it says 200. Stop: the conductor first, so
 * that it ends what is open and the nodes hear the releases, then the nodes, each of which checks its
 * own books and exits 1 when something leaked.
 */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/rand.h"
#include "cli/client.h"
#include "cli/up_child.h"
#include "cli/up_config.h"

/* A daemon that dies this often before it was ever ready has a reason that will not pass. */
#define STARTS_FAILED_MAX 3
#define READY_POLL_MS 50

enum up_phase { UP_CONDUCTOR, UP_NODES, UP_SERVING, UP_STOP_CONDUCTOR, UP_STOP_NODES, UP_CLOSED };

struct up {
	uv_loop_t loop;
	struct up_config config;
	enum up_phase phase;
	char state_dir[PATH_MAX - 128], key_path[PATH_MAX], daemon_paths[3][PATH_MAX];
	bool temporary; /* the state folder is ours to remove */
	struct child children[1 + UP_NODES_MAX]; /* the conductor first */
	size_t child_count;
	uv_signal_t signals[3];
	uv_timer_t ready_timer;
	uv_work_t ready_work;
	bool ready_asking;
	struct client_url client; /* the thread pool's while ready_asking */
	int ready_status;
	bool failed;
};

static const char *const daemons[] = { "conductor", "prefill-node", "decode-node" };

static void up_stop(struct up *up);

/* "prefill-node" -> its executable: beside this one, as installed, or in its folder of the build. */
static int find_daemon(struct up *up, const char *daemon, char ret_path[PATH_MAX])
{
	char self[PATH_MAX] = "";

	if (up->config.daemon_dir[0]) {
		snprintf(ret_path, PATH_MAX, "%.3900s/baton-%s", up->config.daemon_dir, daemon);
		return access(ret_path, X_OK) < 0 ? -errno : 0;
	}
	ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);
	char *slash = bytes > 0 ? strrchr(self, '/') : NULL;
	if (!slash)
		return -ENOENT;
	*slash = 0;
	snprintf(ret_path, PATH_MAX, "%.3900s/baton-%s", self, daemon);
	if (access(ret_path, X_OK) == 0)
		return 0;
	snprintf(ret_path, PATH_MAX, "%.3900s/../%s/baton-%s", self, daemon, daemon);
	return access(ret_path, X_OK) < 0 ? -errno : 0;
}

static const char *daemon_path(const struct up *up, const char *daemon)
{
	for (size_t i = 0; i < ARRAY_COUNT(daemons); i++)
		if (!strcmp(daemons[i], daemon))
			return up->daemon_paths[i];
	CHECK(false); /* add_child() names one of the three */
	return NULL;
}

static void add_sets(const struct up *up, const struct child *child, struct words *words)
{
	const char *set = up->config.sets;

	while (*set) {
		size_t bytes = strcspn(set, "\n"), dot = strcspn(set, ".");
		if (up_set_applies(set, dot, child->daemon, child->name))
			words_add(words, "--%.*s", (int)(bytes - dot - 1), set + dot + 1);
		set += bytes + (set[bytes] == '\n');
	}
}

/* The port that a conductor had before it died, so that clients and nodes find it again. */
static int port_again(const struct child *child, const char *place, uint64_t first)
{
	const char *colon = strrchr(child_place(child, place), ':');
	return colon ? atoi(colon + 1) : (int)first;
}

static void conductor_arguments(struct child *child, struct words *words)
{
	const struct up *up = child->context;

	words_add(words, "%s", daemon_path(up, child->daemon));
	words_add(words, "--model=%s", up->config.model);
	words_add(words, "--node=%s", child->name);
	words_add(words, "--host=%s", up->config.host);
	words_add(words, "--port=%d", port_again(child, "client", up->config.port));
	words_add(words, "--admin-host=127.0.0.1");
	words_add(words, "--admin-port=%d", port_again(child, "admin", up->config.admin_port));
	words_add(words, "--control-host=127.0.0.1");
	words_add(words, "--control-port=%d", port_again(child, "control", 0));
	words_add(words, "--cluster-key-file=%s", up->key_path);
	add_sets(up, child, words);
}

static void node_arguments(struct child *child, struct words *words)
{
	const struct up *up = child->context;

	words_add(words, "%s", daemon_path(up, child->daemon));
	words_add(words, "--model=%s", up->config.model);
	words_add(words, "--role=%s", child->role);
	words_add(words, "--node=%s", child->name);
	words_add(words, "--conductor=%s", child_place(&up->children[0], "control"));
	words_add(words, "--cluster-key-file=%s", up->key_path);
	words_add(words, "--engine=%s", up_engines[up->config.engine]);
	words_add(words, "--transport=%s", up_transports[up->config.transport]);
	words_add(words, "--admin-port=0");
	words_add(words, "--peer-port=0");
	words_add(words, "--transfer-port=0");
	words_add(words, "--threads=%d", (int)up->config.threads);
	words_add(words, "--state-dir=%s/%s", up->state_dir, child->name);
	add_sets(up, child, words);
}

/* cluster.json in the state folder: what runs where, for people and tests. Replaced whole. */
static void write_cluster_file(const struct up *up)
{
	char path[PATH_MAX], fresh[PATH_MAX];

	json_t *all = json_array();
	for (size_t i = 0; i < up->child_count; i++) {
		const struct child *child = &up->children[i];
		json_t *one = json_pack("{s:s, s:s, s:s*, s:i, s:i, s:b}", "name", child->name, "daemon", child->daemon,
					"role", child->role, "pid", (int)child->pid, "starts", (int)child->starts,
					"ready", child->state == CHILD_READY);
		for (int j = 0; one && j < child->place_count; j++)
			json_object_set_new(one, child->places[j].name, json_string(child->places[j].address));
		json_array_append_new(all, one);
	}
	snprintf(path, sizeof path, "%s/cluster.json", up->state_dir);
	snprintf(fresh, sizeof fresh, "%s/cluster.json.new", up->state_dir);
	if (json_dump_file(all, fresh, JSON_INDENT(1)) < 0 || rename(fresh, path) < 0)
		fprintf(stderr, "baton up: cannot write %s\n", path);
	json_decref(all);
}

/* The last lines of a daemon's log, which say why it died or what it leaked. */
static void show_last_words(const struct child *child)
{
	char tail[4097];

	int fd = child->log_path[0] ? open(child->log_path, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0)
		return;
	off_t end = lseek(fd, 0, SEEK_END), start = MAX(end - 4096, (off_t)0);
	ssize_t bytes = pread(fd, tail, sizeof tail - 1, start);
	close(fd);
	if (bytes <= 0)
		return;
	tail[bytes] = 0;
	char *line = tail + bytes - (tail[bytes - 1] == '\n');
	*line = 0;
	for (int lines = 0; line > tail; line--)
		if (line[-1] == '\n' && ++lines == 8)
			break;
	fprintf(stderr, "    %s\n    (%s)\n", line, child->log_path);
}

static void describe_end(int status, char *out, size_t capacity)
{
	if (WIFSIGNALED(status))
		snprintf(out, capacity, "was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
	else
		snprintf(out, capacity, "exited with status %d", WEXITSTATUS(status));
}

static void give_up(struct up *up)
{
	up->failed = true;
	up_stop(up);
}

/* In the thread pool. */
static void ready_ask(uv_work_t *work)
{
	struct up *up = work->data;
	const struct client_call call = { .method = "GET", .path = "/readyz", .timeout_ns = 2 * NS_PER_S };
	struct buf body;

	buf_init(&body, 65536);
	up->ready_status = 0;
	(void)client_do(&up->client, &call, &up->ready_status, &body);
	buf_fini(&body);
}

static void ready_answered(uv_work_t *work, int status)
{
	struct up *up = work->data;

	up->ready_asking = false;
	if (up->phase != UP_NODES || up->ready_status != 200)
		return;
	up->phase = UP_SERVING;
	uv_timer_stop(&up->ready_timer);
	printf("ready http://%s\n", child_place(&up->children[0], "client"));
	fflush(stdout);
}

static void on_ready_timer(uv_timer_t *timer)
{
	struct up *up = timer->data;

	if (up->ready_asking || up->phase != UP_NODES)
		return;
	for (size_t i = 0; i < up->child_count; i++)
		if (up->children[i].state != CHILD_READY)
			return;
	if (client_url_parse(child_place(&up->children[0], "client"), &up->client))
		return;
	up->ready_work.data = up;
	up->ready_asking = uv_queue_work(&up->loop, &up->ready_work, ready_ask, ready_answered) == 0;
}

static void on_child_ready(struct child *child)
{
	struct up *up = child->context;

	write_cluster_file(up);
	if (child->starts > 1)
		fprintf(stderr, "baton up: %s is back\n", child->name);
	if (up->phase != UP_CONDUCTOR)
		return;
	struct client_url url;
	if (client_url_parse(child_place(child, "control"), &url) || client_url_parse(child_place(child, "client"), &url)) {
		fprintf(stderr, "baton up: the conductor's ready line names no client and control address\n");
		give_up(up);
		return;
	}
	up->phase = UP_NODES;
	for (size_t i = 1; i < up->child_count; i++) {
		int error = child_start(&up->children[i]);
		if (!error)
			continue;
		fprintf(stderr, "baton up: %s cannot be started: %s\n", up->children[i].name, strerror(-error));
		give_up(up);
		return;
	}
	write_cluster_file(up);
	uv_timer_start(&up->ready_timer, on_ready_timer, 0, READY_POLL_MS);
}

static void close_handles(struct up *up)
{
	up->phase = UP_CLOSED;
	for (size_t i = 0; i < up->child_count; i++)
		child_close(&up->children[i]);
	for (size_t i = 0; i < ARRAY_COUNT(up->signals); i++)
		uv_close((uv_handle_t *)&up->signals[i], NULL);
	uv_close((uv_handle_t *)&up->ready_timer, NULL);
}

static void stopped_more(struct up *up)
{
	if (up->phase == UP_STOP_CONDUCTOR) {
		if (up->children[0].pid)
			return;
		up->phase = UP_STOP_NODES;
		for (size_t i = 1; i < up->child_count; i++)
			child_stop(&up->children[i]);
	}
	for (size_t i = 0; i < up->child_count; i++)
		if (up->children[i].pid)
			return;
	if (up->phase == UP_STOP_NODES)
		close_handles(up);
}

static void on_child_exit(struct child *child, int status, bool unasked)
{
	struct up *up = child->context;
	/* A SIGKILL from outside is somebody's experiment; any other end is a fault of the daemon. */
	bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && !child->timed_out;
	bool fine = !status || (unasked && killed);
	char end[96];

	describe_end(status, end, sizeof end);
	write_cluster_file(up);
	if (!fine)
		up->failed = true;
	if (!fine || unasked) {
		fprintf(stderr, "baton up: %s %s%s\n", child->name, end,
			!unasked && WIFEXITED(status) && WEXITSTATUS(status) == 1 ? ": something leaked" :
			unasked						  ? "; it is started again" :
									    "");
		if (!fine)
			show_last_words(child);
	}
	if (unasked && up->phase < UP_SERVING && child->failures >= STARTS_FAILED_MAX) {
		fprintf(stderr, "baton up: %s does not start; giving up\n", child->name);
		give_up(up);
	}
}

static void up_stop(struct up *up)
{
	if (up->phase >= UP_STOP_CONDUCTOR)
		return;
	up->phase = UP_STOP_CONDUCTOR;
	uv_timer_stop(&up->ready_timer);
	/* Nothing may be started again from here on. */
	for (size_t i = 0; i < up->child_count; i++)
		if (!up->children[i].pid)
			child_stop(&up->children[i]);
	child_stop(&up->children[0]);
	stopped_more(up);
}

static void on_signal(uv_signal_t *handle, int number)
{
	struct up *up = handle->data;

	if (number == SIGCHLD) {
		for (size_t i = 0; i < up->child_count; i++)
			(void)child_reap(&up->children[i]);
		if (up->phase >= UP_STOP_CONDUCTOR && up->phase != UP_CLOSED)
			stopped_more(up);
		return;
	}
	if (up->phase >= UP_STOP_CONDUCTOR) {
		fprintf(stderr, "baton up: a second signal: everything is killed\n");
		up->failed = true;
		for (size_t i = 0; i < up->child_count; i++)
			child_kill(&up->children[i]);
		return;
	}
	up_stop(up);
}

static int make_state_dir(struct up *up)
{
	if (up->config.state_dir[0]) {
		if (mkdir(up->config.state_dir, 0700) < 0 && errno != EEXIST)
			return -errno;
		char *real = realpath(up->config.state_dir, NULL);
		if (!real)
			return -errno;
		bool fits = strlen(real) < sizeof up->state_dir;
		if (fits)
			strcpy(up->state_dir, real);
		free(real);
		return fits ? 0 : -ENAMETOOLONG;
	}
	/* Short, for the daemons put sockets there and a socket's path has 107 bytes. */
	strcpy(up->state_dir, "/tmp/baton-XXXXXX");
	up->temporary = true;
	return mkdtemp(up->state_dir) ? 0 : -errno;
}

static int make_key(struct up *up)
{
	int error = 0;

	snprintf(up->key_path, sizeof up->key_path, "%s/cluster.key", up->state_dir);
	int fd = open(up->key_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return errno == EEXIST ? 0 : -errno; /* a former cluster's key serves as well */
	for (int i = 0; i < 4 && !error; i++)
		if (dprintf(fd, "%016llx", (unsigned long long)rand_system()) != 16)
			error = -EIO;
	if (!error && dprintf(fd, "\n") != 1)
		error = -EIO;
	close(fd);
	return error;
}

static int add_child(struct up *up, const char *name, const char *daemon, const char *role)
{
	static const struct child_callbacks conductor = { conductor_arguments, on_child_ready, on_child_exit };
	static const struct child_callbacks node = { node_arguments, on_child_ready, on_child_exit };
	struct child *child = &up->children[up->child_count++];
	char folder[PATH_MAX];

	child_init(child, &up->loop, role ? &node : &conductor, up);
	snprintf(child->name, sizeof child->name, "%s", name);
	child->daemon = daemon;
	child->role = role;
	child->start_timeout_ns = up->config.start_timeout_ns;
	child->stop_timeout_ns = up->config.stop_timeout_ns;
	if (!up->config.verbose)
		snprintf(child->log_path, sizeof child->log_path, "%s/%s.log", up->state_dir, name);
	snprintf(folder, sizeof folder, "%s/%s", up->state_dir, name);
	return role && mkdir(folder, 0700) < 0 && errno != EEXIST ? -errno : 0;
}

static int add_nodes(struct up *up, const char *role, const char *daemon, uint64_t count)
{
	char name[32];

	for (uint64_t i = 0; i < count; i++) {
		snprintf(name, sizeof name, "%s-%d", role, (int)i);
		int error = add_child(up, name, daemon, role);
		if (error)
			return error;
	}
	return 0;
}

static void open_handles(struct up *up)
{
	static const int numbers[] = { SIGCHLD, SIGINT, SIGTERM };

	CHECK(uv_loop_init(&up->loop) == 0);
	for (size_t i = 0; i < ARRAY_COUNT(up->signals); i++) {
		CHECK(uv_signal_init(&up->loop, &up->signals[i]) == 0);
		up->signals[i].data = up;
		CHECK(uv_signal_start(&up->signals[i], on_signal, numbers[i]) == 0);
	}
	CHECK(uv_timer_init(&up->loop, &up->ready_timer) == 0);
	up->ready_timer.data = up;
}

static int prepare(struct up *up)
{
	int error = make_state_dir(up);
	if (!error)
		error = make_key(up);
	if (error) {
		fprintf(stderr, "baton up: state folder %s: %s\n",
			up->state_dir[0] ? up->state_dir : up->config.state_dir, strerror(-error));
		return error;
	}
	for (size_t i = 0; i < ARRAY_COUNT(daemons); i++) {
		error = find_daemon(up, daemons[i], up->daemon_paths[i]);
		if (error) {
			fprintf(stderr, "baton up: %s: %s\n", up->daemon_paths[i], strerror(-error));
			return error;
		}
	}
	error = add_child(up, "conductor", "conductor", NULL);
	if (!error)
		error = add_nodes(up, "prefill", "prefill-node", up->config.prefill);
	if (!error)
		error = add_nodes(up, "decode", "decode-node", up->config.decode);
	if (!error)
		error = add_nodes(up, "both", "prefill-node", up->config.both);
	if (error)
		fprintf(stderr, "baton up: state folder %s: %s\n", up->state_dir, strerror(-error));
	return error;
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *at)
{
	return remove(path);
}

/* Only a folder of our own making, and only when nobody needs its logs. */
static void remove_state(const struct up *up)
{
	if (!up->temporary)
		return;
	if (up->failed)
		fprintf(stderr, "baton up: logs are kept in %s\n", up->state_dir);
	else if (nftw(up->state_dir, remove_one, 16, FTW_DEPTH | FTW_PHYS) < 0)
		fprintf(stderr, "baton up: cannot remove %s\n", up->state_dir);
}

int cli_up(int argc, char **argv)
{
	struct up *up = calloc(1, sizeof *up);

	if (!up)
		return 1;
	int status = up_config_load(&up->config, argc, argv);
	if (status) {
		free(up);
		return status < 0 ? 2 : 0;
	}
	signal(SIGPIPE, SIG_IGN);
	open_handles(up);
	bool prepared = prepare(up) == 0;
	if (prepared) {
		int error = child_start(&up->children[0]);
		if (error)
			fprintf(stderr, "baton up: the conductor cannot be started: %s\n", strerror(-error));
		prepared = !error;
	}
	if (!prepared)
		close_handles(up);
	uv_run(&up->loop, UV_RUN_DEFAULT);
	CHECK(uv_loop_close(&up->loop) == 0);
	remove_state(up);
	int result = up->failed || !prepared;
	if (!result)
		fprintf(stderr, "baton up: stopped; nothing leaked\n");
	up_config_free(&up->config);
	free(up);
	return result;
}
