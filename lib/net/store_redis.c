/*
 * The store in Redis, through hiredis' synchronous calls with timeouts. An update is a
 * transaction: WATCH the version, read, change, MULTI ... EXEC; when another writer was faster EXEC
 * answers nil and it begins anew. The version is drawn at random, so that a Redis that lost its
 * data never comes back to a number that a watcher has seen.
 */
#include <errno.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/rand.h"
#include "net/store.h"

#define PREFIX_BYTES_MAX 64
#define UPDATE_TRIES_MAX 32

struct store_redis {
	struct store store;
	char host[256];
	int port;
	struct timeval timeout;
	char key[PREFIX_BYTES_MAX + 16], key_version[PREFIX_BYTES_MAX + 24];
	redisContext *link; /* NULL: to be made */
};

static struct store_redis *redis_of(struct store *store)
{
	return container_of(store, struct store_redis, store);
}

static int link_error(const redisContext *link)
{
	if (!link || link->err == REDIS_ERR_OOM)
		return -ENOMEM;
	if (link->err == REDIS_ERR_EOF)
		return -ECONNRESET;
	if (link->err == REDIS_ERR_PROTOCOL)
		return -EPROTO;
	if (link->err == REDIS_ERR_IO)
		return errno == EAGAIN || !errno ? -ETIMEDOUT : -errno;
	return -EADDRNOTAVAIL; /* the name did not resolve */
}

static void hang_up(struct store_redis *redis)
{
	if (redis->link)
		redisFree(redis->link);
	redis->link = NULL;
}

static int dial(struct store_redis *redis)
{
	if (redis->link)
		return 0;
	redis->link = redisConnectWithTimeout(redis->host, redis->port, redis->timeout);
	int result = !redis->link || redis->link->err ? link_error(redis->link) : 0;
	if (!result && redisSetTimeout(redis->link, redis->timeout))
		result = -EIO;
	if (result)
		hang_up(redis);
	return result;
}

/* What an error answer means: its first word says the kind. */
static int answer_error(const redisReply *reply)
{
	return !strncmp(reply->str, "LOADING", 7) ? -EAGAIN :
	       !strncmp(reply->str, "NOAUTH", 6)  ? -EACCES :
	       !strncmp(reply->str, "READONLY", 8) ? -EROFS :
						     -EPROTO;
}

/* One command. On a broken connection hangs up: what would arrive late belongs to nobody. */
static int call(struct store_redis *redis, int argc, const char *const argv[],
		redisReply **ret_reply)
{
	int result = dial(redis);
	if (result)
		return result;
	errno = 0;
	redisReply *reply = redisCommandArgv(redis->link, argc, (const char **)argv, NULL);
	if (!reply) {
		result = link_error(redis->link);
		hang_up(redis);
		return result;
	}
	if (reply->type == REDIS_REPLY_ERROR) {
		result = answer_error(reply);
		freeReplyObject(reply);
		return result;
	}
	*ret_reply = reply;
	return 0;
}

static int call_simply(struct store_redis *redis, int argc, const char *const argv[])
{
	redisReply *reply;
	int result = call(redis, argc, argv, &reply);
	if (!result)
		freeReplyObject(reply);
	return result;
}

static int redis_stamp(struct store *store, uint64_t *ret_stamp)
{
	struct store_redis *redis = redis_of(store);
	const char *argv[] = { "GET", redis->key_version };
	redisReply *reply;
	int result = call(redis, 2, argv, &reply);
	if (result)
		return result;
	if (reply->type == REDIS_REPLY_NIL)
		result = -ENOENT;
	else if (reply->type != REDIS_REPLY_STRING)
		result = -EPROTO;
	else
		*ret_stamp = strtoull(reply->str, NULL, 16);
	freeReplyObject(reply);
	return result;
}

static int redis_read(struct store *store, struct store_table *ret_table)
{
	struct store_redis *redis = redis_of(store);
	const char *argv[] = { "HVALS", redis->key };
	redisReply *reply;
	int result = call(redis, 2, argv, &reply);
	if (result)
		return result;
	if (reply->type != REDIS_REPLY_ARRAY)
		result = -EPROTO;
	for (size_t i = 0; !result && i < reply->elements; i++) {
		const redisReply *value = reply->element[i];
		uint32_t before = ret_table->count;
		result = value->type != REDIS_REPLY_STRING ? -EPROTO :
							     store_table_put(ret_table, value->str);
		if (!result && ret_table->count == before)
			result = -EBADMSG; /* the same id under two fields */
		if (!result)
			ret_table->records[before].changed = false;
	}
	freeReplyObject(reply);
	if (result)
		store_table_fini(ret_table);
	return result;
}

/* Return: 0, 1 when another writer was faster, or negative. */
static int commit(struct store_redis *redis, const struct store_table *table)
{
	char version[20];
	snprintf(version, sizeof version, "%016llx", (unsigned long long)rand_system());
	const char *multi[] = { "MULTI" }, *exec[] = { "EXEC" };
	const char *set[] = { "SET", redis->key_version, version };
	redisReply *reply;
	int result = call_simply(redis, 1, multi);
	for (uint32_t i = 0; !result && i < table->count; i++) {
		const struct store_record *record = &table->records[i];
		const char *put[] = { "HSET", redis->key, record->id, record->value };
		if (record->changed)
			result = call_simply(redis, 4, put);
	}
	if (!result)
		result = call_simply(redis, 3, set);
	if (!result)
		result = call(redis, 1, exec, &reply);
	if (result)
		return result;
	result = reply->type == REDIS_REPLY_NIL ? 1 : reply->type == REDIS_REPLY_ARRAY ? 0 : -EPROTO;
	freeReplyObject(reply);
	return result;
}

static int redis_update(struct store *store, store_change change, void *context)
{
	struct store_redis *redis = redis_of(store);
	const char *watch[] = { "WATCH", redis->key_version, redis->key };
	int result = 1;
	for (int i = 0; result == 1 && i < UPDATE_TRIES_MAX; i++) {
		struct store_table table = { 0 };
		result = call_simply(redis, 3, watch);
		if (!result)
			result = redis_read(store, &table);
		if (!result)
			result = change(&table, context);
		if (!result)
			result = commit(redis, &table);
		store_table_fini(&table);
	}
	/* A transaction or a watch half way ends with its connection. */
	if (result)
		hang_up(redis);
	return result == 1 ? -EBUSY : result;
}

static void redis_close(struct store *store)
{
	struct store_redis *redis = redis_of(store);
	hang_up(redis);
	free(redis);
}

static const struct store_ops redis_ops = { redis_stamp, redis_read, redis_update, redis_close };

/* HOST:PORT[/PREFIX]; an IPv6 address stands in brackets. */
static int parse_place(const char *place, struct store_redis *redis)
{
	const char *host = place, *slash = strchr(place, '/'), *colon, *end;
	const char *prefix = slash ? slash + 1 : "baton";
	size_t bytes = slash ? (size_t)(slash - place) : strlen(place);
	colon = memrchr(place, ':', bytes);
	if (!colon)
		return -EINVAL;
	end = colon;
	if (*host == '[') {
		host++;
		if (*--end != ']')
			return -EINVAL;
	} else if (memchr(host, ':', (size_t)(colon - host))) {
		return -EINVAL;
	}
	size_t host_bytes = end > host ? (size_t)(end - host) : 0;
	size_t digits = strspn(colon + 1, "0123456789");
	redis->port = digits >= 1 && digits <= 5 ? atoi(colon + 1) : 0;
	if (!host_bytes || host_bytes >= sizeof redis->host || colon + 1 + digits != place + bytes ||
	    redis->port < 1 || redis->port > 65535 || !*prefix || strlen(prefix) > PREFIX_BYTES_MAX)
		return -EINVAL;
	memcpy(redis->host, host, host_bytes);
	snprintf(redis->key, sizeof redis->key, "%s:keys", prefix);
	snprintf(redis->key_version, sizeof redis->key_version, "%s:keys:version", prefix);
	return 0;
}

int store_redis_open(const char *place, uint64_t timeout_ns, struct store **ret_store)
{
	struct store_redis *redis = calloc(1, sizeof *redis);
	if (!redis)
		return -ENOMEM;
	redis->store.ops = &redis_ops;
	redis->timeout.tv_sec = (time_t)(timeout_ns / NS_PER_S);
	redis->timeout.tv_usec = (suseconds_t)(timeout_ns % NS_PER_S / NS_PER_US);
	int result = parse_place(place, redis);
	if (result) {
		free(redis);
		return result;
	}
	*ret_store = &redis->store;
	return 0;
}
