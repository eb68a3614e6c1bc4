/*
 * Control connections. A connection's life:
 *
 *     RESOLVING -> CONNECTING -> PROVING -> READY -> CLOSING     (connector)
 *                                PROVING -> READY -> CLOSING     (acceptor)
 *
 * Proof of the cluster key, three fixed-size messages (A acceptor, C connector):
 *
 *     A -> C   magic[8], nonce_a[16]
 *     C -> A   nonce_c[16], HMAC(key, "connector" | nonce_a | nonce_c)
 *     A -> C   HMAC(key, "acceptor" | nonce_a | nonce_c)
 *
 * Each proves over both nonces and its own role, so a proof can be neither replayed nor
 * reflected. libuv handles are embedded in the connection, which is freed when the last
 * callback that libuv still owes has come (`pending`).
 */
#include "net/wire.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <openssl/crypto.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/list.h"
#include "base/rand.h"
#include "base/sm.h"
#include "proto/frame.h"

#define WIRE_MAGIC "BATONW1\n"
#define WIRE_NONCE_BYTES 16
#define WIRE_MAC_BYTES 32
#define WIRE_PROOF_TIMEOUT_MS 5000
#define WIRE_UNPROVEN_MAX 256
#define WIRE_QUEUED_BYTES_MAX (64u << 20)
#define WIRE_READ_BYTES_MIN (64u << 10)

enum wire_state { WIRE_RESOLVING, WIRE_CONNECTING, WIRE_PROVING, WIRE_READY, WIRE_CLOSING };

static const struct sm_state wire_states[] = {
	[WIRE_RESOLVING] = { "resolving", SM_TO(WIRE_CONNECTING) | SM_TO(WIRE_CLOSING) },
	[WIRE_CONNECTING] = { "connecting", SM_TO(WIRE_PROVING) | SM_TO(WIRE_CLOSING) },
	[WIRE_PROVING] = { "proving", SM_TO(WIRE_READY) | SM_TO(WIRE_CLOSING) },
	[WIRE_READY] = { "ready", SM_TO(WIRE_CLOSING) },
	[WIRE_CLOSING] = { "closing", 0 },
};

struct wire_conn {
	uint8_t state;
	bool acceptor, proof_sent;
	int reason;
	uint32_t pending; /* callbacks that libuv still owes */
	uv_loop_t *loop;
	uv_tcp_t tcp;
	uv_timer_t timer;
	uv_connect_t connect;
	uv_getaddrinfo_t resolve;
	struct sockaddr_storage source;
	struct wire_callbacks callbacks;
	void *context;
	struct wire_key key;
	uint8_t nonce_own[WIRE_NONCE_BYTES], nonce_peer[WIRE_NONCE_BYTES];
	uint8_t *in;
	size_t in_bytes, in_capacity;
	size_t queued_bytes;
	char peer_name[INET6_ADDRSTRLEN + 8];
	struct wire_listener *listener; /* while unproven */
	struct list unproven;
};

struct wire_listener {
	uv_tcp_t tcp;
	struct wire_key key;
	struct wire_callbacks callbacks;
	void *(*on_accept)(struct wire_conn *, void *);
	void *context;
	struct list unproven;
	uint32_t unproven_count;
};

struct wire_write {
	uv_write_t request;
	struct wire_conn *conn;
	size_t bytes;
	uint8_t data[];
};

/* ---- life ---- */

static struct wire_conn *conn_new(uv_loop_t *loop, const struct wire_key *key,
				  const struct wire_callbacks *callbacks, bool acceptor)
{
	struct wire_conn *conn = calloc(1, sizeof *conn);
	if (!conn)
		return NULL;
	conn->loop = loop;
	conn->key = *key;
	conn->callbacks = *callbacks;
	conn->acceptor = acceptor;
	conn->state = acceptor ? WIRE_PROVING : WIRE_RESOLVING;
	list_init(&conn->unproven);
	conn->pending = 2; /* the close callbacks of the two handles */
	uv_tcp_init(loop, &conn->tcp);
	uv_timer_init(loop, &conn->timer);
	conn->tcp.data = conn->timer.data = conn;
	for (size_t at = 0; at < WIRE_NONCE_BYTES; at += sizeof(uint64_t)) {
		uint64_t word = rand_system();
		memcpy(conn->nonce_own + at, &word, sizeof word);
	}
	return conn;
}

static void conn_leave_listener(struct wire_conn *conn)
{
	if (!conn->listener)
		return;
	conn->listener->unproven_count--;
	list_remove(&conn->unproven);
	conn->listener = NULL;
}

static void conn_settle(struct wire_conn *conn)
{
	CHECK(conn->pending);
	if (--conn->pending)
		return;
	if (conn->callbacks.on_close && conn->context)
		conn->callbacks.on_close(conn, conn->reason, conn->context);
	OPENSSL_cleanse(&conn->key, sizeof conn->key);
	free(conn->in);
	free(conn);
}

static void conn_on_handle_closed(uv_handle_t *handle)
{
	conn_settle(handle->data);
}

void wire_close(struct wire_conn *conn, int reason)
{
	if (conn->state == WIRE_CLOSING)
		return;
	sm_move(wire_states, &conn->state, WIRE_CLOSING);
	conn->reason = reason;
	conn_leave_listener(conn);
	uv_close((uv_handle_t *)&conn->tcp, conn_on_handle_closed);
	uv_close((uv_handle_t *)&conn->timer, conn_on_handle_closed);
	uv_cancel((uv_req_t *)&conn->resolve);
}

static void conn_on_timeout(uv_timer_t *timer)
{
	wire_close(timer->data, -ETIMEDOUT);
}

/* ---- writing ---- */

static void conn_on_written(uv_write_t *request, int status)
{
	struct wire_write *write = container_of(request, struct wire_write, request);
	struct wire_conn *conn = write->conn;
	conn->queued_bytes -= write->bytes;
	free(write);
	if (status < 0)
		wire_close(conn, status);
	conn_settle(conn);
}

/* Sends header and body, straight into the socket when nothing waits before them. */
static int conn_write(struct wire_conn *conn, const void *head, size_t head_bytes, const void *body,
		      size_t bytes)
{
	size_t total = head_bytes + bytes, done = 0;
	uv_buf_t parts[2] = { uv_buf_init((char *)head, (unsigned)head_bytes),
			      uv_buf_init((char *)body, (unsigned)bytes) };

	if (conn->queued_bytes + total > WIRE_QUEUED_BYTES_MAX)
		return -EAGAIN;
	if (!conn->queued_bytes) {
		int sent = uv_try_write((uv_stream_t *)&conn->tcp, parts, bytes ? 2 : 1);
		if (sent < 0 && sent != UV_EAGAIN) {
			wire_close(conn, sent);
			return -ENOTCONN;
		}
		done = sent > 0 ? (size_t)sent : 0;
		if (done == total)
			return 0;
	}
	struct wire_write *write = malloc(sizeof *write + total - done);
	if (!write) {
		/* A frame cut in the middle cannot be mended. */
		if (done)
			wire_close(conn, -ENOMEM);
		return -ENOMEM;
	}
	size_t head_left = head_bytes > done ? head_bytes - done : 0;
	size_t body_from = done > head_bytes ? done - head_bytes : 0;
	if (head_left)
		memcpy(write->data, (const char *)head + done, head_left);
	if (bytes > body_from)
		memcpy(write->data + head_left, (const char *)body + body_from, bytes - body_from);
	write->conn = conn;
	write->bytes = total - done;
	uv_buf_t rest = uv_buf_init((char *)write->data, (unsigned)write->bytes);
	int status = uv_write(&write->request, (uv_stream_t *)&conn->tcp, &rest, 1, conn_on_written);
	if (status < 0) {
		free(write);
		wire_close(conn, status);
		return -ENOTCONN;
	}
	conn->queued_bytes += total - done;
	conn->pending++;
	return 0;
}

int wire_send(struct wire_conn *conn, uint16_t type, const void *body, uint32_t bytes)
{
	CHECK(bytes <= FRAME_BODY_BYTES_MAX);
	if (conn->state != WIRE_READY)
		return -ENOTCONN;
	uint8_t head[FRAME_HEADER_BYTES] = { (uint8_t)bytes, (uint8_t)(bytes >> 8),
					     (uint8_t)(bytes >> 16), (uint8_t)(bytes >> 24),
					     (uint8_t)type, (uint8_t)(type >> 8) };
	return conn_write(conn, head, sizeof head, body, bytes);
}

size_t wire_queued_bytes(const struct wire_conn *conn)
{
	return conn->queued_bytes;
}

const char *wire_peer_name(const struct wire_conn *conn)
{
	return conn->peer_name;
}

/* ---- the proof ---- */

static void conn_mac(const struct wire_conn *conn, bool by_acceptor, uint8_t ret_mac[WIRE_MAC_BYTES])
{
	const uint8_t *nonce_a = conn->acceptor ? conn->nonce_own : conn->nonce_peer;
	const uint8_t *nonce_c = conn->acceptor ? conn->nonce_peer : conn->nonce_own;
	const char *role = by_acceptor ? "acceptor" : "connector";
	const struct hash_piece pieces[] = { { role, strlen(role) },
					     { nonce_a, WIRE_NONCE_BYTES },
					     { nonce_c, WIRE_NONCE_BYTES } };
	hash_hmac_sha256(conn->key.bytes, sizeof conn->key.bytes, pieces, ARRAY_COUNT(pieces), ret_mac);
}

static void conn_become_ready(struct wire_conn *conn)
{
	conn_leave_listener(conn);
	uv_timer_stop(&conn->timer);
	sm_move(wire_states, &conn->state, WIRE_READY);
	conn->callbacks.on_ready(conn, conn->context);
}

static bool conn_mac_fits(const struct wire_conn *conn, const uint8_t mac[WIRE_MAC_BYTES])
{
	uint8_t expected[WIRE_MAC_BYTES];
	conn_mac(conn, !conn->acceptor, expected);
	return !CRYPTO_memcmp(mac, expected, sizeof expected);
}

/* Bytes used of the input, 0 when more are needed; closes on a wrong proof. */
static size_t acceptor_prove(struct wire_conn *conn, const uint8_t *data, size_t bytes)
{
	uint8_t mac[WIRE_MAC_BYTES];
	if (bytes < WIRE_NONCE_BYTES + WIRE_MAC_BYTES)
		return 0;
	memcpy(conn->nonce_peer, data, WIRE_NONCE_BYTES);
	if (!conn_mac_fits(conn, data + WIRE_NONCE_BYTES)) {
		wire_close(conn, BATON_EAUTH);
		return 0;
	}
	conn_mac(conn, true, mac);
	if (conn_write(conn, mac, sizeof mac, NULL, 0) < 0) {
		wire_close(conn, -EPIPE);
		return 0;
	}
	conn_become_ready(conn);
	return WIRE_NONCE_BYTES + WIRE_MAC_BYTES;
}

static size_t connector_prove(struct wire_conn *conn, const uint8_t *data, size_t bytes)
{
	if (!conn->proof_sent) {
		uint8_t answer[WIRE_NONCE_BYTES + WIRE_MAC_BYTES];
		if (bytes < strlen(WIRE_MAGIC) + WIRE_NONCE_BYTES)
			return 0;
		if (memcmp(data, WIRE_MAGIC, strlen(WIRE_MAGIC))) {
			wire_close(conn, BATON_EPROTOCOL);
			return 0;
		}
		memcpy(conn->nonce_peer, data + strlen(WIRE_MAGIC), WIRE_NONCE_BYTES);
		memcpy(answer, conn->nonce_own, WIRE_NONCE_BYTES);
		conn_mac(conn, false, answer + WIRE_NONCE_BYTES);
		conn->proof_sent = true;
		if (conn_write(conn, answer, sizeof answer, NULL, 0) < 0) {
			wire_close(conn, -EPIPE);
			return 0;
		}
		return strlen(WIRE_MAGIC) + WIRE_NONCE_BYTES;
	}
	if (bytes < WIRE_MAC_BYTES)
		return 0;
	if (!conn_mac_fits(conn, data)) {
		wire_close(conn, BATON_EAUTH);
		return 0;
	}
	conn_become_ready(conn);
	return WIRE_MAC_BYTES;
}

/* ---- reading ---- */

/* Body length of the frame at the head of the input; negative: the peer broke the protocol. */
static int64_t frame_body_bytes(const uint8_t *head)
{
	uint32_t bytes = (uint32_t)head[0] | (uint32_t)head[1] << 8 | (uint32_t)head[2] << 16 |
			 (uint32_t)head[3] << 24;
	return bytes > FRAME_BODY_BYTES_MAX || head[6] || head[7] ? BATON_EPROTOCOL : (int64_t)bytes;
}

static size_t conn_take_frame(struct wire_conn *conn, const uint8_t *data, size_t bytes)
{
	if (bytes < FRAME_HEADER_BYTES)
		return 0;
	int64_t body_bytes = frame_body_bytes(data);
	if (body_bytes < 0) {
		wire_close(conn, (int)body_bytes);
		return 0;
	}
	if (bytes < FRAME_HEADER_BYTES + (size_t)body_bytes)
		return 0;
	uint16_t type = (uint16_t)(data[4] | data[5] << 8);
	int status = conn->callbacks.on_frame(conn, type, data + FRAME_HEADER_BYTES,
					      (uint32_t)body_bytes, conn->context);
	if (status < 0)
		wire_close(conn, status);
	return FRAME_HEADER_BYTES + (size_t)body_bytes;
}

static void conn_consume(struct wire_conn *conn)
{
	size_t at = 0;
	while (conn->state != WIRE_CLOSING) {
		const uint8_t *data = conn->in + at;
		size_t bytes = conn->in_bytes - at;
		size_t used = conn->state == WIRE_READY ? conn_take_frame(conn, data, bytes)
			      : conn->acceptor		? acceptor_prove(conn, data, bytes)
							: connector_prove(conn, data, bytes);
		if (!used)
			break;
		at += used;
	}
	conn->in_bytes -= at;
	if (at && conn->in_bytes)
		memmove(conn->in, conn->in + at, conn->in_bytes);
}

/* Room for the frame that has begun, or for a good read. */
static void conn_on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
	struct wire_conn *conn = handle->data;
	size_t want = WIRE_READ_BYTES_MIN;
	if (conn->state == WIRE_READY && conn->in_bytes >= FRAME_HEADER_BYTES) {
		int64_t body_bytes = frame_body_bytes(conn->in);
		if (body_bytes > 0)
			want = MAX(want, FRAME_HEADER_BYTES + (size_t)body_bytes);
	}
	if (conn->in_capacity < want || conn->in_capacity == conn->in_bytes) {
		uint8_t *in = realloc(conn->in, MAX(want, conn->in_bytes + WIRE_READ_BYTES_MIN));
		if (in) {
			conn->in = in;
			conn->in_capacity = MAX(want, conn->in_bytes + WIRE_READ_BYTES_MIN);
		}
	}
	*buf = uv_buf_init((char *)conn->in + conn->in_bytes, (unsigned)(conn->in_capacity - conn->in_bytes));
}

static void conn_on_read(uv_stream_t *stream, ssize_t bytes, const uv_buf_t *buf)
{
	struct wire_conn *conn = stream->data;
	if (conn->state == WIRE_CLOSING)
		return;
	if (bytes < 0) {
		bool unproven = conn->state == WIRE_PROVING && conn->proof_sent;
		wire_close(conn, unproven	 ? BATON_EAUTH
				 : bytes == UV_EOF ? -ECONNRESET
						   : (int)bytes);
		return;
	}
	conn->in_bytes += (size_t)bytes;
	conn_consume(conn);
}

static void conn_name_peer(struct wire_conn *conn)
{
	struct sockaddr_storage address = { 0 };
	int bytes = sizeof address;
	char host[INET6_ADDRSTRLEN] = "?";
	if (uv_tcp_getpeername(&conn->tcp, (struct sockaddr *)&address, &bytes) == 0) {
		bool v6 = address.ss_family == AF_INET6;
		const struct sockaddr_in *v4_address = (const struct sockaddr_in *)&address;
		const struct sockaddr_in6 *v6_address = (const struct sockaddr_in6 *)&address;
		uv_inet_ntop(address.ss_family,
			     v6 ? (const void *)&v6_address->sin6_addr : (const void *)&v4_address->sin_addr,
			     host, sizeof host);
		snprintf(conn->peer_name, sizeof conn->peer_name, "%s:%u", host,
			 ntohs(v6 ? v6_address->sin6_port : v4_address->sin_port));
	}
}

static void conn_start(struct wire_conn *conn)
{
	conn_name_peer(conn);
	uv_tcp_nodelay(&conn->tcp, 1);
	uv_timer_start(&conn->timer, conn_on_timeout, WIRE_PROOF_TIMEOUT_MS, 0);
	int status = uv_read_start((uv_stream_t *)&conn->tcp, conn_on_alloc, conn_on_read);
	if (status < 0)
		wire_close(conn, status);
}

/* ---- connecting ---- */

static void conn_on_connected(uv_connect_t *request, int status)
{
	struct wire_conn *conn = container_of(request, struct wire_conn, connect);
	if (conn->state != WIRE_CLOSING) {
		if (status < 0) {
			wire_close(conn, status);
		} else {
			sm_move(wire_states, &conn->state, WIRE_PROVING);
			conn_start(conn);
		}
	}
	conn_settle(conn);
}

static void conn_dial(struct wire_conn *conn, const struct sockaddr *address)
{
	int status = 0;
	sm_move(wire_states, &conn->state, WIRE_CONNECTING);
	if (conn->source.ss_family)
		status = uv_tcp_bind(&conn->tcp, (const struct sockaddr *)&conn->source, 0);
	if (!status)
		status = uv_tcp_connect(&conn->connect, &conn->tcp, address, conn_on_connected);
	if (status)
		wire_close(conn, status);
	else
		conn->pending++;
}

static void conn_on_resolved(uv_getaddrinfo_t *request, int status, struct addrinfo *found)
{
	struct wire_conn *conn = container_of(request, struct wire_conn, resolve);
	if (conn->state != WIRE_CLOSING) {
		if (status < 0)
			wire_close(conn, status);
		else
			conn_dial(conn, found->ai_addr);
	}
	uv_freeaddrinfo(found);
	conn_settle(conn);
}

int wire_connect(uv_loop_t *loop, const char *host, uint16_t port, const char *source,
		 const struct wire_key *key, const struct wire_callbacks *callbacks, void *context,
		 struct wire_conn **ret_conn)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
	struct wire_conn *conn = conn_new(loop, key, callbacks, false);
	char service[8];

	if (!conn)
		return -ENOMEM;
	conn->context = context;
	snprintf(conn->peer_name, sizeof conn->peer_name, "%.40s:%u", host, port);
	snprintf(service, sizeof service, "%u", port);
	if (source && uv_ip4_addr(source, 0, (struct sockaddr_in *)&conn->source) &&
	    uv_ip6_addr(source, 0, (struct sockaddr_in6 *)&conn->source)) {
		conn->context = NULL;
		wire_close(conn, -EINVAL);
		return -EINVAL;
	}
	uv_timer_start(&conn->timer, conn_on_timeout, WIRE_PROOF_TIMEOUT_MS, 0);
	int status = uv_getaddrinfo(loop, &conn->resolve, conn_on_resolved, host, service, &hints);
	if (status) {
		conn->context = NULL; /* the caller hears it from us, not from on_close */
		wire_close(conn, status);
		return status;
	}
	conn->pending++;
	*ret_conn = conn;
	return 0;
}

/* ---- listening ---- */

static void listener_on_connection(uv_stream_t *stream, int status)
{
	struct wire_listener *listener = stream->data;
	if (status < 0)
		return;
	struct wire_conn *conn = conn_new(stream->loop, &listener->key, &listener->callbacks, true);
	if (!conn)
		return;
	if (uv_accept(stream, (uv_stream_t *)&conn->tcp) < 0) {
		wire_close(conn, -EMFILE);
		return;
	}
	/* Too many strangers: the one that has been silent longest makes room, so that a few hundred
	 * silent connections cannot lock those out who hold the key. */
	if (listener->unproven_count >= WIRE_UNPROVEN_MAX)
		wire_close(list_entry(listener->unproven.next, struct wire_conn, unproven), -ETIMEDOUT);
	conn->context = listener->on_accept(conn, listener->context);
	if (!conn->context) {
		wire_close(conn, -ECONNREFUSED);
		return;
	}
	conn->listener = listener;
	listener->unproven_count++;
	list_push_back(&listener->unproven, &conn->unproven);
	conn_start(conn);
	if (conn->state != WIRE_CLOSING &&
	    conn_write(conn, WIRE_MAGIC, strlen(WIRE_MAGIC), conn->nonce_own, WIRE_NONCE_BYTES) < 0)
		wire_close(conn, -EPIPE);
}

int wire_listen(uv_loop_t *loop, const char *host, uint16_t port, const struct wire_key *key,
		const struct wire_callbacks *callbacks, void *(*on_accept)(struct wire_conn *, void *),
		void *context, struct wire_listener **ret_listener, uint16_t *ret_port)
{
	struct sockaddr_storage address = { 0 };
	int bytes = sizeof address;
	struct wire_listener *listener = calloc(1, sizeof *listener);

	if (!listener)
		return -ENOMEM;
	listener->key = *key;
	listener->callbacks = *callbacks;
	listener->on_accept = on_accept;
	listener->context = context;
	list_init(&listener->unproven);
	uv_tcp_init(loop, &listener->tcp);
	listener->tcp.data = listener;
	int status = uv_ip4_addr(host, port, (struct sockaddr_in *)&address);
	if (status)
		status = uv_ip6_addr(host, port, (struct sockaddr_in6 *)&address);
	if (!status)
		status = uv_tcp_bind(&listener->tcp, (struct sockaddr *)&address, 0);
	if (!status)
		status = uv_listen((uv_stream_t *)&listener->tcp, 128, listener_on_connection);
	if (!status)
		status = uv_tcp_getsockname(&listener->tcp, (struct sockaddr *)&address, &bytes);
	if (status) {
		wire_listener_close(listener);
		return status;
	}
	*ret_port = ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
							: ((struct sockaddr_in *)&address)->sin_port);
	*ret_listener = listener;
	return 0;
}

static void listener_on_closed(uv_handle_t *handle)
{
	free(handle->data);
}

void wire_listener_close(struct wire_listener *listener)
{
	if (!listener)
		return;
	list_for_each_safe(node, after, &listener->unproven)
		wire_close(list_entry(node, struct wire_conn, unproven), -ECANCELED);
	uv_close((uv_handle_t *)&listener->tcp, listener_on_closed);
}

/* ---- the key ---- */

static int hex_digit(int c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int wire_key_load(const char *path, struct wire_key *ret_key)
{
	uint8_t data[4096];
	FILE *file = fopen(path, "re");
	if (!file)
		return -errno;
	size_t bytes = fread(data, 1, sizeof data, file);
	int status = ferror(file) ? -EIO : 0;
	fclose(file);
	while (bytes && (data[bytes - 1] == '\n' || data[bytes - 1] == '\r'))
		bytes--;
	if (!status && !bytes)
		status = -EINVAL;
	if (status)
		return status;
	bool hex = bytes == 64;
	for (size_t i = 0; hex && i < 64; i++)
		hex = hex_digit(data[i]) >= 0;
	if (hex) {
		for (size_t i = 0; i < 32; i++)
			ret_key->bytes[i] = (uint8_t)(hex_digit(data[2 * i]) << 4 | hex_digit(data[2 * i + 1]));
	} else {
		hash_sha256(&(struct hash_piece){ data, bytes }, 1, ret_key->bytes);
	}
	OPENSSL_cleanse(data, sizeof data);
	return 0;
}
