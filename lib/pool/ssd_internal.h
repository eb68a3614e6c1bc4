/*
 * Inside the SSD tier. The loop thread owns the index, the free slots and all decisions; the disk
 * thread owns the files and does what operations say:
 *
 *     loop thread                               disk thread
 *     ssd_put, ssd_get, ssd_drop  --commands--> operation: one or two I/Os, step by step
 *     ssd_poll                    <--messages-- operations that ended, batches of scanned slots
 *
 * Neither ring can overflow: an operation is in one of them at most, there is one operation for
 * growing besides the queue_depth of others, and two batches. The engine below the disk thread is
 * io_uring or a pool of threads; both see struct ssd__io only.
 */
#ifndef BATON_POOL_SSD_INTERNAL_H
#define BATON_POOL_SSD_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/list.h"
#include "base/ring.h"
#include "pool/ssd.h"
#include "pool/ssd_index.h"

#define SSD_PAGE 4096u
#define SSD_FILES_REGISTERED_MAX 4096u
#define SSD_BATCH_RECORDS 256u
#define SSD_BATCHES 2u
/* Hashed in a turn at most: then new I/O is started and the loop hears of what has ended, so that the
 * disk does not idle while a queue full of blocks is verified. */
#define SSD_TURN_BYTES (1u << 20)
#define SSD_SCAN_READS 8u /* under way at a time */
#define SSD_SCAN_BYTES (256u << 10)
#define SSD_SEGMENT_SLOTS_MAX (1u << 20)
#define SSD_FILES_MAX (1u << 16) /* segment files looked at */

/* ---- on disk; little-endian ---- */

#define SSD_MAGIC_SEGMENT UINT64_C(0x4745534e4f544142) /* "BATONSEG" */
#define SSD_MAGIC_SLOT UINT64_C(0x544c534e4f544142)    /* "BATONSLT" */
#define SSD_VERSION 1u

struct ssd__shape { /* what two segments must agree in */
	uint8_t kv_format[32];
	uint64_t block_bytes, slices_hash;
	uint32_t slice_count, zero;
};

struct ssd__segment_page {
	uint64_t magic;
	uint32_t version, segment; /* segment: the number in the file's name */
	struct ssd__shape shape;
	uint32_t slot_count;
	uint8_t zero[SSD_PAGE - 16 - sizeof(struct ssd__shape) - 4 - 8];
	uint64_t checksum; /* hash_leaf() of the page with 0 here */
} __attribute__((packed, aligned(8)));

struct ssd__slot_page {
	uint64_t magic;
	uint32_t version, segment;
	struct ssd__shape shape;
	uint32_t slot_count, slot;
	uint64_t generation; /* rises with every put: the order of age after a restart */
	struct kv_key key, parent;
	uint64_t sums[SSD_SLICES_MAX];
	uint8_t zero[SSD_PAGE - 16 - sizeof(struct ssd__shape) - 48 - 8 * SSD_SLICES_MAX - 8];
	uint64_t checksum;
} __attribute__((packed, aligned(8)));

_Static_assert(sizeof(struct ssd__segment_page) == SSD_PAGE, "one page");
_Static_assert(sizeof(struct ssd__slot_page) == SSD_PAGE, "one page");

/* ---- one I/O ---- */

struct ssd__io {
	struct list link; /* the engine's */
	enum { IO_READ, IO_WRITE, IO_FALLOCATE } kind;
	uint32_t segment;
	int fd;
	void *buffer;
	uint64_t offset, bytes, done;
	int64_t count; /* of the last transfer; the pool of threads hands it over */
	bool cut; /* a fault: the next transfer moves only a part */
	int result;
	/* On the disk thread. result: 0 when all bytes moved; -ENODATA at the end of the file; -errno. */
	void (*finish)(struct ssd *ssd, struct ssd__io *io);
	void *owner;
};

struct ssd__engine {
	const char *name;
	int (*init)(struct ssd *ssd);
	void (*fini)(struct ssd *ssd);
	/* May be answered by ssd__io_step() only from turn(). */
	void (*submit)(struct ssd *ssd, struct ssd__io *io);
	/* Hands on what was submitted, and waits for completions or a wake. Ends early when
	 * turn_bytes has reached SSD_TURN_BYTES; then the next one does not wait. */
	void (*turn)(struct ssd *ssd);
	void (*file_added)(struct ssd *ssd, uint32_t segment);
};
extern const struct ssd__engine ssd__uring, ssd__threads;

/* The engine: one transfer of @io ended with @count bytes or -errno. */
void ssd__io_step(struct ssd *ssd, struct ssd__io *io, int64_t count);
void ssd__io_start(struct ssd *ssd, struct ssd__io *io);
/* Where the next bytes go or come from; NULL for a fallocate, which moves none. */
static inline uint8_t *ssd__io_step_at(const struct ssd__io *io)
{
	return io->buffer ? (uint8_t *)io->buffer + io->done : NULL;
}
static inline uint64_t ssd__io_step_bytes(const struct ssd__io *io)
{
	uint64_t left = io->bytes - io->done;
	return io->cut && left > SSD_PAGE ? left / 2 / SSD_PAGE * SSD_PAGE : left;
}

#define SSD_THREADS_MAX 64

struct ssd__pool { /* of ssd_threads.c */
	pthread_mutex_t lock;
	pthread_cond_t ready;
	struct list queue, done;
	bool stop, done_signalled;
	uint32_t thread_count;
	pthread_t threads[SSD_THREADS_MAX];
	struct ssd *ssd;
};

/* ---- operations and batches ---- */

struct ssd__message {
	enum { MESSAGE_OPERATION, MESSAGE_BATCH } kind;
};

struct ssd__operation {
	struct ssd__message message;
	struct list link; /* loop thread: free */
	enum { OPERATION_PUT, OPERATION_GET, OPERATION_CLEAR, OPERATION_GROW } kind;
	/* From the loop thread. */
	uint64_t user;
	struct kv_key key;
	uint32_t entry;
	struct ssd__slot place;
	bool dirty; /* the slot may have a header */
	void *block;
	uint32_t first_slice, slice_count;
	/* Disk thread; outcomes for the loop thread. */
	struct ssd__slot_page *page; /* a put's header from the loop thread; a get's as read */
	struct ssd__io io[2];
	uint32_t io_open;
	enum { STEP_CLEAR, STEP_DATA, STEP_HEADER } step;
	int status;
	bool header_written; /* the slot may have a header now */
	uint32_t grown_slots;
};

struct ssd__record { /* one scanned slot */
	struct kv_key key, parent;
	uint64_t generation;
	struct ssd__slot place;
	bool adopted, dirty;
};

struct ssd__batch {
	struct ssd__message message;
	uint32_t count;
	bool last;
	struct ssd__record records[SSD_BATCH_RECORDS];
};

/* ---- files ---- */

struct ssd__segment {
	int fd;
	uint32_t number, slot_count;
	uint64_t bytes; /* counted against the bound */
};

struct ssd__foreign { /* a segment of another format: its name, and what it takes */
	uint32_t number;
	uint64_t bytes;
};

struct ssd__counters {
	_Atomic uint64_t bytes, read_errors, write_errors, headers_damaged, segments_removed;
	_Atomic uint32_t segments, segments_foreign;
	_Atomic bool uring, direct, arena_registered;
};

struct ssd__faults {
	_Atomic uint32_t read_fail_every, write_fail_every, grow_fail_every, fail_nth, error;
	_Atomic uint32_t flip_every, short_every, delay_us;
};

struct ssd {
	/* constant after ssd_open() */
	struct ssd_config config;
	struct ssd__shape shape;
	uint64_t *slice_offsets; /* [slice_count + 1] */
	uint64_t segment_bytes;
	uint32_t depth, puts_max;
	int folder_fd, lock_fd, wake_fd;
	uint8_t *pages; /* one of zeros, one for growing, one per operation */
	size_t pages_bytes;
	pthread_t thread;
	bool started;

	struct ring commands, messages;
	_Atomic bool wake_sent, notify_sent, stop;
	_Atomic uint32_t batches_free;
	struct ssd__counters counters;
	struct ssd__faults faults;

	/* loop thread */
	pthread_t loop;
	bool loop_known;
	struct ssd__index index;
	struct ssd__operation *operations; /* [depth] */
	struct list operations_free;
	struct ssd__operation grow;
	uint64_t *free_slots; /* a queue: segment << 32 | slot << 1 | dirty */
	uint32_t free_head, free_count, free_capacity;
	struct ssd_event *evicted; /* a queue */
	uint32_t evicted_head, evicted_count;
	struct ssd__batch *batch; /* being adopted */
	uint32_t batch_at;
	uint64_t tick;
	bool ready, scan_done, growing, at_bound, starved, room;
	uint32_t errors_in_row, clears_open;
	uint64_t pause_until_ns, pause_ns, grow_after_ns;
	struct ssd_stats stats;

	/* disk thread */
	const struct ssd__engine *engine;
	void *ring; /* of ssd_uring.c */
	struct ssd__pool pool;
	struct ssd__segment *segments;
	uint32_t segment_count, segment_capacity, number_next;
	struct ssd__foreign *foreign;
	uint32_t foreign_count;
	struct ssd__record *records; /* scanned, until they are handed over */
	uint64_t record_count, record_capacity, record_at;
	bool scan_posted, direct_refused, posted;
	struct ssd__batch *batches; /* [SSD_BATCHES] */
	uint32_t batch_next, operations_open;
	uint64_t turn_bytes; /* of I/O that ended in this turn */
	uint64_t io_count, reads, writes, grows; /* for injected faults */
};

static inline uint8_t *ssd__zero_page(const struct ssd *ssd)
{
	return ssd->pages;
}

static inline void ssd__count(_Atomic uint64_t *counter, uint64_t amount)
{
	atomic_fetch_add_explicit(counter, amount, memory_order_relaxed);
}

/* ---- ssd_open.c ---- */

void ssd__wake(struct ssd *ssd); /* the disk thread; any thread */

/* ---- ssd_disk.c: pages, segments, growing ---- */

static inline uint64_t ssd__segment_size(const struct ssd *ssd, uint32_t slot_count)
{
	return SSD_PAGE + slot_count * (SSD_PAGE + ssd->shape.block_bytes);
}
static inline uint64_t ssd__header_offset(uint32_t slot)
{
	return (uint64_t)(1 + slot) * SSD_PAGE;
}
static inline uint64_t ssd__data_offset(const struct ssd *ssd, uint32_t slot_count, uint32_t slot)
{
	return (uint64_t)(1 + slot_count) * SSD_PAGE + slot * ssd->shape.block_bytes;
}

/* Everything in the header but the place, which the disk thread knows, and the checksum. */
void ssd__slot_page_fill(const struct ssd *ssd, const struct kv_key *key, const struct kv_key *parent,
			 const uint64_t sums[], uint64_t generation, struct ssd__slot_page *page);
void ssd__slot_page_seal(const struct ssd *ssd, struct ssd__slot place, struct ssd__slot_page *page);
enum ssd__verdict { PAGE_EMPTY, PAGE_DAMAGED, PAGE_FOREIGN, PAGE_OURS };
enum ssd__verdict ssd__slot_page_judge(const struct ssd *ssd, uint32_t number, uint32_t slot,
				       const struct ssd__slot_page *page);
enum ssd__verdict ssd__segment_page_judge(const struct ssd *ssd, uint32_t number,
					  const struct ssd__segment_page *page);
void ssd__segment_name(uint32_t number, char ret_name[32]);
bool ssd__segment_parse(const char *name, uint32_t *ret_number);
/* Return: a descriptor, O_DIRECT where the file system has it, or -errno. */
int ssd__segment_open(struct ssd *ssd, uint32_t number, int flags);
int ssd__segment_add(struct ssd *ssd, int fd, uint32_t number, uint32_t slot_count);
void ssd__foreign_remove(struct ssd *ssd, uint64_t bytes_wanted);
void ssd__grow_start(struct ssd *ssd, struct ssd__operation *operation);

/* ---- ssd_scan.c ---- */

void ssd__scan(struct ssd *ssd);

/* ---- ssd_thread.c ---- */

void *ssd__thread_main(void *argument);
void ssd__operation_end(struct ssd *ssd, struct ssd__operation *operation, int status);

#endif
