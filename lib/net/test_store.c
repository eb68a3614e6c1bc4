/* One body over every store; Redis when redis-server is installed. And the watch, with faults. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/clock.h"
#include "net/store.h"

static char folder[] = "/tmp/baton-store-XXXXXX";
static char path[64], place[64];
static pid_t redis;

static uint16_t free_port(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t bytes = sizeof address;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
	close(fd);
	return ntohs(address.sin_port);
}

static int open_memory(struct store **ret_store)
{
	return store_memory_open(ret_store);
}

static int open_file(struct store **ret_store)
{
	return store_file_open(path, ret_store);
}

static int open_redis(struct store **ret_store)
{
	return store_redis_open(place, 500 * NS_PER_MS, ret_store);
}

static bool has_redis(void)
{
	return !access("/usr/bin/redis-server", X_OK);
}

static void start_redis(void)
{
	char port[8];
	uint16_t number = free_port();
	snprintf(port, sizeof port, "%u", number);
	snprintf(place, sizeof place, "127.0.0.1:%u/test", number);
	redis = fork();
	if (!redis) {
		int null = open("/dev/null", O_WRONLY);
		dup2(null, 1);
		execl("/usr/bin/redis-server", "redis-server", "--port", port, "--bind", "127.0.0.1",
		      "--save", "", "--dir", folder, (char *)NULL);
		_exit(127);
	}
	struct store *store;
	uint64_t stamp;
	assert_int_equal(open_redis(&store), 0);
	for (int i = 0; i < 500 && store_stamp(store, &stamp) != -ENOENT; i++)
		usleep(20000);
	assert_int_equal(store_stamp(store, &stamp), -ENOENT);
	store_close(store);
}

static void stop_redis(void)
{
	if (redis > 0) {
		kill(redis, SIGKILL);
		waitpid(redis, NULL, 0);
	}
	redis = 0;
}

static int change_put(struct store_table *table, void *context)
{
	return store_table_put(table, context);
}

/* Adds one to the number that the record "n" holds. */
static int change_count(struct store_table *table, void *context)
{
	const struct store_record *record = store_table_find(table, "n");
	char value[64];
	int count = record ? atoi(strchr(record->value, ':') + 1) : 0;
	snprintf(value, sizeof value, "{\"n\":%d,\"id\":\"n\"}", count + 1);
	return store_table_put(table, value);
}

static int change_refuse(struct store_table *table, void *context)
{
	(void)store_table_put(table, "{\"id\":\"never\"}");
	return -EPERM;
}

static void check_store(int (*open_store)(struct store **), bool empty_is_absent)
{
	struct store *store, *other = NULL;
	struct store_table table = { 0 };
	uint64_t stamp = 0, later = 0;
	assert_int_equal(open_store(&store), 0);
	if (empty_is_absent)
		assert_int_equal(store_stamp(store, &stamp), -ENOENT);
	assert_int_equal(store_update(store, change_put, (void *)"{\"id\": \"a\", \"v\": 1}"), 0);
	assert_int_equal(store_update(store, change_put, (void *)"{\"id\": \"b\", \"v\": 2}"), 0);
	assert_int_equal(store_stamp(store, &stamp), 0);
	assert_int_equal(store_stamp(store, &later), 0);
	assert_true(stamp == later);
	if (empty_is_absent) /* another process's view */
		assert_int_equal(open_store(&other), 0);
	assert_int_equal(store_update(other ? other : store, change_put,
				      (void *)"{\"id\": \"a\", \"v\": 3}"), 0);
	store_close(other);
	assert_int_equal(store_stamp(store, &later), 0);
	assert_true(stamp != later);
	assert_int_equal(store_update(store, change_refuse, NULL), -EPERM);
	assert_int_equal(store_update(store, change_put, (void *)"{\"id\": 7}"), -EBADMSG);
	assert_int_equal(store_read(store, &table), 0);
	assert_int_equal(table.count, 2);
	assert_string_equal(store_table_find(&table, "a")->value, "{\"id\": \"a\", \"v\": 3}");
	assert_string_equal(store_table_find(&table, "b")->value, "{\"id\": \"b\", \"v\": 2}");
	assert_null(store_table_find(&table, "never"));
	store_table_fini(&table);
	store_close(store);
}

/* Writers in processes of their own: no update is lost. */
static void check_race(int (*open_store)(struct store **))
{
	enum { WRITERS = 4, UPDATES = 12 };
	pid_t pids[WRITERS];
	struct store *store;
	for (int i = 0; i < WRITERS; i++) {
		pids[i] = fork();
		if (!pids[i]) {
			int failed = open_store(&store);
			for (int n = 0; !failed && n < UPDATES; n++) {
				int result;
				while ((result = store_update(store, change_count, NULL)) == -EBUSY)
					;
				failed = result;
			}
			_exit(failed ? 1 : 0);
		}
	}
	/* Whoever reads meanwhile always finds a whole table. */
	struct store_table table = { 0 };
	assert_int_equal(open_store(&store), 0);
	for (int i = 0; i < 200; i++) {
		int result = store_read(store, &table);
		assert_true(result == 0 || result == -ENOENT);
		store_table_fini(&table);
	}
	for (int i = 0; i < WRITERS; i++) {
		int status;
		waitpid(pids[i], &status, 0);
		assert_int_equal(status, 0);
	}
	assert_int_equal(store_read(store, &table), 0);
	assert_int_equal(atoi(strchr(store_table_find(&table, "n")->value, ':') + 1),
			 WRITERS * UPDATES);
	store_table_fini(&table);
	store_close(store);
}

static void test_memory(void **state)
{
	check_store(open_memory, false);
}

static void write_file(const char *text)
{
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void test_file(void **state)
{
	struct stat found;
	check_store(open_file, true);
	assert_int_equal(stat(path, &found), 0);
	assert_int_equal(found.st_mode & 07777, 0600);
	assert_int_equal(unlink(path), 0);
	check_race(open_file);
}

static void test_file_damage(void **state)
{
	static const char *const bad[] = { "no json\n", "{\"id\":\"a\"}\n{\"id\":\"a\"}\n", "{}\n", "{\"id\":\"\"}",
					   "{\"id\":\"a\"}\n{\"id\":" };
	struct store *store;
	struct store_table table = { 0 };
	assert_int_equal(open_file(&store), 0);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct stat before, after;
		write_file(bad[i]);
		assert_int_equal(stat(path, &before), 0);
		assert_int_equal(store_read(store, &table), -EBADMSG);
		assert_int_equal(table.count, 0);
		/* It is not written over. */
		assert_int_equal(store_update(store, change_put, (void *)"{\"id\":\"x\"}"), -EBADMSG);
		assert_int_equal(stat(path, &after), 0);
		assert_true(before.st_ino == after.st_ino && before.st_size == after.st_size);
	}
	/* A writer that was killed leaves its half behind; the next one is not disturbed. */
	char left[80];
	snprintf(left, sizeof left, "%s.tmp", path);
	write_file("\n{\"id\":\"a\"}");
	int fd = open(left, O_WRONLY | O_CREAT, 0644);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, "{\"id", 4), 4);
	close(fd);
	assert_int_equal(store_update(store, change_put, (void *)"{\"id\":\"x\"}"), 0);
	assert_int_equal(store_read(store, &table), 0);
	assert_int_equal(table.count, 2);
	store_table_fini(&table);
	store_close(store);
	assert_int_equal(access(left, F_OK), -1);
	/* No room on the way: the file stays as it was. */
	struct rlimit old, small = { 8, RLIM_INFINITY };
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
	small.rlim_max = old.rlim_max;
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(store_file_open(path, &store), 0);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	assert_int_equal(store_update(store, change_put, (void *)"{\"id\":\"y\"}"), -EFBIG);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
	assert_int_equal(store_read(store, &table), 0);
	assert_int_equal(table.count, 2);
	assert_null(store_table_find(&table, "y"));
	store_table_fini(&table);
	assert_int_equal(store_update(store, change_put, (void *)"{\"id\":\"y\"}"), 0);
	store_close(store);
	/* A folder that is not there. */
	assert_int_equal(store_file_open("/nonexistent/x/keys", &store), 0);
	assert_int_equal(store_update(store, change_put, (void *)"{\"id\":\"x\"}"), -ENOENT);
	store_close(store);
}

static void test_table(void **state)
{
	struct store_table table = { 0 };
	struct buf value;
	char id[32];
	for (int i = 0; i < 3000; i++) {
		snprintf(id, sizeof id, "{\"id\":\"k%d\"}", i % 2000);
		assert_int_equal(store_table_put(&table, id), 0);
	}
	assert_int_equal(table.count, 2000);
	assert_string_equal(store_table_find(&table, "k1999")->value, "{\"id\":\"k1999\"}");
	assert_null(store_table_find(&table, "k2000"));
	assert_int_equal(store_table_put(&table, "{\"id\":\"two\nlines\"}"), -EBADMSG);
	buf_init(&value, 0);
	buf_printf(&value, "{\"id\":\"long\",\"x\":\"%*s\"}", STORE_RECORD_BYTES_MAX, "");
	assert_int_equal(store_table_put(&table, value.data), -EBADMSG);
	buf_fini(&value);
	store_table_fini(&table);
	assert_null(store_table_find(&table, "k1"));
}

static void test_redis(void **state)
{
	if (!has_redis())
		skip();
	start_redis();
	check_store(open_redis, true);
	check_race(open_redis);
	/* A stopped server costs the timeout, a dead one next to nothing; both come back. */
	struct store *store;
	uint64_t stamp, began_ns;
	assert_int_equal(open_redis(&store), 0);
	assert_int_equal(store_stamp(store, &stamp), 0);
	kill(redis, SIGSTOP);
	began_ns = clock_now_ns();
	assert_int_equal(store_stamp(store, &stamp), -ETIMEDOUT);
	assert_true(clock_now_ns() - began_ns < 5 * NS_PER_S);
	kill(redis, SIGCONT);
	assert_int_equal(store_stamp(store, &stamp), 0);
	stop_redis();
	assert_true(store_stamp(store, &stamp) < 0);
	assert_int_equal(store_stamp(store, &stamp), -ECONNREFUSED);
	store_close(store);
}

static void test_redis_place(void **state)
{
	static const char *const good[] = { "h:1", "127.0.0.1:6379/p", "[::1]:6379", "[::1]:6379/a:b" };
	static const char *const bad[] = { "", "h", "h:", ":1", "h:0", "h:65536", "h:1/", "::1:6379",
					   "[::1:6379", "h:1x", "[]:1", "h:1:2" };
	struct store *store;
	for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
		assert_int_equal(store_redis_open(good[i], NS_PER_S, &store), 0);
		store_close(store);
	}
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_int_equal(store_redis_open(bad[i], NS_PER_S, &store), -EINVAL);
}

/* ---- the watch ---- */

struct seen {
	_Atomic uint32_t tables, records, states;
	_Atomic int state;
};

static void on_table(const struct store_table *table, void *context)
{
	struct seen *seen = context;
	atomic_store(&seen->records, table->count);
	atomic_fetch_add(&seen->tables, 1);
}

static void on_state(int error, void *context)
{
	struct seen *seen = context;
	atomic_store(&seen->state, error);
	atomic_fetch_add(&seen->states, 1);
}

#define WAIT_FOR(condition)                                                                      \
	do {                                                                                     \
		for (int tries = 0; tries < 1000 && !(condition); tries++)                       \
			usleep(5000);                                                            \
		assert_true(condition);                                                          \
	} while (0)

static void test_watch(void **state)
{
	static const struct store_watch_callbacks callbacks = { on_table, on_state };
	struct store *store;
	struct store_watch *watch;
	struct seen seen = { 0 };
	assert_int_equal(store_memory_open(&store), 0);
	assert_int_equal(store_update(store, change_put, (void *)"{\"id\":\"a\"}"), 0);
	assert_int_equal(store_watch_start(store, 2 * NS_PER_MS, &callbacks, &seen, &watch), 0);
	/* The first look is over when start returns. */
	assert_int_equal(seen.tables, 1);
	assert_int_equal(seen.records, 1);
	assert_int_equal(store_update(store, change_put, (void *)"{\"id\":\"b\"}"), 0);
	WAIT_FOR(seen.records == 2);
	usleep(50000);
	assert_int_equal(seen.tables, 2); /* nothing changed, nothing came */
	store_memory_fault(store, -ETIMEDOUT, 0);
	WAIT_FOR(seen.state == -ETIMEDOUT);
	usleep(50000);
	assert_int_equal(seen.states, 1); /* said once */
	assert_int_equal(seen.records, 2);
	store_memory_fault(store, 0, 0);
	WAIT_FOR(seen.state == 0);
	assert_int_equal(store_update(store, change_put, (void *)"{\"id\":\"c\"}"), 0);
	WAIT_FOR(seen.records == 3);
	store_watch_stop(watch);
}

static int setup(void **state)
{
	if (!mkdtemp(folder))
		return -1;
	snprintf(path, sizeof path, "%s/keys", folder);
	return 0;
}

static int teardown(void **state)
{
	char lock[80];
	stop_redis();
	snprintf(lock, sizeof lock, "%s.lock", path);
	(void)unlink(lock);
	(void)unlink(path);
	return rmdir(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_table),
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_file),
		cmocka_unit_test(test_file_damage),
		cmocka_unit_test(test_redis_place),
		cmocka_unit_test(test_redis),
		cmocka_unit_test(test_watch),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
