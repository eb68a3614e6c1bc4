#include "cli/up_child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"

#define RESTART_WAIT_MIN_MS UINT64_C(200)
#define RESTART_WAIT_MAX_MS UINT64_C(5000)
/* After this long a life counts as a good one, and the next death waits the minimum again. */
#define GOOD_LIFE_NS NS_PER_S

struct child_output {
	uv_pipe_t pipe;
	struct child *child; /* NULL after the child's exit */
	int log_fd;
	size_t line_bytes;
	char line[1024];
	char room[4096];
};

void words_add(struct words *words, const char *format, ...)
{
	va_list args;

	CHECK(words->count < CHILD_WORDS_MAX);
	va_start(args, format);
	int bytes = vasprintf(&words->word[words->count], format, args);
	va_end(args);
	CHECK(bytes >= 0);
	words->word[++words->count] = NULL;
}

void words_fini(struct words *words)
{
	for (int i = 0; i < words->count; i++)
		free(words->word[i]);
	words->count = 0;
}

void child_init(struct child *child, uv_loop_t *loop, const struct child_callbacks *callbacks, void *context)
{
	child->loop = loop;
	child->callbacks = callbacks;
	child->context = context;
	CHECK(uv_timer_init(loop, &child->timer) == 0);
	child->timer.data = child;
}

void child_close(struct child *child)
{
	CHECK(!child->pid);
	uv_close((uv_handle_t *)&child->timer, NULL);
}

const char *child_place(const struct child *child, const char *name)
{
	for (int i = 0; i < child->place_count; i++)
		if (!strcmp(child->places[i].name, name))
			return child->places[i].address;
	return "";
}

/* `ready NAME=ADDRESS...`; false when @line is something else. */
static bool parse_ready(struct child *child, char *line)
{
	char *rest = NULL, *word = strtok_r(line, " \r", &rest);

	if (!word || strcmp(word, "ready"))
		return false;
	child->place_count = 0;
	while ((word = strtok_r(NULL, " \r", &rest)) && child->place_count < CHILD_PLACES_MAX) {
		struct child_place *place = &child->places[child->place_count];
		char *equals = strchr(word, '=');
		if (!equals)
			continue;
		*equals = 0;
		if (strlen(word) >= sizeof place->name || strlen(equals + 1) >= sizeof place->address)
			continue;
		strcpy(place->name, word);
		strcpy(place->address, equals + 1);
		child->place_count++;
	}
	return true;
}

static void output_line(struct child_output *output)
{
	struct child *child = output->child;
	char copy[sizeof output->line];

	output->line[output->line_bytes] = 0;
	(void)!write(output->log_fd, output->line, output->line_bytes);
	(void)!write(output->log_fd, "\n", 1);
	strcpy(copy, output->line);
	output->line_bytes = 0;
	if (!child || child->state != CHILD_STARTING || !parse_ready(child, copy))
		return;
	child->state = CHILD_READY;
	uv_timer_stop(&child->timer);
	child->callbacks->on_ready(child);
}

static void output_closed(uv_handle_t *handle)
{
	struct child_output *output = container_of((uv_pipe_t *)handle, struct child_output, pipe);
	close(output->log_fd);
	free(output);
}

static void output_close(struct child_output *output)
{
	if (output->child)
		output->child->output = NULL;
	output->child = NULL;
	uv_close((uv_handle_t *)&output->pipe, output_closed);
}

static void output_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
	struct child_output *output = container_of((uv_pipe_t *)handle, struct child_output, pipe);
	*buf = uv_buf_init(output->room, sizeof output->room);
}

static void output_read(uv_stream_t *stream, ssize_t bytes, const uv_buf_t *buf)
{
	struct child_output *output = container_of((uv_pipe_t *)stream, struct child_output, pipe);

	for (ssize_t i = 0; i < bytes; i++) {
		if (output->room[i] == '\n' || output->line_bytes == sizeof output->line - 1)
			output_line(output);
		if (output->room[i] != '\n')
			output->line[output->line_bytes++] = output->room[i];
	}
	if (bytes < 0)
		output_close(output);
}

/* Takes @fd and @log_fd. */
static int output_open(struct child *child, int fd, int log_fd)
{
	struct child_output *output = calloc(1, sizeof *output);
	if (!output) {
		close(fd);
		close(log_fd);
		return -ENOMEM;
	}
	output->child = child;
	output->log_fd = log_fd;
	CHECK(uv_pipe_init(child->loop, &output->pipe, 0) == 0);
	child->output = output;
	int error = uv_pipe_open(&output->pipe, fd);
	if (!error)
		error = uv_read_start((uv_stream_t *)&output->pipe, output_alloc, output_read);
	if (error)
		output_close(output);
	return error;
}

static _Noreturn void run(const struct words *words, pid_t parent, int out_fd, int log_fd)
{
	sigset_t none;

	/* The child must not outlive a supervisor that was killed; it may be dead already. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(125);
	/* A Ctrl-C at the terminal is for the supervisor, which stops all in order. */
	setpgid(0, 0);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	int null_fd = open("/dev/null", O_RDONLY);
	if (null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(out_fd, 1) < 0 || dup2(log_fd, 2) < 0)
		_exit(126);
	execv(words->word[0], words->word);
	dprintf(2, "cannot run %s: %s\n", words->word[0], strerror(errno));
	_exit(127);
}

static void on_start_timeout(uv_timer_t *timer)
{
	struct child *child = timer->data;
	fprintf(stderr, "baton up: %s did not get ready in time\n", child->name);
	child->timed_out = true;
	child_kill(child);
}

int child_start(struct child *child)
{
	struct words words = { 0 };
	int out[2], error;

	int log_fd = child->log_path[0] ? open(child->log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) :
					  fcntl(2, F_DUPFD_CLOEXEC, 3);
	if (log_fd < 0)
		return -errno;
	if (pipe2(out, O_CLOEXEC) < 0) {
		error = -errno;
		close(log_fd);
		return error;
	}
	child->callbacks->arguments(child, &words);
	pid_t parent = getpid(), pid = fork();
	if (pid == 0)
		run(&words, parent, out[1], log_fd);
	error = pid < 0 ? -errno : 0;
	words_fini(&words);
	close(out[1]);
	if (error) {
		close(out[0]);
		close(log_fd);
		return error;
	}
	child->pid = pid;
	child->state = CHILD_STARTING;
	child->starts++;
	child->started_ns = clock_now_ns();
	child->timed_out = false;
	uv_timer_start(&child->timer, on_start_timeout, child->start_timeout_ns / NS_PER_MS, 0);
	error = output_open(child, out[0], log_fd);
	if (error)
		child_kill(child); /* it could never say that it is ready */
	return 0;
}

void child_kill(struct child *child)
{
	if (child->pid)
		kill(child->pid, SIGKILL);
}

static void on_stop_timeout(uv_timer_t *timer)
{
	struct child *child = timer->data;
	fprintf(stderr, "baton up: %s did not stop in time and is killed\n", child->name);
	child->timed_out = true;
	child_kill(child);
}

void child_stop(struct child *child)
{
	if (child->state == CHILD_STOPPING || child->state == CHILD_IDLE)
		return;
	uv_timer_stop(&child->timer);
	if (!child->pid) {
		child->state = CHILD_IDLE;
		return;
	}
	child->state = CHILD_STOPPING;
	kill(child->pid, SIGTERM);
	kill(child->pid, SIGCONT); /* one that was stopped must hear it too */
	uv_timer_start(&child->timer, on_stop_timeout, child->stop_timeout_ns / NS_PER_MS, 0);
}

static void on_restart(uv_timer_t *timer)
{
	struct child *child = timer->data;
	int error = child_start(child);
	if (error) {
		fprintf(stderr, "baton up: %s cannot be started: %s\n", child->name, strerror(-error));
		uv_timer_start(&child->timer, on_restart, RESTART_WAIT_MAX_MS, 0);
	}
}

bool child_reap(struct child *child)
{
	int status;

	if (!child->pid || waitpid(child->pid, &status, WNOHANG) != child->pid)
		return false;
	bool unasked = child->state != CHILD_STOPPING;
	bool was_ready = child->state == CHILD_READY;
	uv_timer_stop(&child->timer);
	child->pid = 0;
	child->state = unasked ? CHILD_WAITING : CHILD_IDLE;
	if (was_ready && clock_now_ns() - child->started_ns > GOOD_LIFE_NS)
		child->failures = 0;
	child->failures++;
	if (child->output) {
		child->output->child = NULL; /* its last bytes go to the log when they come */
		child->output = NULL;
	}
	child->callbacks->on_exit(child, status, unasked);
	if (child->state == CHILD_WAITING) {
		uint64_t wait_ms = RESTART_WAIT_MIN_MS << MIN(child->failures - 1, 5u);
		uv_timer_start(&child->timer, on_restart, MIN(wait_ms, RESTART_WAIT_MAX_MS), 0);
	}
	return true;
}
