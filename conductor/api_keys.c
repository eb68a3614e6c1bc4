/* Who a request comes from, and whether its rates have room. In memory only: nothing here waits. */
#include <openssl/crypto.h>
#include <string.h>
#include <strings.h>

#include "base/check.h"
#include "base/clock.h"
#include "conductor/front_private.h"

/* One of --api-key. All are compared, in constant time: how far a guess was right may not show. */
static bool is_own_key(const struct fronts_config *config, const char *text)
{
	bool ok = false;
	for (uint32_t i = 0; i < config->api_key_count; i++) {
		size_t bytes = strlen(config->api_keys[i]);
		ok |= strlen(text) == bytes && !CRYPTO_memcmp(text, config->api_keys[i], bytes);
	}
	return ok;
}

static int find_key(struct front *front, const char *text, struct api_error *error)
{
	const struct keyring_entry *entry;
	const struct keyring *ring =
		key_source_get(front->fronts->config->key_source, front->index);
	if (!ring) {
		(void)api_fail(error, 503, NULL, "API keys cannot be checked yet. Try again later.");
		error->retry_after_s = 1;
		return -1;
	}
	switch (keyring_find(ring, text, clock_wall_us() / 1000000, &entry)) {
	case KEYRING_VALID:
		front->caller = (struct api_caller){
			.tenant_salt = entry->key.tenant_salt,
			.use = entry->use,
			.priority = entry->key.priority,
			.admin = entry->key.class == API_KEY_ADMIN,
		};
		return 0;
	case KEYRING_REVOKED: return api_fail(error, 401, NULL, "This API key has been revoked.");
	case KEYRING_EXPIRED: return api_fail(error, 401, NULL, "This API key has expired.");
	case KEYRING_UNKNOWN: break;
	}
	return api_fail(error, 401, NULL, "This API key is not valid.");
}

int api_authenticate(struct front *front, struct http_exchange *exchange, struct api_error *error)
{
	const struct fronts_config *config = front->fronts->config;
	const char *text = http_header(exchange, "authorization");
	/* Without keys anyone is the operator, as with one of the operator's own. */
	front->caller = (struct api_caller){ .tenant_salt = "", .admin = true };
	if (!config->api_key_count && !config->key_source)
		return 0;
	if (!text || strncasecmp(text, "bearer ", 7) != 0)
		return api_fail(error, 401, NULL,
				"An API key is needed, in a header: Authorization: Bearer KEY.");
	text += 7;
	text += strspn(text, " ");
	if (is_own_key(config, text))
		return 0;
	if (!config->key_source)
		return api_fail(error, 401, NULL, "This API key is not valid.");
	return find_key(front, text, error);
}

int api_authenticate_admin(struct front *front, struct http_exchange *exchange,
			   struct api_error *error)
{
	if (!front->fronts->config->admin_keyed)
		return 0;
	if (api_authenticate(front, exchange, error))
		return -1;
	if (!front->caller.admin)
		return api_fail(error, 403, NULL, "This API key is not of class admin.");
	return 0;
}

int api_admit_caller(struct front *front, struct api_error *error)
{
	struct key_use *use = front->caller.use;
	uint64_t wait_ns = use ? key_use_admit(use, clock_now_ns()) : 0;
	if (!wait_ns)
		return 0;
	uint64_t wait_s = DIV_UP(wait_ns, NS_PER_S);
	(void)api_fail(error, 429, NULL, "This API key's rate is used up. Try again in %llu s.",
		       (unsigned long long)wait_s);
	error->retry_after_s = (uint32_t)MIN(wait_s, (uint64_t)UINT32_MAX);
	return -1;
}
