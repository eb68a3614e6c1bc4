/* The disk thread: takes operations through their steps, verifies, hands over what was scanned. */
#include "pool/ssd_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/log.h"

/* ---- messages to the loop ---- */

static void post(struct ssd *ssd, struct ssd__message *message)
{
	CHECK(ring_push(&ssd->messages, message)); /* counted: see ssd_internal.h */
	ssd->posted = true;
}

static void notify_turn(struct ssd *ssd)
{
	if (!ssd->posted)
		return;
	ssd->posted = false;
	if (!atomic_exchange(&ssd->notify_sent, true) && ssd->config.notify)
		ssd->config.notify(ssd->config.notify_context);
}

void ssd__operation_end(struct ssd *ssd, struct ssd__operation *operation, int status)
{
	operation->status = status;
	ssd->operations_open--;
	post(ssd, &operation->message);
}

/* ---- I/O, with the faults that tests inject ---- */

static bool nth(uint64_t count, uint32_t every)
{
	return every && count % every == 0;
}

static int fault_of(struct ssd *ssd, const struct ssd__io *io)
{
	struct ssd__faults *faults = &ssd->faults;
	uint32_t error = atomic_load(&faults->error);
	bool fail = false;

	switch (io->kind) {
	case IO_READ:
		fail = nth(++ssd->reads, atomic_load(&faults->read_fail_every));
		break;
	case IO_WRITE:
		fail = nth(++ssd->writes, atomic_load(&faults->write_fail_every));
		break;
	case IO_FALLOCATE:
		fail = nth(++ssd->grows, atomic_load(&faults->grow_fail_every));
		break;
	}
	uint32_t left = atomic_load(&faults->fail_nth);
	if (left) {
		atomic_store(&faults->fail_nth, left - 1);
		fail = fail || left == 1;
	}
	return fail ? -(int)(error ? error : EIO) : 0;
}

static void io_end(struct ssd *ssd, struct ssd__io *io, int result)
{
	io->result = result;
	ssd->turn_bytes += io->done;
	if (result && io->kind == IO_READ && result != -ENODATA)
		ssd__count(&ssd->counters.read_errors, 1);
	if (result && io->kind == IO_WRITE)
		ssd__count(&ssd->counters.write_errors, 1);
	if (!result && io->kind == IO_READ && nth(ssd->reads, atomic_load(&ssd->faults.flip_every)))
		((uint8_t *)io->buffer)[(ssd->reads * 7919) % io->bytes] ^= 1 << ssd->reads % 8;
	io->finish(ssd, io);
}

void ssd__io_start(struct ssd *ssd, struct ssd__io *io)
{
	uint32_t delay_us = atomic_load(&ssd->faults.delay_us);
	int fault = fault_of(ssd, io);

	list_init(&io->link);
	io->done = 0;
	io->result = 0;
	io->cut = nth(++ssd->io_count, atomic_load(&ssd->faults.short_every));
	if (delay_us) {
		const struct timespec delay = { delay_us / 1000000, delay_us % 1000000 * 1000 };
		nanosleep(&delay, NULL);
	}
	if (fault)
		io_end(ssd, io, fault);
	else
		ssd->engine->submit(ssd, io);
}

void ssd__io_step(struct ssd *ssd, struct ssd__io *io, int64_t count)
{
	if (count == -EINTR || count == -EAGAIN) {
		ssd->engine->submit(ssd, io);
		return;
	}
	io->cut = false;
	if (count < 0 || io->kind == IO_FALLOCATE) {
		io_end(ssd, io, (int)count);
		return;
	}
	if (!count) {
		io_end(ssd, io, io->kind == IO_READ ? -ENODATA : -EIO);
		return;
	}
	io->done += (uint64_t)count;
	if (io->done >= io->bytes)
		io_end(ssd, io, 0);
	else if (io->done % SSD_PAGE)
		/* Direct I/O goes on from a page's border only; a file cut inside of one ends here. */
		io_end(ssd, io, io->kind == IO_READ ? -ENODATA : -EIO);
	else
		ssd->engine->submit(ssd, io);
}

/* ---- operations ---- */

static void io_prepare(struct ssd *ssd, struct ssd__operation *operation, struct ssd__io *io, int kind,
		       void *buffer, uint64_t offset, uint64_t bytes,
		       void (*finish)(struct ssd *ssd, struct ssd__io *io))
{
	*io = (struct ssd__io){ .kind = kind, .segment = operation->place.segment,
				.fd = ssd->segments[operation->place.segment].fd, .buffer = buffer,
				.offset = offset, .bytes = bytes, .finish = finish,
				.owner = operation };
}

static void put_step(struct ssd *ssd, struct ssd__operation *operation);

static void put_stepped(struct ssd *ssd, struct ssd__io *io)
{
	struct ssd__operation *operation = io->owner;

	if (io->result) {
		ssd__operation_end(ssd, operation, io->result);
		return;
	}
	if (operation->step == STEP_CLEAR)
		operation->header_written = false;
	if (operation->step == STEP_HEADER || operation->kind == OPERATION_CLEAR) {
		ssd__operation_end(ssd, operation, 0);
		return;
	}
	operation->step++;
	put_step(ssd, operation);
}

/* S2: the old header is gone before the first new byte, the new one comes after the last. */
static void put_step(struct ssd *ssd, struct ssd__operation *operation)
{
	const struct ssd__slot place = operation->place;
	struct ssd__io *io = &operation->io[0];

	switch (operation->step) {
	case STEP_CLEAR:
		io_prepare(ssd, operation, io, IO_WRITE, ssd__zero_page(ssd),
			   ssd__header_offset(place.slot), SSD_PAGE, put_stepped);
		break;
	case STEP_DATA:
		io_prepare(ssd, operation, io, IO_WRITE, operation->block,
			   ssd__data_offset(ssd, ssd->segments[place.segment].slot_count, place.slot),
			   ssd->shape.block_bytes, put_stepped);
		break;
	case STEP_HEADER:
		operation->header_written = true;
		ssd__slot_page_seal(ssd, place, operation->page);
		io_prepare(ssd, operation, io, IO_WRITE, operation->page,
			   ssd__header_offset(place.slot), SSD_PAGE, put_stepped);
		break;
	}
	ssd__io_start(ssd, io);
}

/* S1 */
static int get_verify(const struct ssd *ssd, const struct ssd__operation *operation)
{
	const struct ssd__slot_page *page = operation->page;
	const uint8_t *at = operation->block;

	if (ssd__slot_page_judge(ssd, ssd->segments[operation->place.segment].number,
				 operation->place.slot, page) != PAGE_OURS ||
	    !kv_key_equal(&page->key, &operation->key))
		return BATON_ECHECKSUM;
	for (uint32_t i = 0; i < operation->slice_count; i++) {
		uint32_t slice = operation->first_slice + i;
		if (hash_slice(at, ssd->config.slice_bytes[slice]) != page->sums[slice])
			return BATON_ECHECKSUM;
		at += ssd->config.slice_bytes[slice];
	}
	return 0;
}

static void get_read(struct ssd *ssd, struct ssd__io *io)
{
	struct ssd__operation *operation = io->owner;

	if (io->result && !operation->status)
		operation->status = io->result == -ENODATA ? BATON_ECHECKSUM : io->result;
	if (--operation->io_open)
		return;
	if (!operation->status)
		operation->status = get_verify(ssd, operation);
	ssd__operation_end(ssd, operation, operation->status);
}

static void get_start(struct ssd *ssd, struct ssd__operation *operation)
{
	const struct ssd__slot place = operation->place;
	const uint64_t *offsets = ssd->slice_offsets;
	const uint64_t from = offsets[operation->first_slice];
	const uint64_t bytes = offsets[operation->first_slice + operation->slice_count] - from;

	io_prepare(ssd, operation, &operation->io[0], IO_READ, operation->page,
		   ssd__header_offset(place.slot), SSD_PAGE, get_read);
	io_prepare(ssd, operation, &operation->io[1], IO_READ, operation->block,
		   ssd__data_offset(ssd, ssd->segments[place.segment].slot_count, place.slot) + from,
		   bytes, get_read);
	operation->io_open = 2;
	ssd__io_start(ssd, &operation->io[0]);
	ssd__io_start(ssd, &operation->io[1]);
}

static void operation_start(struct ssd *ssd, struct ssd__operation *operation)
{
	ssd->operations_open++;
	operation->status = 0;
	operation->header_written = operation->dirty;
	switch (operation->kind) {
	case OPERATION_PUT:
		operation->step = operation->dirty ? STEP_CLEAR : STEP_DATA;
		put_step(ssd, operation);
		break;
	case OPERATION_CLEAR:
		operation->step = STEP_CLEAR;
		put_step(ssd, operation);
		break;
	case OPERATION_GET:
		get_start(ssd, operation);
		break;
	case OPERATION_GROW:
		ssd__grow_start(ssd, operation);
		break;
	}
}

static void commands_turn(struct ssd *ssd)
{
	struct ssd__message *message;

	while ((message = ring_pop(&ssd->commands)))
		operation_start(ssd, container_of(message, struct ssd__operation, message));
}

/* What was scanned goes over a batch at a time, when the loop has taken the one before. */
static void records_turn(struct ssd *ssd)
{
	while (!ssd->scan_posted && atomic_load(&ssd->batches_free)) {
		struct ssd__batch *batch = &ssd->batches[ssd->batch_next];
		uint64_t left = ssd->record_count - ssd->record_at;

		ssd->batch_next = (ssd->batch_next + 1) % SSD_BATCHES;
		atomic_fetch_sub(&ssd->batches_free, 1);
		batch->message.kind = MESSAGE_BATCH;
		batch->count = (uint32_t)MIN(left, SSD_BATCH_RECORDS);
		if (batch->count)
			memcpy(batch->records, ssd->records + ssd->record_at,
			       batch->count * sizeof *batch->records);
		ssd->record_at += batch->count;
		batch->last = ssd->record_at == ssd->record_count;
		ssd->scan_posted = batch->last;
		post(ssd, &batch->message);
	}
	if (ssd->scan_posted && ssd->records) {
		free(ssd->records);
		ssd->records = NULL;
	}
}

static void engine_start(struct ssd *ssd)
{
#ifdef BATON_URING
	if (!ssd->config.force_threads) {
		ssd->engine = &ssd__uring;
		int error = ssd->engine->init(ssd);
		if (!error) {
			atomic_store(&ssd->counters.uring, true);
			return;
		}
		log_info("ssd %s: io_uring is refused (%s), using threads", ssd->config.path,
			 err_text(error));
	}
#endif
	ssd->engine = &ssd__threads;
	CHECK(!ssd->engine->init(ssd)); /* with no thread to be had it does the I/O by itself */
}

void *ssd__thread_main(void *argument)
{
	struct ssd *ssd = argument;

	(void)prctl(PR_SET_NAME, "ssd");
	engine_start(ssd);
	ssd__scan(ssd);
	for (;;) {
		/* Asked first: what came before the stop is still done. */
		bool stop = atomic_load(&ssd->stop);
		commands_turn(ssd);
		records_turn(ssd);
		notify_turn(ssd);
		if (stop && !ssd->operations_open)
			break;
		ssd->turn_bytes = 0;
		ssd->engine->turn(ssd);
	}
	ssd->engine->fini(ssd);
	return NULL;
}
