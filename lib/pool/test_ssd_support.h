/* What the tests of the SSD tier share: a folder, an ssd in it, blocks that say who they are. */
#ifndef BATON_POOL_TEST_SSD_SUPPORT_H
#define BATON_POOL_TEST_SSD_SUPPORT_H

#include "base/test_util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/rand.h"
#include "pool/ssd.h"

#define PAGE 4096u
#define BLOCK (4 * PAGE)
#define SLOT (BLOCK + PAGE)
#define BUFFERS 256u

static const uint32_t small_slices[3] = { PAGE, 2 * PAGE, PAGE };

struct box {
	struct ssd *ssd;
	struct ssd_config config;
	int wake;
	char path[128];
	uint8_t *buffers; /* [BUFFERS][BLOCK] */
	/* What the last box_settle() heard. */
	uint32_t count[SSD_ROOM + 1];
	int status; /* of the last SSD_PUT or SSD_GET */
	struct kv_key evicted[4096], adopted[4096];
};

static inline void box_notify(void *context)
{
	const uint64_t one = 1;
	struct box *box = context;
	CHECK(write(box->wake, &one, sizeof one) == sizeof one);
}

static inline struct kv_key key_of(uint64_t number)
{
	struct kv_key key;
	uint64_t state = number * 2 + 1;
	for (int i = 0; i < 2; i++) {
		uint64_t word = rand_next(&state);
		memcpy(key.bytes + 8 * i, &word, 8);
	}
	return key;
}

static inline void block_fill(uint64_t number, uint8_t *block)
{
	uint64_t state = number;
	for (uint32_t i = 0; i < BLOCK; i += 8) {
		uint64_t word = rand_next(&state);
		memcpy(block + i, &word, 8);
	}
}

static inline void block_sums(const uint8_t *block, uint64_t sums[3])
{
	for (int i = 0; i < 3; i++) {
		sums[i] = hash_slice(block, small_slices[i]);
		block += small_slices[i];
	}
}

static inline uint8_t *box_buffer(struct box *box, uint32_t i)
{
	return box->buffers + (size_t)i * BLOCK;
}

/* Where tests put their folders; a real disk, so that O_DIRECT is met. */
static inline void folder_make(char *path, size_t bytes)
{
	const char *base = getenv("BATON_TEST_FOLDER");
	snprintf(path, bytes, "%s/baton-ssd-XXXXXX", base ? base : "/var/tmp");
	assert_non_null(mkdtemp(path));
}

static inline void folder_empty(const char *path)
{
	DIR *folder = opendir(path);
	if (!folder)
		return;
	for (struct dirent *entry; (entry = readdir(folder));)
		if (entry->d_name[0] != '.' && unlinkat(dirfd(folder), entry->d_name, 0))
			(void)unlinkat(dirfd(folder), entry->d_name, AT_REMOVEDIR);
	closedir(folder);
}

static inline void folder_remove(const char *path)
{
	folder_empty(path);
	(void)rmdir(path);
}

static inline uint64_t folder_bytes(const char *path)
{
	uint64_t bytes = 0;
	DIR *folder = opendir(path);
	assert_non_null(folder);
	for (struct dirent *entry; (entry = readdir(folder));) {
		struct stat status;
		if (entry->d_name[0] != '.' && !fstatat(dirfd(folder), entry->d_name, &status, 0))
			bytes += MAX((uint64_t)status.st_blocks * 512, (uint64_t)status.st_size);
	}
	closedir(folder);
	return bytes;
}

static inline void box_new(struct box *box, bool threads)
{
	memset(box, 0, sizeof *box);
	log_init("test", LOG_ERROR);
	folder_make(box->path, sizeof box->path);
	box->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	box->buffers = aligned_alloc(PAGE, (size_t)BUFFERS * BLOCK);
	assert_non_null(box->buffers);
	box->config = (struct ssd_config){ .path = box->path, .bytes = 1 << 20, .slice_bytes = small_slices,
					   .slice_count = 3, .queue_depth = 16,
					   .segment_bytes = PAGE + 8 * SLOT, .force_threads = threads,
					   .notify = box_notify, .notify_context = box };
	memset(box->config.kv_format, 0x42, sizeof box->config.kv_format);
}

static inline bool box_event(struct box *box, struct ssd_event *event)
{
	for (int tries = 0; tries < 3000; tries++) {
		if (ssd_poll(box->ssd, event)) {
			if (event->kind == SSD_EVICTED && box->count[SSD_EVICTED] < 4096)
				box->evicted[box->count[SSD_EVICTED]] = event->key;
			if (event->kind == SSD_ADOPTED && box->count[SSD_ADOPTED] < 4096)
				box->adopted[box->count[SSD_ADOPTED]] = event->key;
			if (event->kind == SSD_PUT || event->kind == SSD_GET)
				box->status = event->status;
			box->count[event->kind]++;
			return true;
		}
		struct pollfd wait = { box->wake, POLLIN, 0 };
		uint64_t count;
		(void)poll(&wait, 1, 10);
		(void)!read(box->wake, &count, sizeof count);
	}
	return false; /* 30 s */
}

static inline void box_wait(struct box *box, enum ssd_event_kind kind)
{
	struct ssd_event event;
	do
		assert_true(box_event(box, &event));
	while (event.kind != kind);
}

static inline void box_open(struct box *box)
{
	char error[256];
	memset(box->count, 0, sizeof box->count);
	if (ssd_open(&box->config, &box->ssd, error, sizeof error))
		fail_msg("%s", error);
	box_wait(box, SSD_READY);
	struct ssd_stats stats;
	ssd_stats(box->ssd, &stats);
	if (box->config.force_threads)
		assert_false(stats.uring);
}

static inline void box_close(struct box *box)
{
	ssd_close(box->ssd);
	box->ssd = NULL;
}

static inline void box_free(struct box *box)
{
	ssd_close(box->ssd);
	folder_remove(box->path);
	close(box->wake);
	free(box->buffers);
}

/* Puts block @number after block @parent (0: none) and waits. Return: ssd_put()'s or the outcome. */
static inline int box_put(struct box *box, uint64_t number, uint64_t parent)
{
	struct kv_key key = key_of(number), before = key_of(parent);
	uint64_t sums[3];
	int error;

	block_fill(number, box->buffers);
	block_sums(box->buffers, sums);
	for (;;) {
		struct ssd_event event;
		error = ssd_put(box->ssd, &key, parent ? &before : NULL, sums, box->buffers, number);
		if (error != -EAGAIN)
			break;
		assert_true(box_event(box, &event));
	}
	if (error)
		return error;
	box_wait(box, SSD_PUT);
	return box->status;
}

/* Gets block @number. Return: 0 and it was checked byte by byte; ssd_get()'s; or the outcome. */
static inline int box_get(struct box *box, uint64_t number)
{
	struct kv_key key = key_of(number);
	uint8_t *target = box_buffer(box, 1), *want = box_buffer(box, 2);

	memset(target, 0xee, BLOCK);
	int error = ssd_get(box->ssd, &key, 0, 3, target, number);
	if (error)
		return error;
	box_wait(box, SSD_GET);
	block_fill(number, want);
	if (!box->status)
		assert_memory_equal(target, want, BLOCK);
	return box->status;
}

static inline bool box_has(struct box *box, uint64_t number)
{
	struct kv_key key = key_of(number);
	return ssd_has(box->ssd, &key);
}

static inline struct ssd_stats box_stats(struct box *box)
{
	struct ssd_stats stats;
	ssd_stats(box->ssd, &stats);
	return stats;
}

#endif
