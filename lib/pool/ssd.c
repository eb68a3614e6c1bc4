/* The loop thread's side of the SSD tier: the index, the slots, and what is asked of the disk. */
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
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"

#define QUEUE_DEPTH_DEFAULT 64
#define SEGMENT_BYTES_DEFAULT (UINT64_C(128) << 20)
#define SEGMENTS_WANTED_MAX 512 /* each holds a descriptor open */
#define BLOCKS_MAX (1u << 30)
/* So many failed I/Os on end and the disk is left alone: for a second, then twice as long... */
#define ERRORS_IN_ROW_MAX 8
#define PAUSE_MIN_NS NS_PER_S
#define PAUSE_MAX_NS (60 * NS_PER_S)
#define GROW_AGAIN_NS (10 * NS_PER_S) /* after the folder could not take another segment */

static void check_loop(struct ssd *ssd)
{
	if (!ssd->loop_known) {
		ssd->loop = pthread_self();
		ssd->loop_known = true;
	}
	CHECK(pthread_equal(ssd->loop, pthread_self()));
}

static void wake(struct ssd *ssd)
{
	const uint64_t one = 1;
	if (!atomic_exchange(&ssd->wake_sent, true))
		CHECK(write(ssd->wake_fd, &one, sizeof one) == sizeof one);
}

static void command(struct ssd *ssd, struct ssd__operation *operation)
{
	CHECK(ring_push(&ssd->commands, &operation->message)); /* counted: see ssd_internal.h */
	wake(ssd);
}

/* ---- open and close ---- */

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
		wake(ssd);
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

/* ---- slots ---- */

static void slot_free(struct ssd *ssd, struct ssd__slot place, bool dirty)
{
	CHECK(ssd->free_count < ssd->free_capacity);
	uint32_t at = (ssd->free_head + ssd->free_count++) % ssd->free_capacity;
	ssd->free_slots[at] = (uint64_t)place.segment << 32 | (uint64_t)place.slot << 1 | dirty;
}

static struct ssd__slot slot_take(struct ssd *ssd, bool *ret_dirty)
{
	uint64_t packed = ssd->free_slots[ssd->free_head];

	CHECK(ssd->free_count);
	ssd->free_head = (ssd->free_head + 1) % ssd->free_capacity;
	ssd->free_count--;
	*ret_dirty = packed & 1;
	return (struct ssd__slot){ (uint32_t)(packed >> 32), (uint32_t)packed >> 1 };
}

static void grow_maybe(struct ssd *ssd)
{
	if (ssd->growing || ssd->at_bound || !ssd->scan_done || ssd->free_count >= ssd->depth ||
	    (ssd->grow_after_ns && clock_now_ns() < ssd->grow_after_ns))
		return;
	ssd->growing = true;
	command(ssd, &ssd->grow);
}

static void grow_ended(struct ssd *ssd)
{
	const struct ssd__operation *grow = &ssd->grow;

	ssd->growing = false;
	ssd->room = ssd->room || ssd->starved;
	ssd->grow_after_ns = 0;
	if (!grow->status) {
		for (uint32_t i = 0; i < grow->grown_slots; i++)
			slot_free(ssd, (struct ssd__slot){ grow->place.segment, i }, false);
		ssd->stats.grow_error = 0;
		return;
	}
	if (grow->status == -EDQUOT) {
		ssd->at_bound = true;
		return;
	}
	ssd->grow_after_ns = clock_now_ns() + GROW_AGAIN_NS;
	ssd->stats.grow_failures++;
	if (ssd->stats.grow_error != grow->status)
		log_warning("ssd %s: cannot make another segment: %s; going on with %u",
			    ssd->config.path, err_text(grow->status),
			    atomic_load(&ssd->counters.segments));
	ssd->stats.grow_error = grow->status;
}

/* ---- a failing disk ---- */

static bool ailing(const struct ssd *ssd)
{
	return ssd->pause_until_ns && clock_now_ns() < ssd->pause_until_ns;
}

static void outcome_count(struct ssd *ssd, int status)
{
	if (!status || status == BATON_ECHECKSUM) {
		if (ssd->pause_ns)
			log_info("ssd %s: the disk answers again", ssd->config.path);
		ssd->errors_in_row = 0;
		ssd->pause_ns = ssd->pause_until_ns = 0;
		return;
	}
	if (status == -ENOSPC || ++ssd->errors_in_row < ERRORS_IN_ROW_MAX || ailing(ssd))
		return;
	/* One more failure after the pause lengthens it: errors_in_row stays where it is. */
	ssd->pause_ns = ssd->pause_ns ? MIN(2 * ssd->pause_ns, PAUSE_MAX_NS) : PAUSE_MIN_NS;
	ssd->pause_until_ns = clock_now_ns() + ssd->pause_ns;
	log_warning("ssd %s: %u failures on end, the last: %s; leaving it alone for %llu s",
		    ssd->config.path, ssd->errors_in_row, err_text(status),
		    (unsigned long long)(ssd->pause_ns / NS_PER_S));
}

/* ---- put ---- */

static struct ssd__operation *operation_take(struct ssd *ssd, int kind, uint32_t entry)
{
	struct ssd__operation *operation =
		list_entry(ssd->operations_free.next, struct ssd__operation, link);

	CHECK(!list_empty(&ssd->operations_free));
	list_remove(&operation->link);
	operation->kind = kind;
	operation->entry = entry;
	if (kind == OPERATION_PUT)
		ssd->stats.puts_open++;
	if (kind == OPERATION_GET)
		ssd->stats.gets_open++;
	ssd->stats.open_max_seen =
		MAX(ssd->stats.open_max_seen, ssd->stats.puts_open + ssd->stats.gets_open);
	return operation;
}

static void operation_free(struct ssd *ssd, struct ssd__operation *operation)
{
	list_push_back(&ssd->operations_free, &operation->link);
}

static int evict(struct ssd *ssd)
{
	uint32_t coldest = ssd__index_coldest(&ssd->index);

	if (coldest == SSD_NONE)
		return -EBUSY;
	struct ssd__slot place = ssd->index.entries[coldest].place;
	uint32_t at = (ssd->evicted_head + ssd->evicted_count++) % ssd->depth;
	ssd->evicted[at] = (struct ssd_event){ .kind = SSD_EVICTED,
					       .key = ssd->index.entries[coldest].key };
	ssd__index_remove(&ssd->index, coldest);
	slot_free(ssd, place, true);
	ssd->stats.evictions++;
	return 0;
}

static int put_again(struct ssd *ssd)
{
	ssd->stats.puts_again++;
	ssd->starved = true;
	return -EAGAIN;
}

/* Why this put cannot be taken now, or 0. */
static int put_refusal(struct ssd *ssd, const struct kv_key *key)
{
	uint32_t at = ssd__index_find(&ssd->index, key);

	if (at != SSD_NONE && ssd->index.entries[at].state != ENTRY_ABSENT) {
		if (ssd->index.entries[at].doomed)
			return put_again(ssd);
		ssd__index_touch(&ssd->index, at, ssd->tick++);
		return -EEXIST;
	}
	if (ailing(ssd)) {
		ssd->stats.puts_ailing++;
		return -EIO;
	}
	if (!ssd->ready || ssd->stats.puts_open >= ssd->puts_max ||
	    list_empty(&ssd->operations_free) || ssd->evicted_count == ssd->depth)
		return put_again(ssd);
	return 0;
}

int ssd_put(struct ssd *ssd, const struct kv_key *key, const struct kv_key *parent,
	    const uint64_t sums[], const void *block, uint64_t user)
{
	check_loop(ssd);
	if ((uintptr_t)block % SSD_ALIGN)
		return -EINVAL;
	int error = put_refusal(ssd, key);
	if (error)
		return error;
	grow_maybe(ssd);
	if (!ssd->free_count && (ssd->growing || ssd->clears_open))
		return put_again(ssd); /* a slot is on its way, nothing has to give way to it */
	/* First the entry, so that the block's parent does not give way to it. Nothing grows past the
	 * index: with every slot taken an eviction comes first. */
	if (!ssd->free_count && ssd__index_coldest(&ssd->index) == SSD_NONE) {
		ssd->stats.puts_busy++;
		return -EBUSY;
	}
	uint32_t entry = ssd__index_add(&ssd->index, key, parent, ENTRY_WRITING, ssd->tick);
	if (!ssd->free_count && evict(ssd)) {
		ssd__index_remove(&ssd->index, entry);
		ssd->stats.puts_busy++;
		return -EBUSY;
	}
	struct ssd__operation *operation = operation_take(ssd, OPERATION_PUT, entry);
	operation->user = user;
	operation->key = *key;
	operation->block = (void *)block;
	operation->place = slot_take(ssd, &operation->dirty);
	ssd->index.entries[entry].place = operation->place;
	ssd__slot_page_fill(ssd, key, parent, sums, ssd->tick++, operation->page);
	command(ssd, operation);
	return 0;
}

/* ---- get, drop ---- */

int ssd_get(struct ssd *ssd, const struct kv_key *key, uint32_t first_slice, uint32_t slice_count,
	    void *target, uint64_t user)
{
	check_loop(ssd);
	if ((uintptr_t)target % SSD_ALIGN || !slice_count || first_slice >= ssd->shape.slice_count ||
	    slice_count > ssd->shape.slice_count - first_slice)
		return -EINVAL;
	uint32_t entry = ssd__index_have(&ssd->index, key);
	if (entry == SSD_NONE || ailing(ssd)) {
		ssd->stats.misses++;
		return -ENOENT;
	}
	if (list_empty(&ssd->operations_free)) {
		ssd->stats.gets_again++;
		ssd->starved = true;
		return -EAGAIN;
	}
	struct ssd__operation *operation = operation_take(ssd, OPERATION_GET, entry);
	operation->user = user;
	operation->key = *key;
	operation->block = target;
	operation->first_slice = first_slice;
	operation->slice_count = slice_count;
	operation->place = ssd->index.entries[entry].place;
	operation->dirty = true;
	ssd__index_pin(&ssd->index, entry);
	ssd__index_touch(&ssd->index, entry, ssd->tick++);
	command(ssd, operation);
	return 0;
}

bool ssd_has(const struct ssd *ssd, const struct kv_key *key)
{
	return ssd__index_have(&ssd->index, key) != SSD_NONE;
}

void ssd_touch(struct ssd *ssd, const struct kv_key *key)
{
	check_loop(ssd);
	uint32_t entry = ssd__index_have(&ssd->index, key);
	if (entry != SSD_NONE)
		ssd__index_touch(&ssd->index, entry, ssd->tick++);
}

/* Its header is cleared now when an operation is free for that, else when the slot is used again:
 * until then a restart would find the block. */
static void entry_drop(struct ssd *ssd, uint32_t entry)
{
	struct ssd__slot place = ssd->index.entries[entry].place;

	ssd__index_remove(&ssd->index, entry);
	if (list_empty(&ssd->operations_free)) {
		slot_free(ssd, place, true);
		return;
	}
	struct ssd__operation *operation = operation_take(ssd, OPERATION_CLEAR, SSD_NONE);
	operation->place = place;
	operation->dirty = true;
	ssd->clears_open++;
	command(ssd, operation);
}

bool ssd_drop(struct ssd *ssd, const struct kv_key *key)
{
	check_loop(ssd);
	uint32_t entry = ssd__index_have(&ssd->index, key);
	if (entry == SSD_NONE)
		return false;
	if (ssd->index.entries[entry].pins)
		ssd__index_doom(&ssd->index, entry);
	else
		entry_drop(ssd, entry);
	return true;
}

bool ssd_pin(struct ssd *ssd, const struct kv_key *key)
{
	check_loop(ssd);
	uint32_t entry = ssd__index_have(&ssd->index, key);
	if (entry != SSD_NONE)
		ssd__index_pin(&ssd->index, entry);
	return entry != SSD_NONE;
}

static void entry_unpin(struct ssd *ssd, uint32_t entry)
{
	ssd__index_unpin(&ssd->index, entry);
	if (!ssd->index.entries[entry].pins && ssd->index.entries[entry].doomed)
		entry_drop(ssd, entry);
}

void ssd_unpin(struct ssd *ssd, const struct kv_key *key)
{
	check_loop(ssd);
	uint32_t entry = ssd__index_find(&ssd->index, key);
	CHECK(entry != SSD_NONE);
	entry_unpin(ssd, entry);
}

/* ---- events ---- */

static void put_ended(struct ssd *ssd, const struct ssd__operation *operation)
{
	ssd->stats.puts_open--;
	outcome_count(ssd, operation->status);
	if (!operation->status) {
		ssd->stats.puts++;
		ssd->stats.put_bytes += ssd->shape.block_bytes;
		ssd__index_written(&ssd->index, operation->entry);
		return;
	}
	ssd->stats.puts_failed++;
	ssd__index_remove(&ssd->index, operation->entry);
	/* A slot that cannot be written would be the next to be tried, for ever. */
	if (operation->status == -ENOSPC)
		slot_free(ssd, operation->place, operation->header_written);
	else
		ssd->stats.slots_retired++;
}

static void get_ended(struct ssd *ssd, const struct ssd__operation *operation)
{
	ssd->stats.gets_open--;
	outcome_count(ssd, operation->status);
	if (!operation->status) {
		ssd->stats.gets++;
		ssd->stats.get_bytes += ssd->slice_offsets[operation->first_slice + operation->slice_count] -
					ssd->slice_offsets[operation->first_slice];
	} else if (!ssd->index.entries[operation->entry].doomed) {
		ssd__index_doom(&ssd->index, operation->entry);
	}
	ssd->stats.corrupt += operation->status == BATON_ECHECKSUM;
	entry_unpin(ssd, operation->entry);
}

static void clear_ended(struct ssd *ssd, const struct ssd__operation *operation)
{
	ssd->clears_open--;
	ssd->room = ssd->room || ssd->starved; /* nobody hears of this, but it held an operation */
	if (operation->status && operation->status != -ENOSPC)
		ssd->stats.slots_retired++;
	else
		slot_free(ssd, operation->place, operation->header_written);
}

/* Return: whether the caller hears of it. */
static bool operation_ended(struct ssd *ssd, struct ssd__operation *operation,
			    struct ssd_event *ret_event)
{
	bool heard = operation->kind == OPERATION_PUT || operation->kind == OPERATION_GET;

	*ret_event = (struct ssd_event){ .kind = operation->kind == OPERATION_PUT ? SSD_PUT : SSD_GET,
					 .status = operation->status, .user = operation->user,
					 .key = operation->key };
	if (operation->kind == OPERATION_GROW) {
		grow_ended(ssd);
		return false;
	}
	/* First: what ends may need one to clear a header. */
	operation_free(ssd, operation);
	if (operation->kind == OPERATION_PUT)
		put_ended(ssd, operation);
	else if (operation->kind == OPERATION_GET)
		get_ended(ssd, operation);
	else
		clear_ended(ssd, operation);
	return heard;
}

/* One slot of the scan. Return: whether a block was adopted. */
static bool adopt(struct ssd *ssd, const struct ssd__record *record, struct ssd_event *ret_event)
{
	static const struct kv_key none;
	uint32_t entry = ssd__index_find(&ssd->index, &record->key);

	ssd->tick = MAX(ssd->tick, record->generation + 1);
	if (!record->adopted ||
	    (entry != SSD_NONE && ssd->index.entries[entry].state != ENTRY_ABSENT)) {
		slot_free(ssd, record->place, record->dirty);
		return false;
	}
	entry = ssd__index_add(&ssd->index, &record->key,
			       kv_key_equal(&record->parent, &none) ? NULL : &record->parent,
			       ENTRY_PRESENT, record->generation);
	ssd->index.entries[entry].place = record->place;
	ssd->stats.adopted++;
	*ret_event = (struct ssd_event){ .kind = SSD_ADOPTED, .key = record->key,
					 .parent = record->parent };
	return true;
}

static bool batch_next(struct ssd *ssd, struct ssd_event *ret_event)
{
	struct ssd__batch *batch = ssd->batch;

	while (ssd->batch_at < batch->count)
		if (adopt(ssd, &batch->records[ssd->batch_at++], ret_event))
			return true;
	ssd->scan_done = batch->last;
	ssd->batch = NULL;
	atomic_fetch_add(&ssd->batches_free, 1);
	wake(ssd);
	if (ssd->scan_done)
		grow_maybe(ssd);
	return false;
}

/* Events that do not come from the disk thread. */
static bool own_event(struct ssd *ssd, struct ssd_event *ret_event)
{
	if (ssd->evicted_count) {
		*ret_event = ssd->evicted[ssd->evicted_head];
		ssd->evicted_head = (ssd->evicted_head + 1) % ssd->depth;
		ssd->evicted_count--;
		return true;
	}
	if (ssd->scan_done && !ssd->ready && !ssd->growing) {
		ssd->ready = true;
		ssd->room = false;
		*ret_event = (struct ssd_event){ .kind = SSD_READY };
		return true;
	}
	if (ssd->room) {
		ssd->room = ssd->starved = false;
		*ret_event = (struct ssd_event){ .kind = SSD_ROOM };
		return true;
	}
	return false;
}

static bool next_event(struct ssd *ssd, struct ssd_event *ret_event)
{
	struct ssd__message *message;

	for (;;) {
		if (ssd->batch && batch_next(ssd, ret_event))
			return true;
		if (own_event(ssd, ret_event))
			return true;
		message = ring_pop(&ssd->messages);
		if (!message)
			return false;
		if (message->kind == MESSAGE_BATCH) {
			ssd->batch = container_of(message, struct ssd__batch, message);
			ssd->batch_at = 0;
		} else if (operation_ended(ssd, container_of(message, struct ssd__operation, message),
					   ret_event)) {
			return true;
		}
	}
}

bool ssd_poll(struct ssd *ssd, struct ssd_event *ret_event)
{
	check_loop(ssd);
	if (next_event(ssd, ret_event))
		return true;
	/* Whatever was posted before this is found below; what comes after it notifies. */
	(void)atomic_exchange(&ssd->notify_sent, false);
	return next_event(ssd, ret_event);
}

void ssd_stats(const struct ssd *ssd, struct ssd_stats *ret_stats)
{
	*ret_stats = ssd->stats;
	ret_stats->blocks = ssd->index.present_count;
	ret_stats->slots_free = ssd->free_count;
	ret_stats->bytes = atomic_load(&ssd->counters.bytes);
	ret_stats->bytes_max = ssd->config.bytes;
	ret_stats->segments = atomic_load(&ssd->counters.segments);
	ret_stats->segments_foreign = atomic_load(&ssd->counters.segments_foreign);
	ret_stats->read_errors = atomic_load(&ssd->counters.read_errors);
	ret_stats->write_errors = atomic_load(&ssd->counters.write_errors);
	ret_stats->headers_damaged = atomic_load(&ssd->counters.headers_damaged);
	ret_stats->segments_removed = atomic_load(&ssd->counters.segments_removed);
	ret_stats->scanning = !ssd->scan_done;
	ret_stats->ailing = ailing(ssd);
	ret_stats->uring = atomic_load(&ssd->counters.uring);
	ret_stats->direct = atomic_load(&ssd->counters.direct);
	ret_stats->arena_registered = atomic_load(&ssd->counters.arena_registered);
}

void ssd_check(const struct ssd *ssd)
{
	ssd__index_check(&ssd->index);
}
