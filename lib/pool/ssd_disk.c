/* The files of the SSD tier: pages, names, and new segments. Disk thread, but for the pages. */
#include "pool/ssd_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/log.h"

_Static_assert(SSD_PAGE == HASH_LEAF_BYTES, "a page's checksum is a leaf's");

/* ---- pages ---- */

static uint64_t page_checksum(const void *page)
{
	uint8_t copy[SSD_PAGE];
	memcpy(copy, page, SSD_PAGE - sizeof(uint64_t));
	memset(copy + SSD_PAGE - sizeof(uint64_t), 0, sizeof(uint64_t));
	return hash_leaf(copy);
}

void ssd__slot_page_fill(const struct ssd *ssd, const struct kv_key *key, const struct kv_key *parent,
			 const uint64_t sums[], uint64_t generation, struct ssd__slot_page *page)
{
	memset(page, 0, sizeof *page);
	page->magic = SSD_MAGIC_SLOT;
	page->version = SSD_VERSION;
	page->shape = ssd->shape;
	page->generation = generation;
	page->key = *key;
	if (parent)
		page->parent = *parent;
	memcpy(page->sums, sums, ssd->shape.slice_count * sizeof *sums);
}

void ssd__slot_page_seal(const struct ssd *ssd, struct ssd__slot place, struct ssd__slot_page *page)
{
	page->segment = ssd->segments[place.segment].number;
	page->slot_count = ssd->segments[place.segment].slot_count;
	page->slot = place.slot;
	page->checksum = page_checksum(page);
}

enum ssd__verdict ssd__slot_page_judge(const struct ssd *ssd, uint32_t number, uint32_t slot,
				       const struct ssd__slot_page *page)
{
	if (page->magic != SSD_MAGIC_SLOT)
		return memcmp(page, ssd__zero_page(ssd), SSD_PAGE) ? PAGE_DAMAGED : PAGE_EMPTY;
	if (page->checksum != page_checksum(page))
		return PAGE_DAMAGED;
	if (page->version != SSD_VERSION || memcmp(&page->shape, &ssd->shape, sizeof page->shape))
		return PAGE_FOREIGN;
	/* Whole, but from elsewhere: a copied file, or a write that went astray. */
	if (page->segment != number || page->slot != slot || page->slot >= page->slot_count ||
	    page->slot_count > SSD_SEGMENT_SLOTS_MAX)
		return PAGE_DAMAGED;
	return PAGE_OURS;
}

static void segment_page_fill(const struct ssd *ssd, uint32_t number, uint32_t slot_count,
			      struct ssd__segment_page *page)
{
	memset(page, 0, sizeof *page);
	page->magic = SSD_MAGIC_SEGMENT;
	page->version = SSD_VERSION;
	page->segment = number;
	page->shape = ssd->shape;
	page->slot_count = slot_count;
	page->checksum = page_checksum(page);
}

enum ssd__verdict ssd__segment_page_judge(const struct ssd *ssd, uint32_t number,
					  const struct ssd__segment_page *page)
{
	if (page->magic != SSD_MAGIC_SEGMENT || page->checksum != page_checksum(page))
		return PAGE_DAMAGED;
	if (page->version != SSD_VERSION || memcmp(&page->shape, &ssd->shape, sizeof page->shape))
		return PAGE_FOREIGN;
	if (page->segment != number || !page->slot_count || page->slot_count > SSD_SEGMENT_SLOTS_MAX)
		return PAGE_DAMAGED;
	return PAGE_OURS;
}

/* ---- segments ---- */

void ssd__segment_name(uint32_t number, char ret_name[32])
{
	snprintf(ret_name, 32, "segment-%08u.baton", number);
}

bool ssd__segment_parse(const char *name, uint32_t *ret_number)
{
	char again[32];
	uint32_t number;

	if (sscanf(name, "segment-%10u.baton", &number) != 1)
		return false;
	ssd__segment_name(number, again);
	if (strcmp(name, again) || number == UINT32_MAX)
		return false;
	*ret_number = number;
	return true;
}

int ssd__segment_open(struct ssd *ssd, uint32_t number, int flags)
{
	char name[32];
	ssd__segment_name(number, name);
	flags |= O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
	if (!ssd->direct_refused) {
		int fd = openat(ssd->folder_fd, name, flags | O_DIRECT, 0600);
		if (fd >= 0 || errno != EINVAL)
			return fd >= 0 ? fd : -errno;
		log_info("ssd %s: no direct I/O on this file system, going through the page cache",
			 ssd->config.path);
		ssd->direct_refused = true;
		atomic_store(&ssd->counters.direct, false);
		flags &= ~O_EXCL; /* the refused open() has made the file */
	}
	int fd = openat(ssd->folder_fd, name, flags, 0600);
	return fd >= 0 ? fd : -errno;
}

int ssd__segment_add(struct ssd *ssd, int fd, uint32_t number, uint32_t slot_count)
{
	if (ssd->segment_count == ssd->segment_capacity) {
		uint32_t capacity = ssd->segment_capacity ? 2 * ssd->segment_capacity : 64;
		struct ssd__segment *grown = realloc(ssd->segments, capacity * sizeof *grown);
		if (!grown)
			return -ENOMEM;
		ssd->segments = grown;
		ssd->segment_capacity = capacity;
	}
	uint32_t index = ssd->segment_count++;
	ssd->segments[index] = (struct ssd__segment){ fd, number, slot_count,
						      ssd__segment_size(ssd, slot_count) };
	ssd__count(&ssd->counters.bytes, ssd->segments[index].bytes);
	atomic_fetch_add(&ssd->counters.segments, 1);
	return 0;
}

/* Removes segments of other formats until @bytes_wanted more fit under the bound, or none is left. */
void ssd__foreign_remove(struct ssd *ssd, uint64_t bytes_wanted)
{
	char name[32];

	while (ssd->foreign_count &&
	       atomic_load(&ssd->counters.bytes) + bytes_wanted > ssd->config.bytes) {
		const struct ssd__foreign *foreign = &ssd->foreign[--ssd->foreign_count];
		ssd__segment_name(foreign->number, name);
		if (unlinkat(ssd->folder_fd, name, 0) && errno != ENOENT) {
			log_warning("ssd %s: cannot remove %s: %s", ssd->config.path, name,
				    err_text(-errno));
			continue; /* stays counted: the bound holds */
		}
		log_info("ssd %s: removed %s, which is of another format, to make room",
			 ssd->config.path, name);
		atomic_fetch_sub(&ssd->counters.bytes, foreign->bytes);
		atomic_fetch_sub(&ssd->counters.segments_foreign, 1);
		ssd__count(&ssd->counters.segments_removed, 1);
	}
}

/* ---- growing ---- */

static void grow_undo(struct ssd *ssd, struct ssd__operation *operation, int error)
{
	char name[32];
	ssd__segment_name(operation->place.segment, name);
	close(operation->io[0].fd);
	(void)unlinkat(ssd->folder_fd, name, 0);
	ssd__operation_end(ssd, operation, error);
}

static void grow_titled(struct ssd *ssd, struct ssd__io *io)
{
	struct ssd__operation *operation = io->owner;

	if (io->result == -EINVAL && !ssd->direct_refused) {
		/* Opened with O_DIRECT, but written it cannot be: seen on stacked file systems. */
		int flags = fcntl(io->fd, F_GETFL);
		log_info("ssd %s: no direct I/O on this file system, going through the page cache",
			 ssd->config.path);
		ssd->direct_refused = true;
		atomic_store(&ssd->counters.direct, false);
		if (flags >= 0 && !fcntl(io->fd, F_SETFL, flags & ~O_DIRECT)) {
			ssd__io_start(ssd, io);
			return;
		}
	}
	if (!io->result)
		io->result = ssd__segment_add(ssd, io->fd, operation->place.segment,
					      operation->grown_slots);
	if (io->result) {
		grow_undo(ssd, operation, io->result);
		return;
	}
	operation->place.segment = ssd->segment_count - 1;
	ssd->engine->file_added(ssd, operation->place.segment);
	ssd__operation_end(ssd, operation, 0);
}

static void grow_allocated(struct ssd *ssd, struct ssd__io *io)
{
	struct ssd__operation *operation = io->owner;

	/* No fallocate() here: then a write into a hole may meet a full disk, which it can. */
	if (io->result == -EOPNOTSUPP)
		io->result = ftruncate(io->fd, (off_t)io->bytes) ? -errno : 0;
	if (io->result) {
		grow_undo(ssd, operation, io->result);
		return;
	}
	segment_page_fill(ssd, operation->place.segment, operation->grown_slots,
			  (struct ssd__segment_page *)operation->page);
	*io = (struct ssd__io){ .kind = IO_WRITE, .segment = SSD_NONE, .fd = io->fd,
				.buffer = operation->page, .bytes = SSD_PAGE, .finish = grow_titled,
				.owner = operation };
	ssd__io_start(ssd, io);
}

void ssd__grow_start(struct ssd *ssd, struct ssd__operation *operation)
{
	const uint64_t slot_bytes = SSD_PAGE + ssd->shape.block_bytes;
	struct ssd__io *io = &operation->io[0];
	int fd = -EEXIST;

	ssd__foreign_remove(ssd, ssd->segment_bytes);
	uint64_t used = atomic_load(&ssd->counters.bytes);
	uint64_t room = used < ssd->config.bytes ? ssd->config.bytes - used : 0;
	room = MIN(room, ssd->segment_bytes);
	if (room < SSD_PAGE + slot_bytes) {
		ssd__operation_end(ssd, operation, -EDQUOT);
		return;
	}
	operation->grown_slots =
		(uint32_t)MIN((room - SSD_PAGE) / slot_bytes, SSD_SEGMENT_SLOTS_MAX);
	for (int tries = 0; fd == -EEXIST && tries < 64; tries++) {
		operation->place.segment = ssd->number_next++;
		fd = ssd__segment_open(ssd, operation->place.segment, O_CREAT | O_EXCL);
	}
	if (fd < 0) {
		ssd__operation_end(ssd, operation, fd);
		return;
	}
	*io = (struct ssd__io){ .kind = IO_FALLOCATE, .segment = SSD_NONE, .fd = fd,
				.bytes = ssd__segment_size(ssd, operation->grown_slots),
				.finish = grow_allocated, .owner = operation };
	ssd__io_start(ssd, io);
}
