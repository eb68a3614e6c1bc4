/* Tables, and the thread that follows a store. */
#include "net/store.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "base/check.h"

/* ---- tables ---- */

void store_table_fini(struct store_table *table)
{
	for (uint32_t i = 0; i < table->count; i++) {
		free(table->records[i].id);
		free(table->records[i].value);
	}
	free(table->records);
	if (table->capacity)
		map_fini(&table->index);
	*table = (struct store_table){ 0 };
}

/* FNV-1a: ids are few and the operator's own. */
static uint64_t id_hash(const char *id)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);
	for (; *id; id++)
		hash = (hash ^ (unsigned char)*id) * UINT64_C(0x100000001b3);
	return hash;
}

struct store_record *store_table_find(const struct store_table *table, const char *id)
{
	uint64_t position;
	if (!table->capacity || !map_get(&table->index, id_hash(id), &position))
		return NULL;
	struct store_record *record = &table->records[position];
	return strcmp(record->id, id) ? NULL : record;
}

/* The id of a record, allocated. */
static int record_id(const char *value, char **ret_id)
{
	if (strlen(value) > STORE_RECORD_BYTES_MAX || strpbrk(value, "\n\r"))
		return -EBADMSG;
	json_t *json = json_loads(value, JSON_REJECT_DUPLICATES, NULL);
	const char *id = json_string_value(json_object_get(json, "id"));
	int result = id && *id && strlen(id) <= STORE_ID_BYTES_MAX ? 0 : -EBADMSG;
	if (!result) {
		*ret_id = strdup(id);
		result = *ret_id ? 0 : -ENOMEM;
	}
	json_decref(json);
	return result;
}

static int table_grow(struct store_table *table)
{
	struct map index;
	if (table->count < table->capacity)
		return 0;
	if (table->count >= STORE_RECORDS_MAX)
		return -ENOSPC;
	uint32_t capacity = MAX(16u, table->capacity * 2);
	if (map_init(&index, capacity))
		return -ENOMEM;
	void *grown = realloc(table->records, capacity * sizeof *table->records);
	if (!grown) {
		map_fini(&index);
		return -ENOMEM;
	}
	table->records = grown;
	for (uint32_t i = 0; i < table->count; i++)
		CHECK(!map_put(&index, id_hash(table->records[i].id), i));
	if (table->capacity)
		map_fini(&table->index);
	table->index = index;
	table->capacity = capacity;
	return 0;
}

int store_table_put(struct store_table *table, const char *value)
{
	char *id = NULL, *copy = NULL;
	int result = record_id(value, &id);
	if (result)
		return result;
	struct store_record *record = store_table_find(table, id);
	copy = strdup(value);
	if (!copy) {
		result = -ENOMEM;
		goto failed;
	}
	if (record) {
		free(record->value);
		free(id);
		record->value = copy;
		record->changed = true;
		return 0;
	}
	result = table_grow(table);
	if (!result && map_put(&table->index, id_hash(id), table->count))
		result = -EBADMSG; /* two ids of one hash */
	if (result)
		goto failed;
	table->records[table->count++] = (struct store_record){ id, copy, true };
	return 0;
failed:
	free(copy);
	free(id);
	return result;
}

/* ---- the watch ---- */

struct store_watch {
	struct store *store;
	uint64_t period_ns;
	struct store_watch_callbacks callbacks;
	void *context;
	uv_thread_t thread;
	uv_sem_t looked; /* the first look is over */
	/* Under the mutex. */
	uv_mutex_t mutex;
	uv_cond_t wake;
	bool stop;
	/* The watch thread's. */
	uint64_t stamp;
	int state;
	bool has_table;
};

static int look(struct store_watch *watch)
{
	struct store_table table = { 0 };
	uint64_t stamp;
	int result = store_stamp(watch->store, &stamp);
	if (result || (watch->has_table && stamp == watch->stamp))
		return result;
	/* The stamp is older than the table or as old: a change in between is seen next time. */
	result = store_read(watch->store, &table);
	if (!result) {
		watch->stamp = stamp;
		watch->has_table = true;
		watch->callbacks.on_table(&table, watch->context);
	}
	store_table_fini(&table);
	return result;
}

static void watch_main(void *argument)
{
	struct store_watch *watch = argument;
	uint64_t wait_ns = watch->period_ns;
	bool first = true, stop = false;
	while (!stop) {
		int result = look(watch);
		if (result != watch->state)
			watch->callbacks.on_state(result, watch->context);
		watch->state = result;
		wait_ns = result ? MIN(wait_ns * 2, STORE_BACKOFF_MAX_NS) : watch->period_ns;
		if (first)
			uv_sem_post(&watch->looked);
		first = false;
		uv_mutex_lock(&watch->mutex);
		if (!watch->stop)
			(void)uv_cond_timedwait(&watch->wake, &watch->mutex, wait_ns);
		stop = watch->stop;
		uv_mutex_unlock(&watch->mutex);
	}
}

int store_watch_start(struct store *store, uint64_t period_ns,
		      const struct store_watch_callbacks *callbacks, void *context,
		      struct store_watch **ret_watch)
{
	struct store_watch *watch = calloc(1, sizeof *watch);
	if (!watch)
		return -ENOMEM;
	watch->store = store;
	watch->period_ns = period_ns;
	watch->callbacks = *callbacks;
	watch->context = context;
	if (uv_sem_init(&watch->looked, 0))
		goto no_semaphore;
	if (uv_mutex_init(&watch->mutex))
		goto no_mutex;
	if (uv_cond_init(&watch->wake))
		goto no_cond;
	if (uv_thread_create(&watch->thread, watch_main, watch))
		goto no_thread;
	uv_sem_wait(&watch->looked);
	*ret_watch = watch;
	return 0;
no_thread:
	uv_cond_destroy(&watch->wake);
no_cond:
	uv_mutex_destroy(&watch->mutex);
no_mutex:
	uv_sem_destroy(&watch->looked);
no_semaphore:
	free(watch);
	return -ENOMEM;
}

void store_watch_stop(struct store_watch *watch)
{
	if (!watch)
		return;
	uv_mutex_lock(&watch->mutex);
	watch->stop = true;
	uv_cond_signal(&watch->wake);
	uv_mutex_unlock(&watch->mutex);
	uv_thread_join(&watch->thread);
	uv_cond_destroy(&watch->wake);
	uv_mutex_destroy(&watch->mutex);
	uv_sem_destroy(&watch->looked);
	store_close(watch->store);
	free(watch);
}
