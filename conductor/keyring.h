/*
 * The API keys as a conductor knows them: an immutable table in memory, found by the id within the
 * key's text. The store's thread builds a new one when the store changed and leaves it in a mailbox
 * for each front; a front takes it at its next look-up. So a look-up touches no lock, disk or
 * network, and a store that is slow or gone changes nothing: the last table stays.
 *
 * What a key has used lives beside the table, counted, and is carried from one table to the next.
 */
#ifndef BATON_CONDUCTOR_KEYRING_H
#define BATON_CONDUCTOR_KEYRING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/metrics.h"
#include "net/api_key.h"
#include "net/store.h"

/* What a key has taken of its rates; shared by all fronts and by requests that outlive the table. */
struct key_use {
	_Atomic uint32_t references;
	_Atomic uint64_t requests_full_ns, tokens_full_ns; /* quota.h */
	_Atomic uint32_t requests_per_minute, tokens_per_minute;
	struct metric *requests, *prompt_tokens, *generation_tokens; /* NULL: not asked for */
};

void key_use_unref(struct key_use *use); /* NULL: nothing */
struct key_use *key_use_ref(struct key_use *use);
/* Takes one request. Return: 0, or how long to wait, with nothing taken. */
uint64_t key_use_admit(struct key_use *use, uint64_t now_ns);
/* Tokens that were computed; the next request waits until they are paid for. */
void key_use_prompt(struct key_use *use, uint64_t tokens, uint64_t now_ns);
void key_use_generated(struct key_use *use, uint64_t tokens, uint64_t now_ns);

struct keyring_entry {
	struct api_key key;
	struct key_use *use;
};

struct keyring;

enum keyring_verdict { KEYRING_VALID, KEYRING_UNKNOWN, KEYRING_REVOKED, KEYRING_EXPIRED };

/*
 * keyring_new() - a table of all records that are keys
 * @old:         what to carry use over from, or NULL
 * @ret_bad:     records that are no keys
 * Return: with one reference, or NULL when out of memory.
 */
struct keyring *keyring_new(const struct store_table *table, const struct keyring *old,
			    uint32_t *ret_bad);
struct keyring *keyring_ref(struct keyring *ring);
void keyring_unref(struct keyring *ring); /* NULL: nothing */
uint32_t keyring_count(const struct keyring *ring);
struct keyring_entry *keyring_at(struct keyring *ring, uint32_t index);
/* @ret_entry: the table's; only with KEYRING_VALID. Says revoked or expired only to who holds
 * the secret. */
enum keyring_verdict keyring_find(const struct keyring *ring, const char *text, uint64_t now_s,
				  const struct keyring_entry **ret_entry);

#endif
