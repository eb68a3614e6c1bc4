/*
 * Where a conductor's API keys come from, followed by the store thread (net/store.h), and the
 * mailboxes through which the fronts get them (conductor/keyring.h).
 */
#ifndef BATON_CONDUCTOR_KEY_SOURCE_H
#define BATON_CONDUCTOR_KEY_SOURCE_H

#include "base/metrics.h"
#include "conductor/keyring.h"

struct key_source;

/*
 * key_source_open() - begins to follow @store
 * @store:       taken, whatever is returned
 * @name:        of the file or the server, for log lines; kept
 * @period_ns:   between two looks
 * @tenants_max: as many tenants get metrics of their own, later ones share tenant="(others)"; 0: none
 *
 * The first look is over when it returns; a store that could not be read is tried again for ever.
 */
int key_source_open(struct store *store, const char *name, uint64_t period_ns,
		    struct metrics *metrics, uint32_t tenants_max, struct key_source **ret_source);
/* When the fronts are gone. NULL: nothing. */
void key_source_close(struct key_source *source);
/* The newest table, for the thread of front @front only, valid until its next call; NULL: none was
 * ever read. */
const struct keyring *key_source_get(struct key_source *source, uint32_t front);

#endif
