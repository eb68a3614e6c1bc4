/* The loop thread's side of the SSD tier: the index, the slots, and what is asked of the disk. */
#include "pool/ssd_internal.h"

#include <errno.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"

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

static void command(struct ssd *ssd, struct ssd__operation *operation)
{
	CHECK(ring_push(&ssd->commands, &operation->message)); /* counted: see ssd_internal.h */
	ssd__wake(ssd);
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
	ssd__wake(ssd);
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
