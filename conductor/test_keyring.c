/* Tables of keys, their use over a change, and the way from a store to the fronts. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "conductor/key_source.h"

#define NOW UINT64_C(1700000000)

struct issued {
	struct api_key key;
	char secret[API_KEY_TEXT_BYTES + 1];
};

static int change_issue(struct store_table *table, void *context)
{
	struct issued *issued = context;
	return api_key_issue(table, &issued->key, issued->secret);
}

static int change_revoke(struct store_table *table, void *context)
{
	struct issued *issued = context;
	char id[17];
	snprintf(id, sizeof id, "%016llx", (unsigned long long)issued->key.id);
	return api_key_revoke(table, id, NOW);
}

static struct issued wish(const char *tenant, uint64_t expires_s, uint32_t requests, uint32_t tokens)
{
	struct issued issued = { .key = { .expires_s = expires_s, .requests_per_minute = requests,
					  .tokens_per_minute = tokens } };
	snprintf(issued.key.name, sizeof issued.key.name, "n");
	snprintf(issued.key.tenant, sizeof issued.key.tenant, "%s", tenant);
	return issued;
}

static void test_find(void **state)
{
	struct store_table table = { 0 };
	struct issued a = wish("a", 0, 0, 0), b = wish("b", NOW + 10, 0, 0);
	const struct keyring_entry *entry = NULL;
	uint32_t bad;
	assert_int_equal(change_issue(&table, &a), 0);
	assert_int_equal(change_issue(&table, &b), 0);
	assert_int_equal(store_table_put(&table, "{\"id\":\"no key\"}"), 0);
	struct keyring *ring = keyring_new(&table, NULL, &bad);
	assert_int_equal(bad, 1);
	assert_int_equal(keyring_count(ring), 2);
	assert_int_equal(keyring_find(ring, a.secret, NOW, &entry), KEYRING_VALID);
	assert_string_equal(entry->key.tenant, "a");
	assert_int_equal(keyring_find(ring, b.secret, NOW + 9, &entry), KEYRING_VALID);
	assert_int_equal(keyring_find(ring, b.secret, NOW + 10, &entry), KEYRING_EXPIRED);
	/* The right id with a wrong secret learns nothing. */
	b.secret[API_KEY_TEXT_BYTES - 1] ^= 1;
	assert_int_equal(keyring_find(ring, b.secret, NOW + 10, &entry), KEYRING_UNKNOWN);
	assert_int_equal(keyring_find(ring, "", NOW, &entry), KEYRING_UNKNOWN);
	assert_int_equal(keyring_find(ring, "sk-baton-", NOW, &entry), KEYRING_UNKNOWN);
	keyring_unref(ring);
	assert_int_equal(change_revoke(&table, &a), 0);
	ring = keyring_new(&table, NULL, &bad);
	assert_int_equal(keyring_find(ring, a.secret, NOW, &entry), KEYRING_REVOKED);
	keyring_unref(ring);
	store_table_fini(&table);
}

static void test_use_is_carried_over(void **state)
{
	struct store_table table = { 0 };
	struct issued a = wish("a", 0, 2, 100), b = wish("a", 0, 0, 0);
	const struct keyring_entry *entry = NULL;
	uint32_t bad;
	assert_int_equal(change_issue(&table, &a), 0);
	struct keyring *old = keyring_new(&table, NULL, &bad);
	assert_int_equal(keyring_find(old, a.secret, NOW, &entry), KEYRING_VALID);
	struct key_use *use = key_use_ref(entry->use);
	assert_int_equal(key_use_admit(use, 0), 0);
	assert_int_equal(change_issue(&table, &b), 0);
	struct keyring *ring = keyring_new(&table, old, &bad);
	keyring_unref(old);
	assert_int_equal(keyring_find(ring, a.secret, NOW, &entry), KEYRING_VALID);
	assert_ptr_equal(entry->use, use);
	assert_int_equal(key_use_admit(entry->use, 0), 0);
	assert_true(key_use_admit(entry->use, 0) == 30 * NS_PER_S);
	/* Tokens in debt hold requests back, and a refused request costs nothing. */
	key_use_prompt(entry->use, 150, 60 * NS_PER_S);
	key_use_generated(entry->use, 50, 60 * NS_PER_S);
	uint64_t wait_ns = key_use_admit(entry->use, 60 * NS_PER_S);
	assert_true(wait_ns == 60 * NS_PER_S + 600 * NS_PER_MS);
	assert_true(key_use_admit(entry->use, 60 * NS_PER_S) == wait_ns);
	assert_int_equal(key_use_admit(entry->use, 60 * NS_PER_S + wait_ns), 0);
	/* Without rates nothing is held back. */
	assert_int_equal(keyring_find(ring, b.secret, NOW, &entry), KEYRING_VALID);
	key_use_prompt(entry->use, 1u << 30, 0);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(key_use_admit(entry->use, 0), 0);
	keyring_unref(ring);
	/* A request that outlives the table. */
	key_use_generated(use, 5, 0);
	key_use_unref(use);
	store_table_fini(&table);
}

#define WAIT_FOR(condition)                                                                      \
	do {                                                                                     \
		for (int tries = 0; tries < 1000 && !(condition); tries++)                       \
			usleep(5000);                                                            \
		assert_true(condition);                                                          \
	} while (0)

static enum keyring_verdict verdict(struct key_source *source, uint32_t front, const char *secret)
{
	const struct keyring_entry *entry;
	const struct keyring *ring = key_source_get(source, front);
	return ring ? keyring_find(ring, secret, NOW, &entry) : KEYRING_UNKNOWN;
}

static void test_source(void **state)
{
	struct metrics *metrics = metrics_new();
	struct store *store;
	struct key_source *source;
	struct issued a = wish("a", 0, 0, 0), b = wish("b", 0, 0, 0), c = wish("c", 0, 0, 0);
	struct buf text;
	assert_int_equal(store_memory_open(&store), 0);
	assert_int_equal(store_update(store, change_issue, &a), 0);
	store_memory_fault(store, -ECONNREFUSED, 0);
	assert_int_equal(key_source_open(store, "memory", 2 * NS_PER_MS, metrics, 2, &source), 0);
	/* Nothing was ever read: that is not the same as an empty table. */
	assert_null(key_source_get(source, 0));
	store_memory_fault(store, 0, 0);
	WAIT_FOR(verdict(source, 0, a.secret) == KEYRING_VALID);
	assert_int_equal(verdict(source, 1, a.secret), KEYRING_VALID);
	/* The store fails: what is known stays, at once and for ever. */
	store_memory_fault(store, -ETIMEDOUT, NS_PER_S / 5);
	usleep(20000);
	uint64_t began_ns = clock_now_ns();
	for (int i = 0; i < 1000; i++)
		assert_int_equal(verdict(source, 0, a.secret), KEYRING_VALID);
	assert_true(clock_now_ns() - began_ns < NS_PER_S);
	store_memory_fault(store, 0, 0);
	assert_int_equal(store_update(store, change_issue, &b), 0);
	assert_int_equal(store_update(store, change_issue, &c), 0);
	assert_int_equal(store_update(store, change_revoke, &a), 0);
	WAIT_FOR(verdict(source, 0, a.secret) == KEYRING_REVOKED);
	assert_int_equal(verdict(source, 0, b.secret), KEYRING_VALID);
	/* Series of tenants are bounded. */
	buf_init(&text, 0);
	metrics_render(metrics, &text);
	assert_non_null(strstr(text.data, "baton_tenant_requests_total{tenant=\"a\"} 0\n"));
	assert_non_null(strstr(text.data, "tenant=\"(others)\""));
	assert_non_null(strstr(text.data, "baton_keys 3\n"));
	assert_non_null(strstr(text.data, "baton_key_store_up 1\n"));
	buf_fini(&text);
	key_source_close(source);
	metrics_free(metrics);
}

/* Fronts look up while the table is exchanged under them. */
static _Atomic bool over;

struct reader {
	struct key_source *source;
	uint32_t front;
	const char *secret;
	uint64_t misses;
};

static void *read_main(void *argument)
{
	struct reader *reader = argument;
	while (!atomic_load(&over))
		reader->misses += verdict(reader->source, reader->front, reader->secret) !=
				  KEYRING_VALID;
	return NULL;
}

static void test_source_under_change(void **state)
{
	struct metrics *metrics = metrics_new();
	struct store *store;
	struct key_source *source;
	struct issued a = wish("a", 0, 0, 0);
	struct reader readers[2];
	pthread_t threads[2];
	assert_int_equal(store_memory_open(&store), 0);
	assert_int_equal(store_update(store, change_issue, &a), 0);
	assert_int_equal(key_source_open(store, "memory", NS_PER_MS, metrics, 0, &source), 0);
	for (uint32_t i = 0; i < 2; i++) {
		readers[i] = (struct reader){ source, i, a.secret, 0 };
		pthread_create(&threads[i], NULL, read_main, &readers[i]);
	}
	for (int i = 0; i < 100; i++) {
		struct issued more = wish("more", 0, 0, 0);
		assert_int_equal(store_update(store, change_issue, &more), 0);
		usleep(1000);
	}
	atomic_store(&over, true);
	for (uint32_t i = 0; i < 2; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(readers[i].misses, 0);
	}
	key_source_close(source);
	metrics_free(metrics);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_find),
		cmocka_unit_test(test_use_is_carried_over),
		cmocka_unit_test(test_source),
		cmocka_unit_test(test_source_under_change),
	};
	log_init("test", LOG_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
