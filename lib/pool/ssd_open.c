/* The beginning and the end of an SSD tier: the loop thread's side. */
#include "pool/ssd_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/check.h"
#include "base/err.h"

#define QUEUE_DEPTH_DEFAULT 64
#define SEGMENT_BYTES_DEFAULT (UINT64_C(128) << 20)
#define SEGMENTS_WANTED_MAX 512 /* each holds a descriptor open */
#define BLOCKS_MAX (1u << 30)

void ssd__wake(struct ssd *ssd)
{
	const uint64_t one = 1;
	if (!atomic_exchange(&ssd->wake_sent, true))
		CHECK(write(ssd->wake_fd, &one, sizeof one) == sizeof one);
}

static uint32_t round_up_power(uint32_t count)
{
	uint32_t power = 1;
	while (power < count)
		power *= 2;
	return power;
}

static int config_check(const struct ssd_config *config, const char **ret_problem)
{
	uint64_t block_bytes = 0;

	*ret_problem = "the shape of a block is not one that can be kept";
	if (!config->slice_count || config->slice_count > SSD_SLICES_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < config->slice_count; i++) {
		if (!config->slice_bytes[i] || config->slice_bytes[i] % SSD_ALIGN)
			return -EINVAL;
		block_bytes += config->slice_bytes[i];
	}
	if (block_bytes > SSD_BLOCK_BYTES_MAX)
		return -EINVAL;
	*ret_problem = "the space does not hold one block and its two header pages";
	if (config->bytes < block_bytes + 2 * SSD_PAGE)
		return -EINVAL;
	*ret_problem = "the queue depth is out of bounds";
	if (config->queue_depth > SSD_QUEUE_DEPTH_MAX)
		return -EINVAL;
	*ret_problem = "no path, or more blocks than can be counted";
	if (!config->path || !*config->path || config->bytes / block_bytes > BLOCKS_MAX)
		return -EINVAL;
	return 0;
}

static void shape_init(struct ssd *ssd)
{
	uint32_t *slice_bytes = (uint32_t *)ssd->config.slice_bytes;

	for (uint32_t i = 0; i < ssd->config.slice_count; i++)
		ssd->slice_offsets[i + 1] = ssd->slice_offsets[i] + slice_bytes[i];
	memcpy(ssd->shape.kv_format, ssd->config.kv_format, sizeof ssd->shape.kv_format);
	ssd->shape.block_bytes = ssd->slice_offsets[ssd->config.slice_count];
	ssd->shape.slice_count = ssd->config.slice_count;
	ssd->shape.slices_hash =
		XXH3_64bits(slice_bytes, ssd->config.slice_count * sizeof *slice_bytes);
	ssd->segment_bytes = ssd->config.segment_bytes ? ssd->config.segment_bytes : SEGMENT_BYTES_DEFAULT;
	while (!ssd->config.segment_bytes &&
	       ssd->config.bytes / ssd->segment_bytes > SEGMENTS_WANTED_MAX)
		ssd->segment_bytes *= 2;
	ssd->segment_bytes = MAX(ssd->segment_bytes, ssd->shape.block_bytes + 2 * SSD_PAGE);
}

static int operations_init(struct ssd *ssd)
{
	ssd->pages_bytes = (size_t)(2 + ssd->depth) * SSD_PAGE;
	ssd->pages = aligned_alloc(SSD_PAGE, ssd->pages_bytes);
	ssd->operations = calloc(ssd->depth, sizeof *ssd->operations);
	ssd->batches = calloc(SSD_BATCHES, sizeof *ssd->batches);
	if (!ssd->pages || !ssd->operations || !ssd->batches)
		return -ENOMEM;
	memset(ssd->pages, 0, ssd->pages_bytes);
	ssd->grow.message.kind = MESSAGE_OPERATION;
	ssd->grow.kind = OPERATION_GROW;
	ssd->grow.page = (struct ssd__slot_page *)(ssd->pages + SSD_PAGE);
	for (uint32_t i = 0; i < ssd->depth; i++) {
		struct ssd__operation *operation = &ssd->operations[i];
		operation->message.kind = MESSAGE_OPERATION;
		operation->page = (struct ssd__slot_page *)(ssd->pages + (size_t)(2 + i) * SSD_PAGE);
		list_push_back(&ssd->operations_free, &operation->link);
	}
	for (uint32_t i = 0; i < SSD_BATCHES; i++)
		ssd->batches[i].message.kind = MESSAGE_BATCH;
	atomic_store(&ssd->batches_free, SSD_BATCHES);
	return 0;
}

static int state_init(struct ssd *ssd, const struct ssd_config *config)
{
	uint32_t *slice_bytes = malloc(config->slice_count * sizeof *slice_bytes);

	ssd->config = *config;
	ssd->config.slice_bytes = slice_bytes;
	ssd->config.path = strdup(config->path);
	ssd->slice_offsets = calloc(config->slice_count + 1, sizeof *ssd->slice_offsets);
	if (!slice_bytes || !ssd->config.path || !ssd->slice_offsets)
		return -ENOMEM;
	memcpy(slice_bytes, config->slice_bytes, config->slice_count * sizeof *slice_bytes);
	shape_init(ssd);
	ssd->depth = config->queue_depth ? config->queue_depth : QUEUE_DEPTH_DEFAULT;
	ssd->puts_max = MAX(ssd->depth * 3 / 4, 1);
	ssd->tick = 1;
	atomic_store(&ssd->counters.direct, true);
	list_init(&ssd->operations_free);
	ssd_set_faults(ssd, &config->faults);
	/* As many slots as the bound holds if every page but the slots' own were free. */
	ssd->free_capacity = (uint32_t)(config->bytes / (ssd->shape.block_bytes + SSD_PAGE)) + 1;
	ssd->free_slots = malloc(ssd->free_capacity * sizeof *ssd->free_slots);
	ssd->evicted = malloc(ssd->depth * sizeof *ssd->evicted);
	if (!ssd->free_slots || !ssd->evicted)
		return -ENOMEM;
	int error = ssd__index_init(&ssd->index, ssd->free_capacity);
	if (!error)
		error = operations_init(ssd);
	if (!error)
		error = ring_init(&ssd->commands, round_up_power(ssd->depth + 1));
	if (!error)
		error = ring_init(&ssd->messages, round_up_power(ssd->depth + 1 + SSD_BATCHES));
	return error;
}

static int folder_take(struct ssd *ssd)
{
	if (mkdir(ssd->config.path, 0700) && errno != EEXIST)
		return -errno;
	ssd->folder_fd = open(ssd->config.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (ssd->folder_fd < 0)
		return -errno;
	ssd->lock_fd = openat(ssd->folder_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (ssd->lock_fd < 0)
		return -errno;
	if (flock(ssd->lock_fd, LOCK_EX | LOCK_NB))
		return errno == EWOULDBLOCK ? -EBUSY : -errno;
	return 0;
}

static int thread_start(struct ssd *ssd)
{
	sigset_t all, before;

	ssd->wake_fd = eventfd(0, EFD_CLOEXEC);
	if (ssd->wake_fd < 0)
		return -errno;
	/* Signals are the loop thread's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = -pthread_create(&ssd->thread, NULL, ssd__thread_main, ssd);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	ssd->started = !error;
	return error;
}

static int explain(char *ret_error, size_t error_bytes, int error, const char *path, const char *what)
{
	snprintf(ret_error, error_bytes, "ssd %s: %s: %s", path ? path : "", what, err_text(error));
	return error;
}

int ssd_open(const struct ssd_config *config, struct ssd **ret_ssd, char *ret_error,
	     size_t error_bytes)
{
	const char *problem;
	int error = config_check(config, &problem);

	if (error)
		return explain(ret_error, error_bytes, error, config->path, problem);
	/* Aligned for the rings' two ends, which keep apart by cache lines. */
	struct ssd *ssd = aligned_alloc(64, ALIGN_UP(sizeof *ssd, 64));
	if (!ssd)
		return explain(ret_error, error_bytes, -ENOMEM, config->path, "no memory");
	memset(ssd, 0, sizeof *ssd);
	ssd->folder_fd = ssd->lock_fd = ssd->wake_fd = -1;
	problem = "no memory";
	error = state_init(ssd, config);
	if (!error) {
		error = folder_take(ssd);
		problem = error == -EBUSY ? "another process has this folder" : "cannot take the folder";
	}
	if (!error) {
		error = thread_start(ssd);
		problem = "cannot start its thread";
	}
	if (error) {
		explain(ret_error, error_bytes, error, config->path, problem);
		ssd_close(ssd);
		return error;
	}
	*ret_ssd = ssd;
	return 0;
}

static void close_if_open(int fd)
{
	if (fd >= 0)
		close(fd);
}

void ssd_close(struct ssd *ssd)
{
	if (!ssd)
		return;
	if (ssd->started) {
		atomic_store(&ssd->stop, true);
		ssd__wake(ssd);
		pthread_join(ssd->thread, NULL);
	}
	for (uint32_t i = 0; i < ssd->segment_count; i++)
		close_if_open(ssd->segments[i].fd);
	close_if_open(ssd->lock_fd);
	close_if_open(ssd->folder_fd);
	close_if_open(ssd->wake_fd);
	ring_fini(&ssd->commands);
	ring_fini(&ssd->messages);
	ssd__index_fini(&ssd->index);
	free(ssd->segments);
	free(ssd->foreign);
	free(ssd->records);
	free(ssd->batches);
	free(ssd->operations);
	free(ssd->pages);
	free(ssd->free_slots);
	free(ssd->evicted);
	free(ssd->slice_offsets);
	free((void *)ssd->config.slice_bytes);
	free((void *)ssd->config.path);
	free(ssd);
}

uint64_t ssd_block_bytes(const struct ssd *ssd)
{
	return ssd->shape.block_bytes;
}

void ssd_set_faults(struct ssd *ssd, const struct ssd_faults *faults)
{
	atomic_store(&ssd->faults.error, faults->error);
	atomic_store(&ssd->faults.read_fail_every, faults->read_fail_every);
	atomic_store(&ssd->faults.write_fail_every, faults->write_fail_every);
	atomic_store(&ssd->faults.grow_fail_every, faults->grow_fail_every);
	atomic_store(&ssd->faults.flip_every, faults->flip_every);
	atomic_store(&ssd->faults.short_every, faults->short_every);
	atomic_store(&ssd->faults.delay_us, faults->delay_us);
	atomic_store(&ssd->faults.fail_nth, faults->fail_nth);
}
