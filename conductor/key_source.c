#include "conductor/key_source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/log.h"
#include "conductor/bridge.h"

#define TENANTS_MAX 1024

struct mailbox {
	_Alignas(64) _Atomic(struct keyring *) arrived; /* taken by whoever exchanges it */
	struct keyring *current;			    /* the front's */
};

struct key_source {
	struct mailbox mailboxes[BRIDGE_FRONTS_MAX];
	const char *name;
	struct store_watch *watch;
	struct metric *up, *key_count; /* gauges */
	/* The store thread's. */
	struct keyring *newest;
	struct metric_family *tenant_requests, *tenant_prompt, *tenant_generation;
	char (*tenants)[API_KEY_NAME_MAX + 1];
	uint32_t tenant_count, tenants_max;
};

/* ---- metrics by tenant ---- */

/* The label: the tenant's own while there is room. */
static const char *tenant_label(struct key_source *source, const char *tenant)
{
	for (uint32_t i = 0; i < source->tenant_count; i++)
		if (!strcmp(source->tenants[i], tenant))
			return tenant;
	if (source->tenant_count == source->tenants_max)
		return "(others)"; /* no tenant can be called so */
	memcpy(source->tenants[source->tenant_count++], tenant, API_KEY_NAME_MAX + 1);
	return tenant;
}

static void name_series(struct key_source *source, struct keyring *ring)
{
	for (uint32_t i = 0; source->tenants_max && i < keyring_count(ring); i++) {
		struct keyring_entry *entry = keyring_at(ring, i);
		if (entry->use->requests)
			continue; /* carried over, and in use by the fronts */
		const char *label = tenant_label(source, entry->key.tenant);
		entry->use->requests = metric_series(source->tenant_requests, "tenant=\"%s\"", label);
		entry->use->prompt_tokens =
			metric_series(source->tenant_prompt, "tenant=\"%s\"", label);
		entry->use->generation_tokens =
			metric_series(source->tenant_generation, "tenant=\"%s\"", label);
	}
}

static void register_metrics(struct key_source *source, struct metrics *m)
{
	source->up = metric_series(metrics_gauge(m, "baton_key_store_up",
						 "1 while the store of API keys can be read."),
				   "%s", "");
	source->key_count = metric_series(metrics_gauge(m, "baton_keys", "API keys known."), "%s", "");
	if (!source->tenants_max)
		return;
	source->tenant_requests = metrics_counter(m, "baton_tenant_requests",
						  "Requests admitted, by tenant.");
	source->tenant_prompt = metrics_counter(m, "baton_tenant_prompt_tokens",
						"Prompt tokens, by tenant.");
	source->tenant_generation = metrics_counter(m, "baton_tenant_generation_tokens",
						    "Tokens generated, by tenant.");
}

/* ---- the store thread ---- */

static void on_table(const struct store_table *table, void *context)
{
	struct key_source *source = context;
	uint32_t bad = 0;
	struct keyring *ring = keyring_new(table, source->newest, &bad);
	if (!ring) {
		log_error("out of memory: a change of the API keys is not taken in");
		return;
	}
	if (bad)
		log_warning("%s: %u records are no keys and count for nothing", source->name, bad);
	name_series(source, ring);
	for (uint32_t i = 0; i < BRIDGE_FRONTS_MAX; i++)
		keyring_unref(atomic_exchange(&source->mailboxes[i].arrived, keyring_ref(ring)));
	keyring_unref(source->newest);
	source->newest = ring;
	metric_set(source->key_count, keyring_count(ring));
	metric_set(source->up, 1);
	log_info("%s: %u API keys", source->name, keyring_count(ring));
}

static void on_state(int error, void *context)
{
	struct key_source *source = context;
	metric_set(source->up, error ? 0 : 1);
	if (error)
		log_warning("%s: %s; %s", source->name,
			    error == -EBADMSG ? "not every line is a record" : err_text(error),
			    source->newest ? "the keys read before stay valid" : "no key is known yet");
	else
		log_info("%s can be read again", source->name);
}

/* ---- all threads ---- */

const struct keyring *key_source_get(struct key_source *source, uint32_t front)
{
	struct mailbox *box = &source->mailboxes[front];
	/* Nearly always empty: a plain load spares the exchange. */
	if (atomic_load_explicit(&box->arrived, memory_order_relaxed)) {
		struct keyring *ring = atomic_exchange(&box->arrived, NULL);
		if (ring) {
			keyring_unref(box->current);
			box->current = ring;
		}
	}
	return box->current;
}

static void source_free(struct key_source *source)
{
	for (uint32_t i = 0; i < BRIDGE_FRONTS_MAX; i++) {
		keyring_unref(atomic_load(&source->mailboxes[i].arrived));
		keyring_unref(source->mailboxes[i].current);
	}
	keyring_unref(source->newest);
	free(source->tenants);
	free(source);
}

int key_source_open(struct store *store, const char *name, uint64_t period_ns,
		    struct metrics *metrics, uint32_t tenants_max, struct key_source **ret_source)
{
	static const struct store_watch_callbacks callbacks = { on_table, on_state };
	struct key_source *source = aligned_alloc(64, ALIGN_UP(sizeof *source, 64));
	if (!source)
		goto no_source;
	memset(source, 0, sizeof *source);
	source->name = name;
	source->tenants_max = MIN(tenants_max, TENANTS_MAX);
	source->tenants = calloc(MAX(source->tenants_max, 1u), sizeof *source->tenants);
	if (!source->tenants)
		goto no_tenants;
	register_metrics(source, metrics);
	if (store_watch_start(store, period_ns, &callbacks, source, &source->watch))
		goto no_tenants;
	*ret_source = source;
	return 0;
no_tenants:
	source_free(source);
no_source:
	store_close(store);
	return -ENOMEM;
}

void key_source_close(struct key_source *source)
{
	if (!source)
		return;
	store_watch_stop(source->watch);
	source_free(source);
}
