#include "conductor/keyring.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/map.h"
#include "conductor/quota.h"

struct keyring {
	_Atomic uint32_t references;
	struct keyring_entry *entries;
	uint32_t count;
	struct map by_id; /* position in entries */
};

/* ---- use ---- */

struct key_use *key_use_ref(struct key_use *use)
{
	if (use)
		atomic_fetch_add(&use->references, 1);
	return use;
}

void key_use_unref(struct key_use *use)
{
	if (use && atomic_fetch_sub(&use->references, 1) == 1)
		free(use);
}

static void take(_Atomic uint64_t *full_ns, uint32_t per_minute, uint64_t amount, uint64_t now_ns)
{
	uint64_t seen = atomic_load(full_ns);
	while (!atomic_compare_exchange_weak(full_ns, &seen,
					     quota_take(seen, per_minute, amount, now_ns)))
		;
}

uint64_t key_use_admit(struct key_use *use, uint64_t now_ns)
{
	uint32_t rate = atomic_load(&use->requests_per_minute);
	uint64_t tokens_wait_ns = quota_wait_ns(atomic_load(&use->tokens_full_ns),
						atomic_load(&use->tokens_per_minute), now_ns);
	uint64_t seen = atomic_load(&use->requests_full_ns), wait_ns;
	do {
		wait_ns = MAX(tokens_wait_ns, quota_wait_ns(seen, rate, now_ns));
		if (wait_ns)
			return wait_ns;
	} while (!atomic_compare_exchange_weak(&use->requests_full_ns, &seen,
					       quota_take(seen, rate, 1, now_ns)));
	if (use->requests)
		metric_add(use->requests, 1);
	return 0;
}

void key_use_prompt(struct key_use *use, uint64_t tokens, uint64_t now_ns)
{
	take(&use->tokens_full_ns, atomic_load(&use->tokens_per_minute), tokens, now_ns);
	if (use->prompt_tokens)
		metric_add(use->prompt_tokens, (double)tokens);
}

void key_use_generated(struct key_use *use, uint64_t tokens, uint64_t now_ns)
{
	take(&use->tokens_full_ns, atomic_load(&use->tokens_per_minute), tokens, now_ns);
	if (use->generation_tokens)
		metric_add(use->generation_tokens, (double)tokens);
}

/* ---- tables ---- */

static const struct keyring_entry *find_id(const struct keyring *ring, uint64_t id)
{
	uint64_t position;
	return ring && map_get(&ring->by_id, id, &position) ? &ring->entries[position] : NULL;
}

static int entry_init(struct keyring_entry *entry, const struct keyring *old)
{
	const struct keyring_entry *before = find_id(old, entry->key.id);
	entry->use = before ? key_use_ref(before->use) : calloc(1, sizeof *entry->use);
	if (!entry->use)
		return -1;
	if (!before)
		atomic_store(&entry->use->references, 1);
	atomic_store(&entry->use->requests_per_minute, entry->key.requests_per_minute);
	atomic_store(&entry->use->tokens_per_minute, entry->key.tokens_per_minute);
	return 0;
}

struct keyring *keyring_new(const struct store_table *table, const struct keyring *old,
			    uint32_t *ret_bad)
{
	struct keyring *ring = calloc(1, sizeof *ring);
	uint32_t bad = 0;
	if (!ring)
		return NULL;
	atomic_store(&ring->references, 1);
	ring->entries = calloc(MAX(table->count, 1u), sizeof *ring->entries);
	if (!ring->entries || map_init(&ring->by_id, MAX(table->count, 1u))) {
		free(ring->entries);
		free(ring);
		return NULL;
	}
	for (uint32_t i = 0; i < table->count; i++) {
		struct keyring_entry *entry = &ring->entries[ring->count];
		if (api_key_parse(table->records[i].value, &entry->key) ||
		    map_put(&ring->by_id, entry->key.id, ring->count)) {
			bad++;
			continue;
		}
		if (entry_init(entry, old)) {
			keyring_unref(ring);
			return NULL;
		}
		ring->count++;
	}
	*ret_bad = bad;
	return ring;
}

struct keyring *keyring_ref(struct keyring *ring)
{
	atomic_fetch_add(&ring->references, 1);
	return ring;
}

void keyring_unref(struct keyring *ring)
{
	if (!ring || atomic_fetch_sub(&ring->references, 1) != 1)
		return;
	for (uint32_t i = 0; i < ring->count; i++)
		key_use_unref(ring->entries[i].use);
	map_fini(&ring->by_id);
	free(ring->entries);
	free(ring);
}

uint32_t keyring_count(const struct keyring *ring)
{
	return ring->count;
}

struct keyring_entry *keyring_at(struct keyring *ring, uint32_t index)
{
	CHECK(index < ring->count);
	return &ring->entries[index];
}

enum keyring_verdict keyring_find(const struct keyring *ring, const char *text, uint64_t now_s,
				  const struct keyring_entry **ret_entry)
{
	uint64_t id;
	if (!api_key_text_id(text, &id))
		return KEYRING_UNKNOWN;
	const struct keyring_entry *entry = find_id(ring, id);
	if (!entry || !api_key_verify(&entry->key, text))
		return KEYRING_UNKNOWN;
	if (entry->key.revoked_s)
		return KEYRING_REVOKED;
	if (entry->key.expires_s && entry->key.expires_s <= now_s)
		return KEYRING_EXPIRED;
	*ret_entry = entry;
	return KEYRING_VALID;
}
