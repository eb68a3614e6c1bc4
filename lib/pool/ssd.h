/*
 * The SSD tier: whole KV blocks in preallocated files of one folder. It knows blocks of one fixed
 * size and one kv_format by key, parent and the sums of their layer slices; it does not know
 * requests, nodes or the network.
 *
 * It is a cache: any block may be gone. What it promises is the other half.
 *   S1  ssd_get() never reports bytes that differ from what was put: every slice is checked against
 *       its sum (hash_slice()), every header against its own checksum, on every read.
 *   S2  After SIGKILL at any moment, or with files cut or overwritten anywhere, opening again adopts
 *       exactly the blocks whose header and bytes had been written whole (damage inside the bytes
 *       shows at the first read). A block whose SSD_PUT said 0 had been. After a loss of power a
 *       block that the disk had not kept is corrupt, hence a miss: nothing is fsync()ed.
 *   S3  The segment files never take more than config.bytes, another format's files included.
 *   S4  A block never leaves before its children, nor while it is read, written or pinned.
 *   S5  Memory given to ssd_put() and ssd_get() is neither read nor written after the event.
 *   S6  A full, failing, slow or vanished disk costs misses and dropped puts, which are counted.
 *
 * Files: FOLDER/lock keeps a second process out. FOLDER/segment-N.baton is one page that says what
 * it is, a table of one header page per slot, and the slots. Headers lie together so that a restart
 * reads them in large pieces. Reusing a slot clears its header, writes the block, and then, when
 * that has completed, the header. Segments of another kv_format or shape are kept while there is
 * room and go first when there is none.
 *
 * Threading: all calls from one thread, the loop. It owns the index and decides; a thread of the
 * ssd's own does the I/O (io_uring, or a pool of pread/pwrite threads where that is refused), hashes
 * and scans. Nothing here waits for the disk but ssd_close(). Outcomes are events.
 */
#ifndef BATON_POOL_SSD_H
#define BATON_POOL_SSD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kv/key.h"

#define SSD_ALIGN 4096
#define SSD_SLICES_MAX 480	/* their sums must fit a header page */
#define SSD_BLOCK_BYTES_MAX (1u << 30)
#define SSD_QUEUE_DEPTH_MAX 1024

struct ssd;

/* Faults for tests, all 0 in production. Every n-th I/O of a kind fails. */
struct ssd_faults {
	uint32_t read_fail_every, write_fail_every, grow_fail_every;
	uint32_t fail_nth;   /* the n-th I/O from when this is set, of any kind, once */
	uint32_t error;	     /* errno of those; 0: EIO */
	uint32_t flip_every; /* flip one bit of every n-th read */
	uint32_t short_every; /* every n-th transfer moves only a part at first */
	uint32_t delay_us;   /* each I/O starts that much later */
};

struct ssd_config {
	const char *path; /* folder, made when missing (its parent must be there) */
	uint64_t bytes;	  /* bound of all segment files together */
	/* The shape: a block is its slices, one after the other, each a multiple of SSD_ALIGN. */
	const uint32_t *slice_bytes; /* [slice_count], copied */
	uint32_t slice_count;
	uint8_t kv_format[32];
	uint32_t queue_depth;	/* puts and gets under way; 0: 64. Puts take at most three quarters. */
	uint64_t segment_bytes; /* about; 0: 128 MiB, more where that would be over 512 files */
	bool force_threads;	/* no io_uring */
	uint32_t thread_count;	/* of the pool without io_uring; 0: 16, never above queue_depth */
	/* Memory that most blocks come from and go to, registered with the kernel where it allows
	 * that. NULL: none. Stays mapped until ssd_close(). */
	void *arena;
	uint64_t arena_bytes;
	void (*notify)(void *context); /* any thread; uv_async_send fits */
	void *notify_context;
	struct ssd_faults faults;
};

/*
 * ssd_open() - take the folder and begin to scan it
 * Returns before anything was scanned: what is found arrives as SSD_ADOPTED events, then SSD_READY.
 * Until then every get is a miss and every put -EAGAIN.
 * Return: 0; -EBUSY when another process has the folder; -EINVAL for a malformed config; -errno.
 * On failure @ret_error says what was wrong.
 */
int ssd_open(const struct ssd_config *config, struct ssd **ret_ssd, char *ret_error,
	     size_t error_bytes);
/* Does what was accepted, and waits for it: callers' memory is used until then. No events any more. */
void ssd_close(struct ssd *ssd);

uint64_t ssd_block_bytes(const struct ssd *ssd);

/**
 * ssd_put() - keep a block
 * @key:    its key
 * @parent: the key before it, or NULL
 * @sums:   [slice_count] hash_slice() of each slice, copied
 * @block:  keeps; aligned to SSD_ALIGN
 * @user:   comes back in SSD_PUT
 *
 * Takes a free slot, else grows within the bound, else the coldest block gives way (SSD_EVICTED).
 *
 * Return: 0, SSD_PUT follows; or, and the put is dropped:
 *   -EEXIST  it is there or on its way; counts as a use
 *   -EAGAIN  too much is under way: try again after the next event
 *   -EBUSY   everything here is pinned, under way, or an ancestor of this block; or the folder could
 *            not take even one segment
 *   -EIO     the disk has failed repeatedly and is left alone for a while
 *   -EINVAL  @block is not aligned
 */
int ssd_put(struct ssd *ssd, const struct kv_key *key, const struct kv_key *parent,
	    const uint64_t sums[], const void *block, uint64_t user);

/**
 * ssd_get() - read @slice_count slices from @first_slice on, and verify them
 * @target: keeps; aligned to SSD_ALIGN; the slices follow one another. On any outcome but 0
 *          it may hold anything.
 *
 * Return: 0, SSD_GET follows; -ENOENT a miss (also while the disk is left alone); -EAGAIN too much
 * is under way; -EINVAL.
 */
int ssd_get(struct ssd *ssd, const struct kv_key *key, uint32_t first_slice, uint32_t slice_count,
	    void *target, uint64_t user);

bool ssd_has(const struct ssd *ssd, const struct kv_key *key);
void ssd_touch(struct ssd *ssd, const struct kv_key *key); /* a use; no-op on a miss */
/* Forgets a block; one being read or pinned goes with its last reader. No SSD_EVICTED. Return:
 * false when it was not there (one being written is not, and stays). */
bool ssd_drop(struct ssd *ssd, const struct kv_key *key);
/* Counted. A pinned block is not evicted. Return: false on a miss; then there is nothing to unpin. */
bool ssd_pin(struct ssd *ssd, const struct kv_key *key);
void ssd_unpin(struct ssd *ssd, const struct kv_key *key);

/* ---- events ---- */

enum ssd_event_kind {
	SSD_ADOPTED, /* found by the scan, coldest first: key, parent; verified when it is read */
	SSD_READY,   /* the scan is over, and room for puts was made if it could be */
	SSD_PUT,     /* user, key, status. 0: it is there. -ENOSPC: the disk is full. -EIO... */
	SSD_GET,     /* user, key, status. Other than 0 the block is gone: BATON_ECHECKSUM, -EIO... */
	SSD_EVICTED, /* gave way to a put: key */
	SSD_ROOM,    /* a put or get that was told -EAGAIN can be tried again */
};

struct ssd_event {
	enum ssd_event_kind kind;
	int status;
	uint64_t user;
	struct kv_key key, parent; /* parent: zero when none */
};

/* Next event; false when there is none. Whoever stops before that comes back without waiting for
 * notify(), which fires again only for what comes after a false. Each call adopts one block at most,
 * so the caller sets the pace. */
bool ssd_poll(struct ssd *ssd, struct ssd_event *ret_event);

struct ssd_stats {
	uint64_t blocks, slots_free, slots_retired; /* retired: a write failed; until reopened */
	uint64_t bytes, bytes_max;		    /* of segment files; the bound */
	uint32_t segments, segments_foreign;
	uint32_t puts_open, gets_open, open_max_seen;
	uint64_t puts, puts_failed, put_bytes;	       /* outcomes 0, others; bytes of the former */
	uint64_t puts_again, puts_busy, puts_ailing;   /* dropped at once: -EAGAIN, -EBUSY, -EIO */
	uint64_t gets, get_bytes, misses, gets_again;  /* outcome 0; no such block; -EAGAIN */
	uint64_t corrupt, read_errors, write_errors;
	uint64_t evictions, adopted;
	uint64_t headers_damaged; /* found by the scan: written, but no complete block of ours */
	uint64_t grow_failures;	  /* the folder could not take another segment */
	uint64_t segments_removed;
	int grow_error;		  /* of the last attempt; 0: it went well */
	bool scanning, ailing, uring, direct, arena_registered;
};
void ssd_stats(const struct ssd *ssd, struct ssd_stats *ret_stats);

void ssd_set_faults(struct ssd *ssd, const struct ssd_faults *faults); /* tests */
void ssd_check(const struct ssd *ssd); /* CHECKs the index; a walk over everything */

#endif
