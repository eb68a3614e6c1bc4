/* The store in memory: what tests put behind the seam, with faults. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <uv.h>

#include "base/check.h"
#include "base/clock.h"
#include "net/store.h"

struct store_memory {
	struct store store;
	uv_mutex_t mutex; /* over all below */
	struct store_table table;
	uint64_t stamp, delay_ns;
	int error;
};

static struct store_memory *memory_of(struct store *store)
{
	return container_of(store, struct store_memory, store);
}

static int table_copy(const struct store_table *from, struct store_table *to)
{
	int result = 0;
	for (uint32_t i = 0; !result && i < from->count; i++) {
		result = store_table_put(to, from->records[i].value);
		if (!result)
			to->records[i].changed = false;
	}
	return result;
}

/* Locks, unless a fault is set. */
static int enter(struct store_memory *memory)
{
	uv_mutex_lock(&memory->mutex);
	int error = memory->error;
	uint64_t delay_ns = memory->delay_ns;
	if (!error && !delay_ns)
		return 0;
	uv_mutex_unlock(&memory->mutex);
	struct timespec wait = { (time_t)(delay_ns / NS_PER_S), (long)(delay_ns % NS_PER_S) };
	(void)nanosleep(&wait, NULL);
	if (!error)
		uv_mutex_lock(&memory->mutex);
	return error;
}

static int memory_stamp(struct store *store, uint64_t *ret_stamp)
{
	struct store_memory *memory = memory_of(store);
	int result = enter(memory);
	if (result)
		return result;
	*ret_stamp = memory->stamp;
	uv_mutex_unlock(&memory->mutex);
	return 0;
}

static int memory_read(struct store *store, struct store_table *ret_table)
{
	struct store_memory *memory = memory_of(store);
	int result = enter(memory);
	if (result)
		return result;
	result = table_copy(&memory->table, ret_table);
	uv_mutex_unlock(&memory->mutex);
	if (result)
		store_table_fini(ret_table);
	return result;
}

static int memory_update(struct store *store, store_change change, void *context)
{
	struct store_memory *memory = memory_of(store);
	struct store_table table = { 0 };
	int result = enter(memory);
	if (result)
		return result;
	result = table_copy(&memory->table, &table);
	if (!result)
		result = change(&table, context);
	if (!result) {
		struct store_table old = memory->table;
		memory->table = table;
		table = old;
		memory->stamp++;
	}
	uv_mutex_unlock(&memory->mutex);
	store_table_fini(&table);
	return result;
}

static void memory_close(struct store *store)
{
	struct store_memory *memory = memory_of(store);
	store_table_fini(&memory->table);
	uv_mutex_destroy(&memory->mutex);
	free(memory);
}

static const struct store_ops memory_ops = { memory_stamp, memory_read, memory_update,
					     memory_close };

int store_memory_open(struct store **ret_store)
{
	struct store_memory *memory = calloc(1, sizeof *memory);
	if (!memory)
		return -ENOMEM;
	if (uv_mutex_init(&memory->mutex)) {
		free(memory);
		return -ENOMEM;
	}
	memory->store.ops = &memory_ops;
	*ret_store = &memory->store;
	return 0;
}

void store_memory_fault(struct store *store, int error, uint64_t delay_ns)
{
	struct store_memory *memory = memory_of(store);
	uv_mutex_lock(&memory->mutex);
	memory->error = error;
	memory->delay_ns = delay_ns;
	uv_mutex_unlock(&memory->mutex);
}
