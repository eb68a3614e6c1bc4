/*
 * One daemon under `baton up`: started, watched, started again after a death, stopped.
 *
 * A daemon says on standard output, in one line, that it is ready and where:
 * `ready client=HOST:PORT admin=HOST:PORT control=HOST:PORT`. Everything else that it writes goes
 * into its log. It dies with this process (PR_SET_PDEATHSIG), however this process ends.
 */
#ifndef BATON_CLI_UP_CHILD_H
#define BATON_CLI_UP_CHILD_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#define CHILD_WORDS_MAX 256
#define CHILD_PLACES_MAX 4

enum child_state {
	CHILD_IDLE,     /* not started yet, or ended for good */
	CHILD_STARTING, /* runs, has not said ready */
	CHILD_READY,
	CHILD_WAITING,  /* died; starts again when its timer fires */
	CHILD_STOPPING, /* runs, was asked to stop */
};

/* Growing argument vector. */
struct words {
	char *word[CHILD_WORDS_MAX + 1]; /* NULL-terminated */
	int count;
};

void words_add(struct words *words, const char *format, ...) __attribute__((format(printf, 2, 3)));
void words_fini(struct words *words);

struct child_place {
	char name[16], address[80]; /* "peer", "127.0.0.1:40312" */
};

struct child;

struct child_callbacks {
	/* Fills the arguments, the program's path first; called at each start. */
	void (*arguments)(struct child *child, struct words *words);
	void (*on_ready)(struct child *child);
	/* The daemon runs no more. @unasked: it was not stopping; it will be started again unless
	 * child_stop() is called from here. */
	void (*on_exit)(struct child *child, int wait_status, bool unasked);
};

struct child {
	uv_loop_t *loop;
	const struct child_callbacks *callbacks;
	void *context;
	char name[32];
	const char *daemon, *role; /* static texts; role NULL for the conductor */
	char log_path[PATH_MAX];   /* "" with --verbose: standard error */
	uint64_t start_timeout_ns, stop_timeout_ns;

	enum child_state state;
	pid_t pid; /* 0: not running */
	uint32_t starts, failures; /* failures: since it was last ready for a while */
	uint64_t started_ns;
	struct child_output *output; /* NULL when not open */
	uv_timer_t timer;            /* start or stop timeout, or the wait before a restart */
	struct child_place places[CHILD_PLACES_MAX];
	int place_count;
	bool timed_out; /* was killed because it did not get ready or did not stop */
};

void child_init(struct child *child, uv_loop_t *loop, const struct child_callbacks *callbacks,
		void *context);
void child_close(struct child *child); /* not running; its handles close */
int child_start(struct child *child);
/* SIGTERM, and SIGKILL after the stop timeout. on_exit follows if it runs. */
void child_stop(struct child *child);
void child_kill(struct child *child);
/* After SIGCHLD: true when it had died, and on_exit was called. */
bool child_reap(struct child *child);
/* "" when the daemon did not name such a place. */
const char *child_place(const struct child *child, const char *name);

#endif
