/*
 * HTTP/1.1 server on a libuv loop: parsing by llhttp (strict), bounded in every direction.
 * Used by the conductor's fronts (client API), by its admin listener and by each node's.
 *
 * One handler call per request, when its body is complete. The handler answers now or later,
 * whole or as a stream. Pipelined requests of a connection are handled one after the other.
 * All calls on the loop thread of the server.
 */
#ifndef BATON_NET_HTTP_H
#define BATON_NET_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "base/buf.h"

struct http_server;
struct http_exchange; /* one request and its answer */

struct http_limits {
	uint32_t header_bytes_max;      /* 431 past it; 0: 64 KiB */
	uint64_t body_bytes_max;        /* 413 past it, also when only announced; 0: 32 MiB */
	uint64_t body_total_max;        /* of all open requests; 503 past it; 0: 16 bodies */
	uint32_t connections_max;       /* further ones are answered 503 and closed; 0: 10000 */
	uint64_t header_timeout_ns;     /* from the first byte; 408 and close; 0: 30 s */
	uint64_t body_timeout_ns;       /* without progress; 0: 30 s */
	uint64_t idle_timeout_ns;       /* keep-alive; 0: 75 s */
	uint64_t send_timeout_ns;       /* a reader that takes nothing; 0: 60 s */
};

struct http_request {
	const char *method;  /* "POST" */
	const char *path;    /* decoded, without the query */
	const char *query;   /* raw, "" when none */
	const char *body;    /* NUL-terminated */
	size_t body_bytes;
};

struct http_callbacks {
	/* @exchange lives until the answer is complete and, if the client went, on_gone returned. */
	void (*on_request)(struct http_exchange *exchange, const struct http_request *request,
			   void *context);
	/* The client went before the answer was complete. The exchange must not be used after. */
	void (*on_gone)(struct http_exchange *exchange, void *context);
	/* The socket took what was queued; room for more stream data. */
	void (*on_writable)(struct http_exchange *exchange, void *context);
};

/* @reuse_port: several loops listen on one port, the kernel spreads connections. */
int http_listen(uv_loop_t *loop, const char *host, uint16_t port, bool reuse_port,
		const struct http_limits *limits, const struct http_callbacks *callbacks,
		void *context, struct http_server **ret_server, uint16_t *ret_port);
/* Stops accepting; open exchanges go on. */
void http_stop_accepting(struct http_server *server);
void http_close(struct http_server *server);
uint32_t http_connection_count(const struct http_server *server);

/* NULL when absent; names are case-insensitive. Valid until the exchange ends. */
const char *http_header(const struct http_exchange *exchange, const char *name);
void http_set_user(struct http_exchange *exchange, void *user);
void *http_user(const struct http_exchange *exchange);

/* Extra answer header, before http_respond or http_stream_begin. Copied. */
void http_answer_header(struct http_exchange *exchange, const char *name, const char *value);
/* Whole answer. @body copied. Ends the exchange. */
void http_respond(struct http_exchange *exchange, int status, const char *content_type,
		  const void *body, size_t bytes);
/* Stream: chunked for HTTP/1.1, close-delimited for 1.0. */
void http_stream_begin(struct http_exchange *exchange, int status, const char *content_type);
void http_stream_send(struct http_exchange *exchange, const void *data, size_t bytes);
void http_stream_end(struct http_exchange *exchange);
/* Bytes queued and not yet taken by the socket: render more only while this is small. */
size_t http_queued_bytes(const struct http_exchange *exchange);
const char *http_status_text(int status);

#endif
