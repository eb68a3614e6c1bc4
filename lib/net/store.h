/*
 * The metadata store: a small table of records that several processes share. Behind the seam lie
 * memory (tests), a file, and Redis. Records are one-line JSON objects with a text member "id".
 *
 * Every call of a store may wait for a disk or a network, so none belongs on a loop: `baton keys`
 * calls them from its only thread, daemons through store_watch, which owns the store and a thread
 * of its own. Nothing that decides waits for a store: it reads the last table that arrived.
 */
#ifndef BATON_NET_STORE_H
#define BATON_NET_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/map.h"

#define STORE_RECORDS_MAX 65536
#define STORE_RECORD_BYTES_MAX 4096
#define STORE_ID_BYTES_MAX 64

struct store_record {
	char *id, *value;
	bool changed; /* since it was read: what update() has to write */
};

struct store_table {
	struct store_record *records;
	uint32_t count, capacity;
	struct map index; /* hash of the id -> position */
};

void store_table_fini(struct store_table *table); /* leaves it empty, fit for reuse */
/* NULL when there is none. The table's until its next change. */
struct store_record *store_table_find(const struct store_table *table, const char *id);
/*
 * Adds @value, copied, under its own "id", or replaces what is there.
 * Return: 0, -EBADMSG (no one-line object with an id, or too long), -ENOSPC, -ENOMEM.
 */
int store_table_put(struct store_table *table, const char *value);

/*
 * What update() asks for: reads and changes @table by store_table_put(). May be called several
 * times for one update, each time with a table read anew, when others write too; a negative
 * return leaves the store as it is and becomes update()'s result.
 */
typedef int (*store_change)(struct store_table *table, void *context);

struct store;

struct store_ops {
	/*
	 * A number that differs from the last one when anything may have changed. Cheap.
	 * Return: 0, or negative: -ENOENT when nothing was ever stored.
	 */
	int (*stamp)(struct store *store, uint64_t *ret_stamp);
	/* Adds everything to @ret_table, which is empty; filled only on success. */
	int (*read)(struct store *store, struct store_table *ret_table);
	/* Reads, changes and writes as one step that no other writer can get between. */
	int (*update)(struct store *store, store_change change, void *context);
	void (*close)(struct store *store);
};

/* One thread at a time. */
struct store {
	const struct store_ops *ops;
};

static inline int store_stamp(struct store *store, uint64_t *ret_stamp)
{
	return store->ops->stamp(store, ret_stamp);
}

static inline int store_read(struct store *store, struct store_table *ret_table)
{
	return store->ops->read(store, ret_table);
}

static inline int store_update(struct store *store, store_change change, void *context)
{
	return store->ops->update(store, change, context);
}

static inline void store_close(struct store *store)
{
	if (store)
		store->ops->close(store);
}

/* In memory, for tests; any thread. */
int store_memory_open(struct store **ret_store);
/* From now on each call waits @delay_ns and then fails with @error (0: works). */
void store_memory_fault(struct store *store, int error, uint64_t delay_ns);

/*
 * A file of one record a line, mode 0600, replaced as a whole (rename), writers in turn (flock on
 * PATH.lock). It need not exist yet: stamp and read then return -ENOENT. -EBADMSG: a line is no
 * record; such a file is never written over.
 */
int store_file_open(const char *path, struct store **ret_store);

/*
 * @place: HOST:PORT, [HOST]:PORT, either with /PREFIX (else "baton"). Records are the hash
 * PREFIX:keys; PREFIX:keys:version changes with each update. Each connect and each wait for an
 * answer ends after @timeout_ns with -ETIMEDOUT; a broken connection is made anew by the next
 * call. Return: 0 without having connected, -EINVAL when @place does not read so, -ENOMEM.
 */
int store_redis_open(const char *place, uint64_t timeout_ns, struct store **ret_store);

/* ---- watching ---- */

struct store_watch;

struct store_watch_callbacks {
	/* On the watch's thread: @table is new; borrowed. */
	void (*on_table)(const struct store_table *table, void *context);
	/* On the watch's thread: the store began to fail with @error, or failed otherwise, or
	 * works again (0). What arrived last stays true meanwhile. */
	void (*on_state)(int error, void *context);
};

/*
 * store_watch_start() - follows a store from a thread of its own
 * @store:     taken; closed by store_watch_stop()
 * @period_ns: between two looks; failures stretch it up to STORE_BACKOFF_MAX_NS
 *
 * Returns after the first look, whatever came of it: a store's own timeouts bound that.
 * Return: 0, or -ENOMEM, with @store still the caller's.
 */
#define STORE_BACKOFF_MAX_NS UINT64_C(1500000000) /* so that news is never later than 2 s */
int store_watch_start(struct store *store, uint64_t period_ns,
		      const struct store_watch_callbacks *callbacks, void *context,
		      struct store_watch **ret_watch);
/* No callback runs after it returns. Waits for a call under way. */
void store_watch_stop(struct store_watch *watch);

#endif
