/* Disks that fail, fill up, lie, crawl or vanish; kernels that refuse. */
#include "pool/test_ssd_support.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static bool with_threads(void **state)
{
	return *state != NULL;
}

/* Runs @body in a process of its own, so that what it does to itself ends with it. */
static int in_child(int (*body)(struct box *box), struct box *box)
{
	int status;
	fflush(NULL);
	pid_t child = fork();
	assert_true(child >= 0);
	if (!child)
		_exit(body(box));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

#define CHILD_SKIPPED 77

/* The n-th I/O fails, for every n that a life with puts, gets, evictions and a restart has. Nothing
 * is ever wrong, everything ends, and without faults it works again. */
static void test_nth_io(void **state)
{
	struct box box;

	box_new(&box, with_threads(state));
	box.config.bytes = 12 * SLOT;
	for (uint32_t n = 1; n <= 70; n++) {
		uint32_t failed = 0;
		box.config.faults.fail_nth = n;
		box.config.faults.error = n % 3 == 0 ? ENOSPC : EIO;
		for (int life = 0; life < 2; life++) {
			box_open(&box);
			for (uint64_t i = 1; i <= 14; i++) {
				int error = box_put(&box, i, i - 1);
				assert_true(!error || error == -EEXIST || error == -EIO ||
					    error == -ENOSPC || error == -EBUSY);
				failed += error == -EIO || error == -ENOSPC;
			}
			for (uint64_t i = 1; i <= 14; i++) {
				int error = box_get(&box, i);
				assert_true(!error || error == -ENOENT || error == -EIO ||
					    error == -ENOSPC);
				failed += error == -EIO || error == -ENOSPC;
			}
			ssd_check(box.ssd);
			assert_true(box_stats(&box).corrupt == 0);
			assert_true(folder_bytes(box.path) <= box.config.bytes);
			box_close(&box);
			box.config.faults.fail_nth = 0;
		}
		assert_true(failed <= 1);
		box_open(&box);
		assert_int_equal(box_put(&box, 100 + n, 0), 0);
		assert_int_equal(box_get(&box, 100 + n), 0);
		box_close(&box);
		folder_empty(box.path);
	}
	box_free(&box);
}

static void test_read_errors(void **state)
{
	struct box box;

	box_new(&box, with_threads(state));
	box_open(&box);
	for (uint64_t i = 1; i <= 20; i++)
		assert_int_equal(box_put(&box, i, 0), 0);
	ssd_set_faults(box.ssd, &(struct ssd_faults){ .read_fail_every = 1 });
	for (uint64_t i = 1; i <= 8; i++) {
		assert_int_equal(box_get(&box, i), -EIO);
		assert_false(box_has(&box, i));
	}
	/* Left alone now: misses, at once, and nothing more is lost. */
	assert_true(box_stats(&box).ailing);
	uint64_t errors = box_stats(&box).read_errors;
	for (uint64_t i = 9; i <= 20; i++)
		assert_int_equal(box_get(&box, i), -ENOENT);
	assert_int_equal(box_stats(&box).read_errors, errors);
	assert_int_equal(box_put(&box, 50, 0), -EIO);
	assert_int_equal(box_stats(&box).puts_ailing, 1);
	usleep(1100 * 1000);
	/* Still broken: one more try, then twice as long. */
	assert_int_equal(box_get(&box, 9), -EIO);
	assert_int_equal(box_get(&box, 10), -ENOENT);
	ssd_set_faults(box.ssd, &(struct ssd_faults){ 0 });
	usleep(2100 * 1000);
	for (uint64_t i = 10; i <= 20; i++)
		assert_int_equal(box_get(&box, i), 0);
	assert_false(box_stats(&box).ailing);
	assert_int_equal(box_put(&box, 50, 0), 0);
	ssd_check(box.ssd);
	box_free(&box);
}

static void test_write_errors(void **state)
{
	struct box box;
	uint32_t failed = 0;

	box_new(&box, with_threads(state));
	box.config.bytes = 20 * SLOT;
	box_open(&box);
	ssd_set_faults(box.ssd, &(struct ssd_faults){ .write_fail_every = 5 });
	for (uint64_t i = 1; i <= 60; i++) {
		int error = box_put(&box, i, 0);
		assert_true(!error || error == -EIO || error == -EBUSY);
		assert_int_equal(box_has(&box, i), !error);
		failed += error == -EIO;
	}
	struct ssd_stats stats = box_stats(&box);
	assert_true(failed > 5);
	assert_int_equal(stats.puts_failed, failed);
	assert_int_equal(stats.slots_retired, failed);
	assert_true(stats.write_errors >= failed);
	ssd_set_faults(box.ssd, &(struct ssd_faults){ 0 });
	uint32_t there = 0;
	for (uint64_t i = 1; i <= 60; i++) {
		int error = box_get(&box, i);
		assert_true(!error || error == -ENOENT);
		there += !error;
	}
	assert_int_equal(there, box_stats(&box).blocks);
	/* Reopened, the slots are there again. */
	box_close(&box);
	box_open(&box);
	assert_int_equal(box_stats(&box).slots_retired, 0);
	for (uint64_t i = 100; i <= 160; i++)
		assert_int_equal(box_put(&box, i, 0), 0);
	box_free(&box);
}

/* One bit of a read flips, wherever: no wrong byte, one miss, counted. */
static void test_flipped_reads(void **state)
{
	struct box box;
	uint32_t corrupt = 0;

	box_new(&box, with_threads(state));
	box_open(&box);
	ssd_set_faults(box.ssd, &(struct ssd_faults){ .flip_every = 7 });
	for (uint64_t i = 1; i <= 400; i++) {
		uint64_t number = i % 40 + 1;
		int error = box_get(&box, number);
		assert_true(!error || error == -ENOENT || error == BATON_ECHECKSUM);
		corrupt += error == BATON_ECHECKSUM;
		error = box_put(&box, number, 0);
		assert_true(!error || error == -EEXIST);
	}
	assert_true(corrupt > 20);
	assert_int_equal(box_stats(&box).corrupt, corrupt);
	assert_false(box_stats(&box).ailing);
	box_free(&box);
}

/* No segment can be made at first, then no other one. */
static void test_no_growth(void **state)
{
	struct box box;

	box_new(&box, with_threads(state));
	box.config.faults.grow_fail_every = 1;
	box.config.faults.error = ENOSPC;
	box_open(&box);
	assert_int_equal(box_put(&box, 1, 0), -EBUSY);
	assert_int_equal(box_stats(&box).grow_error, -ENOSPC);
	assert_int_equal(box_stats(&box).grow_failures, 1);
	assert_int_equal(box_get(&box, 1), -ENOENT);
	box_close(&box);
	assert_int_equal(folder_bytes(box.path), 0);
	box.config.faults.grow_fail_every = 2;
	box_open(&box);
	for (uint64_t i = 1; i <= 50; i++)
		assert_int_equal(box_put(&box, i, 0), 0);
	assert_int_equal(box_stats(&box).segments, 1);
	assert_int_equal(box_stats(&box).blocks, 8);
	box_free(&box);
}

/* The folder is removed under it: what is open goes on, nothing is made any more. */
static void test_vanished(void **state)
{
	struct box box;

	box_new(&box, with_threads(state));
	box_open(&box);
	for (uint64_t i = 1; i <= 10; i++)
		assert_int_equal(box_put(&box, i, 0), 0);
	folder_remove(box.path);
	assert_int_equal(access(box.path, F_OK), -1);
	for (uint64_t i = 1; i <= 10; i++)
		assert_int_equal(box_get(&box, i), 0);
	for (uint64_t i = 11; i <= 60; i++)
		assert_int_equal(box_put(&box, i, 0), 0);
	struct ssd_stats stats = box_stats(&box);
	assert_int_equal(stats.grow_error, -ENOENT);
	assert_true(stats.grow_failures >= 1);
	assert_true(stats.evictions > 0);
	assert_int_equal(box_get(&box, 60), 0);
	box_close(&box);
	box_open(&box);
	assert_int_equal(box.count[SSD_ADOPTED], 0);
	box_free(&box);
}

/* Files are cut while they are in use. */
static void test_cut_under_it(void **state)
{
	struct box box;
	char name[256];

	box_new(&box, with_threads(state));
	box_open(&box);
	for (uint64_t i = 1; i <= 8; i++)
		assert_int_equal(box_put(&box, i, 0), 0);
	snprintf(name, sizeof name, "%s/segment-00000000.baton", box.path);
	assert_int_equal(truncate(name, 9 * PAGE + 2 * BLOCK + 512), 0);
	for (uint64_t i = 1; i <= 8; i++)
		assert_int_equal(box_get(&box, i), i <= 2 ? 0 : BATON_ECHECKSUM);
	assert_int_equal(box_stats(&box).corrupt, 6);
	for (uint64_t i = 20; i <= 40; i++)
		assert_int_equal(box_put(&box, i, 0), 0);
	for (uint64_t i = 20; i <= 40; i++)
		assert_int_equal(box_get(&box, i), 0);
	box_free(&box);
}

/* ---- a file system that is really full ---- */

static int full_disk(struct box *box)
{
	uint32_t stored = 0;

	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("none", box->path, "tmpfs", 0, "size=600k"))
		return CHILD_SKIPPED;
	box->config.bytes = 4 << 20;
	box_open(box);
	for (uint64_t i = 1; i <= 100; i++) {
		int error = box_put(box, i, i % 10 ? i - 1 : 0);
		assert_true(!error);
		stored++;
	}
	struct ssd_stats stats = box_stats(box);
	assert_int_equal(stats.grow_error, -ENOSPC);
	assert_true(stats.blocks >= 16 && stats.evictions == stored - stats.blocks);
	for (uint64_t i = 100; i > 90; i--)
		assert_int_equal(box_get(box, i), 0);
	box_close(box);
	/* Somebody else fills the rest, and our files have lost their space. */
	char name[256];
	snprintf(name, sizeof name, "%s/segment-00000000.baton", box->path);
	assert_int_equal(truncate(name, 9 * PAGE + 3 * BLOCK), 0);
	snprintf(name, sizeof name, "%s/other", box->path);
	int fd = open(name, O_CREAT | O_WRONLY, 0600);
	static const char zeros[PAGE];
	while (write(fd, zeros, sizeof zeros) > 0)
		;
	close(fd);
	box_open(box);
	uint32_t adopted = box->count[SSD_ADOPTED];
	assert_true(adopted >= 8 && adopted == box_stats(box).blocks);
	for (uint64_t i = 200; i <= 260; i++)
		assert_int_equal(box_put(box, i, 0), 0);
	for (uint64_t i = 256; i <= 260; i++)
		assert_int_equal(box_get(box, i), 0);
	assert_int_equal(box_stats(box).blocks, adopted);
	box_close(box);
	return 0;
}

static void test_full_disk(void **state)
{
	struct box box;
	box_new(&box, with_threads(state));
	int status = in_child(full_disk, &box);
	box_free(&box);
	if (status == CHILD_SKIPPED)
		skip(); /* may not mount */
	assert_int_equal(status, 0);
}

/* ---- kernels that refuse ---- */

static int refused_uring(struct box *box)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = { ARRAY_COUNT(filter), filter };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		return CHILD_SKIPPED;
	box_open(box);
	assert_false(box_stats(box).uring);
	for (uint64_t i = 1; i <= 20; i++)
		assert_int_equal(box_put(box, i, 0), 0);
	for (uint64_t i = 1; i <= 20; i++)
		assert_int_equal(box_get(box, i), 0);
	box_close(box);
	return 0;
}

static void test_refused_uring(void **state)
{
	struct box box;
	box_new(&box, false);
	int status = in_child(refused_uring, &box);
	box_free(&box);
	if (status == CHILD_SKIPPED)
		skip();
	assert_int_equal(status, 0);
}

/* No memory may be locked, by somebody who is not root: nothing is registered, all works. */
static int no_memlock(struct box *box)
{
	const struct rlimit none = { 0, 0 };

	if (setrlimit(RLIMIT_MEMLOCK, &none) || chown(box->path, 65534, 65534) || setgid(65534) ||
	    setuid(65534))
		return CHILD_SKIPPED;
	box->config.arena = box->buffers;
	box->config.arena_bytes = BUFFERS * BLOCK;
	box_open(box);
	assert_false(box_stats(box).arena_registered);
	for (uint64_t i = 1; i <= 20; i++)
		assert_int_equal(box_put(box, i, 0), 0);
	for (uint64_t i = 1; i <= 20; i++)
		assert_int_equal(box_get(box, i), 0);
	box_close(box);
	return 0;
}

static void test_no_memlock(void **state)
{
	struct box box;
	box_new(&box, with_threads(state));
	int status = in_child(no_memlock, &box);
	box_free(&box);
	if (status == CHILD_SKIPPED)
		skip();
	assert_int_equal(status, 0);
}

/* No thread can be had but the disk thread: it does the I/O itself. */
static int no_threads(struct box *box)
{
	const struct rlimit one = { 1, 1 };
	char error[256];

	box_open(box);
	/* The next threads of this user are over its limit; root has none, so become somebody. */
	box_close(box);
	if (chown(box->path, 65533, 65533))
		return CHILD_SKIPPED;
	folder_empty(box->path);
	if (setgid(65533) || setuid(65533) || setrlimit(RLIMIT_NPROC, &one))
		return CHILD_SKIPPED;
	int refused = ssd_open(&box->config, &box->ssd, error, sizeof error);
	assert_int_equal(refused, -EAGAIN);
	assert_non_null(strstr(error, "cannot start its thread"));
	box->ssd = NULL;
	return 0;
}

static void test_no_threads(void **state)
{
	struct box box;
	box_new(&box, true);
	int status = in_child(no_threads, &box);
	box_free(&box);
	if (status == CHILD_SKIPPED)
		skip();
	assert_int_equal(status, 0);
}

#define BOTH(body) { #body " io_uring", body, NULL, NULL, NULL }, { #body " threads", body, NULL, NULL, (void *)1 }

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(test_nth_io),
		BOTH(test_read_errors),
		BOTH(test_write_errors),
		BOTH(test_flipped_reads),
		BOTH(test_no_growth),
		BOTH(test_vanished),
		BOTH(test_cut_under_it),
		BOTH(test_full_disk),
		cmocka_unit_test(test_refused_uring),
		BOTH(test_no_memlock),
		cmocka_unit_test(test_no_threads),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
