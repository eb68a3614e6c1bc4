/*
 * What a restart finds. Every header page of every segment is read, in large pieces, and judged by
 * itself: a damaged first page costs no block, a file that was cut only those it cut. The blocks are
 * not read; a get verifies them. Runs once, on the disk thread, before the first operation.
 */
#include "pool/ssd_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "base/log.h"

#define PAGES_PER_READ (SSD_SCAN_BYTES / SSD_PAGE)

struct scan_file { /* per segment */
	uint64_t size, allocated; /* as found */
	uint64_t generation;	  /* of its newest block */
};

struct scan;

struct scan_read {
	struct scan *scan;
	struct ssd__io io;
	uint32_t segment, first_slot, slots;
	bool open;
	uint8_t *buffer;
};

struct scan {
	struct ssd *ssd;
	struct scan_file *files; /* [segment_count] */
	uint32_t *numbers;
	uint32_t number_count;
	struct scan_read reads[SSD_SCAN_READS];
	uint32_t reads_open;
	uint8_t *buffers;
	uint32_t segment, slot; /* what is read next */
	uint64_t adopted, unread;
};

/* ---- which files there are ---- */

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

static int scan_list(struct scan *scan)
{
	struct ssd *ssd = scan->ssd;
	int fd = openat(ssd->folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
	const struct dirent *entry;
	uint32_t capacity = 0;

	if (!folder) {
		int error = -errno;
		if (fd >= 0)
			close(fd);
		return error;
	}
	while ((entry = readdir(folder)) && scan->number_count < SSD_FILES_MAX) {
		uint32_t number;
		if (!ssd__segment_parse(entry->d_name, &number))
			continue;
		if (scan->number_count == capacity) {
			capacity = capacity ? 2 * capacity : 256;
			uint32_t *grown = realloc(scan->numbers, capacity * sizeof *grown);
			if (!grown)
				break;
			scan->numbers = grown;
		}
		scan->numbers[scan->number_count++] = number;
		ssd->number_next = MAX(ssd->number_next, number + 1);
	}
	closedir(folder);
	if (scan->number_count)
		qsort(scan->numbers, scan->number_count, sizeof *scan->numbers, by_number);
	return 0;
}

/* ---- what each of them is ---- */

/* Its first page does not say: the first readable header does. PAGE_EMPTY when there is none. */
static enum ssd__verdict judge_by_slots(struct scan *scan, int fd, uint32_t number, uint64_t size,
					uint32_t *ret_slot_count)
{
	struct ssd *ssd = scan->ssd;
	/* A table is never longer than its blocks make it. */
	uint64_t pages = size / SSD_PAGE;
	enum ssd__verdict found = PAGE_EMPTY;

	for (uint64_t page = 1; page < pages; page += PAGES_PER_READ) {
		uint64_t count = MIN(pages - page, PAGES_PER_READ);
		ssize_t bytes = pread(fd, scan->buffers, count * SSD_PAGE, (off_t)(page * SSD_PAGE));
		if (bytes < 0)
			return PAGE_FOREIGN; /* not known to be garbage */
		for (uint64_t i = 0; (int64_t)((i + 1) * SSD_PAGE) <= bytes; i++) {
			const struct ssd__slot_page *at = (const void *)(scan->buffers + i * SSD_PAGE);
			enum ssd__verdict verdict =
				ssd__slot_page_judge(ssd, number, (uint32_t)(page + i - 1), at);
			if (verdict == PAGE_OURS) {
				*ret_slot_count = at->slot_count;
				return PAGE_OURS;
			}
			if (verdict == PAGE_FOREIGN)
				found = PAGE_FOREIGN;
		}
		if (page > SSD_SEGMENT_SLOTS_MAX)
			break;
		if (atomic_load(&ssd->stop))
			return PAGE_FOREIGN;
	}
	return found;
}

static enum ssd__verdict judge(struct scan *scan, int fd, uint32_t number, uint64_t size,
			       uint32_t *ret_slot_count)
{
	struct ssd__segment_page *page = (struct ssd__segment_page *)scan->buffers;
	ssize_t bytes = pread(fd, page, SSD_PAGE, 0);

	if (bytes == SSD_PAGE) {
		enum ssd__verdict verdict = ssd__segment_page_judge(scan->ssd, number, page);
		if (verdict == PAGE_OURS)
			*ret_slot_count = page->slot_count;
		if (verdict == PAGE_OURS || verdict == PAGE_FOREIGN)
			return verdict;
	}
	ssd__count(&scan->ssd->counters.headers_damaged, 1);
	return judge_by_slots(scan, fd, number, size, ret_slot_count);
}

static void foreign_add(struct ssd *ssd, uint32_t number, uint64_t bytes)
{
	struct ssd__foreign *grown =
		realloc(ssd->foreign, (ssd->foreign_count + 1) * sizeof *grown);

	/* Counted in any case, so that the bound holds. */
	ssd__count(&ssd->counters.bytes, bytes);
	atomic_fetch_add(&ssd->counters.segments_foreign, 1);
	if (!grown)
		return;
	ssd->foreign = grown;
	ssd->foreign[ssd->foreign_count++] = (struct ssd__foreign){ number, bytes };
}

static bool records_reserve(struct ssd *ssd, uint32_t slot_count)
{
	uint64_t wanted = slot_count;
	for (uint32_t i = 0; i < ssd->segment_count; i++)
		wanted += ssd->segments[i].slot_count;
	if (wanted <= ssd->record_capacity)
		return true;
	wanted += wanted / 2;
	struct ssd__record *grown = realloc(ssd->records, wanted * sizeof *grown);
	if (!grown)
		return false;
	ssd->records = grown;
	ssd->record_capacity = wanted;
	return true;
}

static void scan_file(struct scan *scan, uint32_t number)
{
	struct ssd *ssd = scan->ssd;
	uint32_t slot_count = 0;
	struct stat status;
	char name[32];
	int fd = ssd__segment_open(ssd, number, 0);

	ssd__segment_name(number, name);
	if (fd < 0 || fstat(fd, &status) || !S_ISREG(status.st_mode)) {
		log_warning("ssd %s: leaving %s alone: %s", ssd->config.path, name,
			    fd < 0 ? err_text(fd) : "not a regular file");
		if (fd >= 0)
			close(fd);
		else if (!fstatat(ssd->folder_fd, name, &status, AT_SYMLINK_NOFOLLOW) &&
			 S_ISREG(status.st_mode))
			ssd__count(&ssd->counters.bytes, (uint64_t)status.st_size);
		return;
	}
	uint64_t size = (uint64_t)status.st_size, allocated = (uint64_t)status.st_blocks * 512;
	enum ssd__verdict verdict = judge(scan, fd, number, size, &slot_count);
	if (verdict == PAGE_OURS && records_reserve(ssd, slot_count) &&
	    !ssd__segment_add(ssd, fd, number, slot_count)) {
		scan->files[ssd->segment_count - 1] = (struct scan_file){ size, allocated, 0 };
		return;
	}
	close(fd);
	if (verdict != PAGE_OURS && verdict != PAGE_FOREIGN && !unlinkat(ssd->folder_fd, name, 0)) {
		/* Nothing in it can be told apart from garbage: growth that was not finished. */
		log_info("ssd %s: removed %s, which holds no block", ssd->config.path, name);
		ssd__count(&ssd->counters.segments_removed, 1);
		return;
	}
	foreign_add(ssd, number, MAX(size, allocated));
}

/* ---- the tables ---- */

static void record_slot(struct scan *scan, uint32_t segment, uint32_t slot,
			const struct ssd__slot_page *page)
{
	struct ssd *ssd = scan->ssd;
	const struct ssd__segment *file = &ssd->segments[segment];
	enum ssd__verdict verdict =
		page ? ssd__slot_page_judge(ssd, file->number, slot, page) : PAGE_EMPTY;
	uint64_t end = ssd__data_offset(ssd, file->slot_count, slot) + ssd->shape.block_bytes;
	bool whole = verdict == PAGE_OURS && page->slot_count == file->slot_count &&
		     end <= scan->files[segment].size;
	struct ssd__record record = { .place = { segment, slot }, .adopted = whole,
				      .dirty = verdict != PAGE_EMPTY };

	if (whole) {
		record.key = page->key;
		record.parent = page->parent;
		record.generation = page->generation;
		scan->files[segment].generation =
			MAX(scan->files[segment].generation, page->generation);
	} else if (verdict != PAGE_EMPTY) {
		ssd__count(&ssd->counters.headers_damaged, 1);
	}
	CHECK(ssd->record_count < ssd->record_capacity);
	ssd->records[ssd->record_count++] = record;
}

/* A piece that cannot be read is read page by page; a page that cannot be costs its slot. */
static void record_singly(struct scan *scan, struct scan_read *read)
{
	for (uint32_t i = 0; i < read->slots; i++) {
		uint32_t slot = read->first_slot + i;
		ssize_t bytes = pread(read->io.fd, read->buffer, SSD_PAGE,
				      (off_t)ssd__header_offset(slot));
		if (bytes >= 0)
			record_slot(scan, read->segment, slot,
				    bytes == SSD_PAGE ? (const void *)read->buffer : NULL);
		else
			scan->unread++;
	}
}

static void scan_read_done(struct ssd *ssd, struct ssd__io *io)
{
	struct scan_read *read = io->owner;

	read->open = false;
	read->scan->reads_open--;
	if (io->result && io->result != -ENODATA) {
		record_singly(read->scan, read);
		return;
	}
	for (uint32_t i = 0; i < read->slots; i++) {
		bool there = (uint64_t)(i + 1) * SSD_PAGE <= io->done;
		record_slot(read->scan, read->segment, read->first_slot + i,
			    there ? (const void *)(read->buffer + (size_t)i * SSD_PAGE) : NULL);
	}
}

/* Starts the next read. Return: false when all are under way. */
static bool scan_read_next(struct scan *scan, struct scan_read *read)
{
	struct ssd *ssd = scan->ssd;

	if (scan->segment == ssd->segment_count)
		return false;
	const struct ssd__segment *file = &ssd->segments[scan->segment];
	read->scan = scan;
	read->segment = scan->segment;
	read->first_slot = scan->slot;
	read->slots = MIN(file->slot_count - scan->slot, PAGES_PER_READ);
	read->open = true;
	scan->reads_open++;
	scan->slot += read->slots;
	if (scan->slot == file->slot_count) {
		scan->segment++;
		scan->slot = 0;
	}
	read->io = (struct ssd__io){ .kind = IO_READ, .segment = SSD_NONE, .fd = file->fd,
				     .buffer = read->buffer,
				     .offset = ssd__header_offset(read->first_slot),
				     .bytes = (uint64_t)read->slots * SSD_PAGE,
				     .finish = scan_read_done, .owner = read };
	ssd__io_start(ssd, &read->io);
	return true;
}

static void scan_tables(struct scan *scan)
{
	for (;;) {
		bool more = !atomic_load(&scan->ssd->stop);
		for (uint32_t i = 0; i < SSD_SCAN_READS && more; i++)
			if (!scan->reads[i].open)
				more = scan_read_next(scan, &scan->reads[i]);
		if (!scan->reads_open)
			return;
		scan->ssd->turn_bytes = 0;
		scan->ssd->engine->turn(scan->ssd);
	}
}

/* ---- afterwards ---- */

/* S3, when the bound was set lower than before: the coldest segments go. */
static void scan_bound(struct scan *scan)
{
	struct ssd *ssd = scan->ssd;
	char name[32];

	ssd__foreign_remove(ssd, 0);
	while (atomic_load(&ssd->counters.bytes) > ssd->config.bytes) {
		uint32_t coldest = SSD_NONE;
		for (uint32_t i = 0; i < ssd->segment_count; i++)
			if (ssd->segments[i].fd >= 0 &&
			    (coldest == SSD_NONE ||
			     scan->files[i].generation < scan->files[coldest].generation))
				coldest = i;
		if (coldest == SSD_NONE)
			return;
		struct ssd__segment *file = &ssd->segments[coldest];
		ssd__segment_name(file->number, name);
		close(file->fd);
		file->fd = -1;
		if (unlinkat(ssd->folder_fd, name, 0)) {
			log_warning("ssd %s: cannot remove %s, which is over the bound: %s",
				    ssd->config.path, name, err_text(-errno));
		} else {
			log_info("ssd %s: removed %s, which is over the bound", ssd->config.path,
				 name);
			ssd__count(&ssd->counters.segments_removed, 1);
		}
		atomic_fetch_sub(&ssd->counters.bytes, file->bytes);
		atomic_fetch_sub(&ssd->counters.segments, 1);
	}
}

/* Gives a file the size and the space that it should have. Slots for which there is none stay out
 * of use: their records go. */
static void scan_repair(struct scan *scan, uint32_t segment)
{
	struct ssd *ssd = scan->ssd;
	const struct ssd__segment *file = &ssd->segments[segment];
	struct scan_file *found = &scan->files[segment];

	if (found->size > file->bytes)
		(void)!ftruncate(file->fd, (off_t)file->bytes);
	if (found->size >= file->bytes && found->allocated >= file->bytes) {
		found->size = UINT64_MAX;
		return;
	}
	if (!fallocate(file->fd, 0, 0, (off_t)file->bytes) ||
	    (errno == EOPNOTSUPP && !ftruncate(file->fd, (off_t)file->bytes)))
		found->size = UINT64_MAX;
	else
		log_warning("ssd %s: cannot give segment %u its space back: %s", ssd->config.path,
			    file->number, err_text(-errno));
}

static void scan_keep(struct scan *scan)
{
	struct ssd *ssd = scan->ssd;
	uint64_t kept = 0;

	for (uint64_t i = 0; i < ssd->record_count; i++) {
		const struct ssd__record *record = &ssd->records[i];
		const struct ssd__segment *file = &ssd->segments[record->place.segment];
		uint64_t end = ssd__data_offset(ssd, file->slot_count, record->place.slot) +
			       ssd->shape.block_bytes;
		if (file->fd < 0 || end > scan->files[record->place.segment].size)
			continue;
		scan->adopted += record->adopted;
		ssd->records[kept++] = *record;
	}
	ssd->record_count = kept;
}

/* Blocks from the coldest on, then the free slots in their order. */
static int by_age(const void *a, const void *b)
{
	const struct ssd__record *x = a, *y = b;

	if (x->adopted != y->adopted)
		return x->adopted ? -1 : 1;
	if (x->generation != y->generation)
		return x->generation < y->generation ? -1 : 1;
	if (x->place.segment != y->place.segment)
		return x->place.segment < y->place.segment ? -1 : 1;
	return (x->place.slot > y->place.slot) - (x->place.slot < y->place.slot);
}

static void scan_finish(struct scan *scan)
{
	struct ssd *ssd = scan->ssd;

	scan_bound(scan);
	for (uint32_t i = 0; i < ssd->segment_count; i++) {
		if (ssd->segments[i].fd >= 0)
			scan_repair(scan, i);
		ssd->engine->file_added(ssd, i);
	}
	scan_keep(scan);
	if (ssd->record_count)
		qsort(ssd->records, ssd->record_count, sizeof *ssd->records, by_age);
	log_info("ssd %s: %llu blocks in %u files, %llu damaged headers, %llu not readable, %u files of "
		 "another format; %s",
		 ssd->config.path, (unsigned long long)scan->adopted,
		 atomic_load(&ssd->counters.segments),
		 (unsigned long long)atomic_load(&ssd->counters.headers_damaged),
		 (unsigned long long)scan->unread, atomic_load(&ssd->counters.segments_foreign),
		 ssd->engine->name);
}

void ssd__scan(struct ssd *ssd)
{
	struct scan scan = { .ssd = ssd };
	int error = scan_list(&scan);

	scan.files = calloc(scan.number_count + 1, sizeof *scan.files);
	scan.buffers = aligned_alloc(SSD_PAGE, SSD_SCAN_READS * SSD_SCAN_BYTES);
	if (!scan.files || !scan.buffers)
		error = -ENOMEM;
	if (error) {
		log_error("ssd %s: cannot look through the folder: %s", ssd->config.path,
			  err_text(error));
	} else {
		for (uint32_t i = 0; i < SSD_SCAN_READS; i++)
			scan.reads[i].buffer = scan.buffers + (size_t)i * SSD_SCAN_BYTES;
		for (uint32_t i = 0; i < scan.number_count && !atomic_load(&ssd->stop); i++)
			scan_file(&scan, scan.numbers[i]);
		scan_tables(&scan);
		if (!atomic_load(&ssd->stop))
			scan_finish(&scan);
	}
	free(scan.files);
	free(scan.buffers);
	free(scan.numbers);
}
