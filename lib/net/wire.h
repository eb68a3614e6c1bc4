/*
 * The control plane: authenticated, framed, bounded connections over TCP on a libuv loop.
 *
 * Before the first frame both ends prove that they hold the cluster key (HMAC challenge, both
 * ways, over both nonces and the role of the prover). Frames are proto/frame.h: length, type,
 * body. All calls and callbacks on the loop thread.
 */
#ifndef BATON_NET_WIRE_H
#define BATON_NET_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct wire_conn;
struct wire_listener;

struct wire_key {
	uint8_t bytes[32];
};

struct wire_callbacks {
	/* The peer proved the key; frames may be sent from here on. */
	void (*on_ready)(struct wire_conn *conn, void *context);
	/* @body borrowed until return. A negative return closes the connection with that reason. */
	int (*on_frame)(struct wire_conn *conn, uint16_t type, const uint8_t *body, uint32_t bytes,
			void *context);
	/* Last callback; @reason: negative errno or our code. The conn is freed after it. */
	void (*on_close)(struct wire_conn *conn, int reason, void *context);
};

/* @on_accept gives the callbacks' context for a new connection; NULL refuses it. The listener
 * closes connections that do not prove the key within 5 s, and of more than 256
 * unproven ones the oldest. */
int wire_listen(uv_loop_t *loop, const char *host, uint16_t port, const struct wire_key *key,
		const struct wire_callbacks *callbacks, void *(*on_accept)(struct wire_conn *, void *),
		void *context, struct wire_listener **ret_listener, uint16_t *ret_port);
void wire_listener_close(struct wire_listener *listener);

/* Starts connecting; failure arrives as on_close. @host may be a name (resolved off the loop).
 * @source: local address to bind, or NULL. */
int wire_connect(uv_loop_t *loop, const char *host, uint16_t port, const char *source,
		 const struct wire_key *key, const struct wire_callbacks *callbacks, void *context,
		 struct wire_conn **ret_conn);

/* Copies the body. Return: 0; -EAGAIN when @queued bytes would pass the bound (default 64 MiB);
 * -ENOTCONN before on_ready or after close. */
int wire_send(struct wire_conn *conn, uint16_t type, const void *body, uint32_t bytes);
/* on_close follows, asynchronously. May be called in any state and repeatedly. */
void wire_close(struct wire_conn *conn, int reason);
size_t wire_queued_bytes(const struct wire_conn *conn);
const char *wire_peer_name(const struct wire_conn *conn); /* "127.0.0.1:40312" */

/* Reads a key file (64 hex digits, or any bytes hashed to 32). */
int wire_key_load(const char *path, struct wire_key *ret_key);

#endif
