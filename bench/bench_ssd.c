/*
 * `baton bench ssd`: bandwidth and processor time of the SSD tier, beside one thread that reads and
 * writes the same amount in the same pieces with O_DIRECT, one after the other, in the same folder.
 * "new" goes into space that was just allocated, "over" replaces what is there (the tier evicts then).
 * For every size the two take turns, round after round. Processor time is the process's, the kernel's
 * part and its io_uring workers included; a get verifies every byte. The table shows medians and the
 * range of the bandwidth.
 *
 * `--adopt BLOCKS` measures a restart instead: how long until that many small blocks are known again.
 */
#include "bench/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/rand.h"
#include "pool/ssd.h"

#define MIB (1u << 20)
#define ROUNDS_MAX 32
#define SIZES_MAX 8
#define SLICES 16u
#define ARENA_BYTES (256u * MIB)

enum method { PLAIN_NEW, PUT_NEW, PLAIN_OVER, PUT_OVER, PLAIN_READ, GET, METHOD_COUNT };
static const char *const method_names[METHOD_COUNT] = { "write new", "put new", "write over",
							"put over", "read", "get" };

struct bench {
	const char *path, *json_path;
	uint64_t round_bytes, adopt;
	uint32_t sizes[SIZES_MAX], size_count;
	uint32_t rounds, depth;
	bool threads;
	uint8_t *arena;
	uint64_t *sums; /* [blocks in the arena][slices] */
	uint32_t slices;
	int wake;
	double gb_s[METHOD_COUNT][ROUNDS_MAX], cpu_s_gb[METHOD_COUNT][ROUNDS_MAX];
};

static void die(const char *what, int error)
{
	fprintf(stderr, "bench ssd: %s: %s\n", what, err_text(error));
	exit(1);
}

static double cpu_s(void)
{
	struct rusage usage;
	getrusage(RUSAGE_SELF, &usage);
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

struct watch {
	uint64_t start_ns;
	double cpu_s;
};

static struct watch watch_start(void)
{
	return (struct watch){ clock_now_ns(), cpu_s() };
}

static void watch_stop(const struct watch *watch, struct bench *bench, enum method method, uint32_t round,
		       uint64_t bytes)
{
	double seconds = (double)(clock_now_ns() - watch->start_ns) / 1e9;
	bench->gb_s[method][round] = (double)bytes / 1e9 / seconds;
	bench->cpu_s_gb[method][round] = (cpu_s() - watch->cpu_s) / ((double)bytes / 1e9);
}

/* ---- the plain way ---- */

static void plain_pass(struct bench *bench, int fd, uint32_t size, enum method method, uint32_t round)
{
	uint64_t count = bench->round_bytes / size;
	struct watch watch = watch_start();

	for (uint64_t i = 0; i < count; i++) {
		uint8_t *at = bench->arena + i % (ARENA_BYTES / size) * size;
		ssize_t moved = method == PLAIN_READ ? pread(fd, at, size, (off_t)(i * size)) :
						       pwrite(fd, at, size, (off_t)(i * size));
		if (moved != (ssize_t)size)
			die("plain transfer", moved < 0 ? -errno : -EIO);
	}
	watch_stop(&watch, bench, method, round, count * size);
}

static void plain_round(struct bench *bench, uint32_t size, uint32_t round)
{
	char name[512];
	snprintf(name, sizeof name, "%s/plain", bench->path);
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_DIRECT, 0600);
	if (fd < 0 || fallocate(fd, 0, 0, (off_t)bench->round_bytes))
		die(name, -errno);
	plain_pass(bench, fd, size, PLAIN_NEW, round);
	plain_pass(bench, fd, size, PLAIN_OVER, round);
	plain_pass(bench, fd, size, PLAIN_READ, round);
	close(fd);
	unlink(name);
}

/* ---- ours ---- */

static void notify(void *context)
{
	const uint64_t one = 1;
	struct bench *bench = context;
	CHECK(write(bench->wake, &one, sizeof one) == sizeof one);
}

static void wait_events(struct bench *bench)
{
	struct pollfd wait = { bench->wake, POLLIN, 0 };
	uint64_t count;
	(void)poll(&wait, 1, 1000);
	(void)!read(bench->wake, &count, sizeof count);
}

static struct kv_key key_of(uint64_t number)
{
	struct kv_key key = { { 0 } };
	uint64_t state = number, word = rand_next(&state);
	memcpy(key.bytes, &word, sizeof word);
	memcpy(key.bytes + 8, &number, sizeof number);
	return key;
}

/* Blocks @first to @first + @count of the tier; block i's bytes are the arena's i-th, round and round. */
static void ssd_pass(struct bench *bench, struct ssd *ssd, uint32_t size, enum method method,
		     uint32_t round, uint64_t first, uint64_t count)
{
	uint64_t next = 0, ended = 0, places = ARENA_BYTES / size;
	struct watch watch = watch_start();

	while (ended < count) {
		struct ssd_event event;
		int error = 0;
		while (next < count && !error) {
			struct kv_key key = key_of(first + next);
			uint64_t place = next % places;
			uint8_t *at = bench->arena + place * size;
			error = method == GET ? ssd_get(ssd, &key, 0, bench->slices, at, next) :
						ssd_put(ssd, &key, NULL, bench->sums + place * bench->slices,
							at, next);
			if (error && error != -EAGAIN)
				die(method_names[method], error);
			next += !error;
		}
		while (ssd_poll(ssd, &event)) {
			if (event.kind != SSD_PUT && event.kind != SSD_GET)
				continue;
			if (event.status)
				die(method_names[method], event.status);
			ended++;
		}
		if (ended < count)
			wait_events(bench);
	}
	watch_stop(&watch, bench, method, round, count * size);
}

static uint64_t open_ready(struct bench *bench, const struct ssd_config *config, struct ssd **ret_ssd)
{
	char error_text[256];
	struct ssd_event event = { 0 };
	uint64_t adopted = 0;

	if (ssd_open(config, ret_ssd, error_text, sizeof error_text)) {
		fprintf(stderr, "bench ssd: %s\n", error_text);
		exit(1);
	}
	while (event.kind != SSD_READY)
		if (ssd_poll(*ret_ssd, &event))
			adopted += event.kind == SSD_ADOPTED;
		else
			wait_events(bench);
	return adopted;
}

static void ssd_clear(const char *folder)
{
	char name[600];
	for (uint32_t i = 0; i < 1024; i++) {
		snprintf(name, sizeof name, "%s/segment-%08u.baton", folder, i);
		if (unlink(name) && i > 64)
			break;
	}
	snprintf(name, sizeof name, "%s/lock", folder);
	(void)unlink(name);
	(void)rmdir(folder);
}

static void ssd_round(struct bench *bench, uint32_t size, uint32_t round, struct ssd_stats *ret_stats)
{
	uint32_t slice_bytes[SLICES];
	uint64_t count = bench->round_bytes / size;
	char folder[512];
	struct ssd *ssd;

	snprintf(folder, sizeof folder, "%s/ssd", bench->path);
	for (uint32_t i = 0; i < bench->slices; i++)
		slice_bytes[i] = size / bench->slices;
	struct ssd_config config = { .path = folder, .bytes = bench->round_bytes + count * SSD_ALIGN + 64 * SSD_ALIGN,
				     .slice_bytes = slice_bytes, .slice_count = bench->slices,
				     .queue_depth = bench->depth, .force_threads = bench->threads,
				     .arena = bench->arena, .arena_bytes = ARENA_BYTES,
				     .notify = notify, .notify_context = bench };
	(void)open_ready(bench, &config, &ssd);
	ssd_pass(bench, ssd, size, PUT_NEW, round, 0, count);
	ssd_pass(bench, ssd, size, PUT_OVER, round, count, count);
	/* As many as surely were not evicted: slots are lost to the files' first pages. */
	ssd_pass(bench, ssd, size, GET, round, count + count / 16, count - count / 16);
	ssd_stats(ssd, ret_stats);
	ssd_close(ssd);
	ssd_clear(folder);
}

/* ---- a restart ---- */

static void arena_fill(struct bench *bench, uint32_t size)
{
	uint64_t state = size;

	bench->slices = MIN(SLICES, size / SSD_ALIGN);
	for (uint64_t i = 0; i < ARENA_BYTES; i += sizeof(uint64_t)) {
		uint64_t word = rand_next(&state);
		memcpy(bench->arena + i, &word, sizeof word);
	}
	bench->sums = realloc(bench->sums, ARENA_BYTES / size * bench->slices * sizeof *bench->sums);
	CHECK(bench->sums);
	uint32_t slice = size / bench->slices;
	for (uint64_t i = 0; i < ARENA_BYTES / size * bench->slices; i++)
		bench->sums[i] = hash_slice(bench->arena + i / bench->slices * size + i % bench->slices * slice,
					    slice);
}

/* Blocks of 16 KiB are put, then the folder is opened again and each of them was adopted. */
static void adopt_run(struct bench *bench)
{
	const uint32_t size = 4 * SSD_ALIGN;
	const uint32_t slice_bytes[4] = { SSD_ALIGN, SSD_ALIGN, SSD_ALIGN, SSD_ALIGN };
	uint64_t count = bench->adopt;
	char folder[512];
	struct ssd *ssd;

	snprintf(folder, sizeof folder, "%s/ssd", bench->path);
	struct ssd_config config = { .path = folder, .bytes = (count + 65536) * (size + SSD_ALIGN),
				     .slice_bytes = slice_bytes, .slice_count = 4, .queue_depth = 256,
				     .force_threads = bench->threads, .notify = notify,
				     .notify_context = bench };
	arena_fill(bench, size);
	(void)open_ready(bench, &config, &ssd);
	ssd_pass(bench, ssd, size, PUT_NEW, 0, 0, count);
	ssd_close(ssd);
	struct watch watch = watch_start();
	uint64_t adopted = open_ready(bench, &config, &ssd);
	double seconds = (double)(clock_now_ns() - watch.start_ns) / 1e9;
	printf("restart: %llu of %llu blocks of 16 KiB adopted in %.2f s, %.2f s of processor time\n",
	       (unsigned long long)adopted, (unsigned long long)count, seconds, cpu_s() - watch.cpu_s);
	ssd_close(ssd);
	ssd_clear(folder);
}

/* ---- the table ---- */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(double values[], uint32_t count)
{
	qsort(values, count, sizeof *values, by_value);
	return values[count / 2];
}

static void print_size(struct bench *bench, uint32_t size, FILE *json, bool first)
{
	double plain = 0;
	for (int m = 0; m < METHOD_COUNT; m++) {
		double gb_s = median(bench->gb_s[m], bench->rounds); /* sorted now */
		double cpu = median(bench->cpu_s_gb[m], bench->rounds);
		bool ours = m == PUT_NEW || m == PUT_OVER || m == GET;
		printf("%9u  %-10s  %6.2f  %6.2f-%.2f  %8.3f", size / 1024, method_names[m], gb_s,
		       bench->gb_s[m][0], bench->gb_s[m][bench->rounds - 1], cpu);
		if (ours)
			printf("  %6.2f", gb_s / plain);
		printf("\n");
		plain = gb_s;
		if (json)
			fprintf(json, "%s\n  {\"block_bytes\": %u, \"method\": \"%s\", \"gb_s\": %.4f, "
				"\"gb_s_min\": %.4f, \"gb_s_max\": %.4f, \"cpu_s_per_gb\": %.4f}",
				first && !m ? "" : ",", size, method_names[m], gb_s, bench->gb_s[m][0],
				bench->gb_s[m][bench->rounds - 1], cpu);
	}
}

static int parse(int argc, char **argv, struct bench *bench)
{
	static const struct option options[] = {
		{ "path", required_argument, NULL, 'p' }, { "mib", required_argument, NULL, 'm' },
		{ "block", required_argument, NULL, 'b' }, { "rounds", required_argument, NULL, 'r' },
		{ "depth", required_argument, NULL, 'd' }, { "threads", no_argument, NULL, 't' },
		{ "json", required_argument, NULL, 'j' }, { "adopt", required_argument, NULL, 'a' },
		{ 0 },
	};
	bool sizes_given = false;

	for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
		unsigned long value = optarg ? strtoul(optarg, NULL, 10) : 0;
		switch (option) {
		case 'p': bench->path = optarg; break;
		case 'm': bench->round_bytes = (uint64_t)value * MIB; break;
		case 'b':
			if (!sizes_given)
				bench->size_count = 0;
			sizes_given = true;
			if (bench->size_count < SIZES_MAX && value >= 4 && value <= 65536 &&
			    !(value & (value - 1)))
				bench->sizes[bench->size_count++] = (uint32_t)value * 1024;
			break;
		case 'r': bench->rounds = (uint32_t)value; break;
		case 'd': bench->depth = (uint32_t)value; break;
		case 'a': bench->adopt = value; break;
		case 't': bench->threads = true; break;
		case 'j': bench->json_path = optarg; break;
		default: return -EINVAL;
		}
	}
	if (!bench->path || !bench->size_count || !bench->rounds || bench->rounds > ROUNDS_MAX ||
	    !bench->depth || bench->depth > SSD_QUEUE_DEPTH_MAX || bench->round_bytes < 64 * MIB ||
	    optind != argc) {
		fprintf(stderr, "usage: bench ssd --path FOLDER [--mib PER_PASS (64...)] [--block KIB (a power of "
			"two, several times)] [--rounds N] [--depth N] [--threads] [--adopt BLOCKS] [--json FILE]\n");
		return -EINVAL;
	}
	return 0;
}

int bench_ssd_main(int argc, char **argv)
{
	struct bench bench = { .round_bytes = 512ull * MIB, .rounds = 3, .depth = 32,
			       .sizes = { 65536, 262144, MIB, 4 * MIB }, .size_count = 4 };
	struct ssd_stats stats = { 0 };

	if (parse(argc, argv, &bench))
		return 2;
	log_init("bench", LOG_WARNING);
	bench.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	bench.arena = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (bench.wake < 0 || bench.arena == MAP_FAILED)
		die("memory", -errno);
	(void)mkdir(bench.path, 0700);
	if (bench.adopt) { /* instead of the table */
		adopt_run(&bench);
		free(bench.sums);
		return 0;
	}
	FILE *json = bench.json_path ? fopen(bench.json_path, "w") : NULL;
	if (bench.json_path && !json)
		die(bench.json_path, -errno);
	if (json)
		fprintf(json, "{\"depth\": %u, \"pass_bytes\": %llu, \"rows\": [", bench.depth,
			(unsigned long long)bench.round_bytes);
	printf("block KiB  method        GB/s  range        CPU s/GB   ratio\n");
	for (uint32_t i = 0; i < bench.size_count; i++) {
		arena_fill(&bench, bench.sizes[i]);
		for (uint32_t round = 0; round < bench.rounds; round++) {
			/* Ours first: the plain pass leaves other bytes in the arena, ours checks them. */
			ssd_round(&bench, bench.sizes[i], round, &stats);
			plain_round(&bench, bench.sizes[i], round);
			if (round + 1 < bench.rounds)
				arena_fill(&bench, bench.sizes[i]);
		}
		print_size(&bench, bench.sizes[i], json, i == 0);
	}
	printf("%s, depth %u, direct I/O %s, arena %s\n", stats.uring ? "io_uring" : "threads", bench.depth,
	       stats.direct ? "on" : "refused", stats.arena_registered ? "registered" : "not registered");
	if (json) {
		fprintf(json, "\n], \"uring\": %s}\n", stats.uring ? "true" : "false");
		fclose(json);
	}
	free(bench.sums);
	return 0;
}
