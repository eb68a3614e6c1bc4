/* What the files of the HTTP server share; all of it belongs to the server's loop. */
#ifndef BATON_NET_HTTP_PRIVATE_H
#define BATON_NET_HTTP_PRIVATE_H

#include "base/list.h"
#include "net/http.h"
#include "net/http_parse.h"

#define HTTP_PENDING_MAX (128u << 10)
#define HTTP_ANSWERS_MAX (1u << 20)
#define HTTP_READ_BYTES (64u << 10)
#define HTTP_LINGER_NS (2 * NS_PER_S)

struct http_exchange {
	struct http_conn *conn;
	void *user;
	struct buf extra; /* answer headers */
	bool head;        /* HEAD: no body in the answer */
	bool streaming, chunked, open;
};

struct http_conn {
	uv_tcp_t tcp;
	struct list link;
	struct http_server *server;
	struct http_message message;
	struct http_exchange exchange;
	struct buf pending; /* read, not yet parsed */
	struct buf out;     /* to be written next */
	struct buf writing; /* in flight */
	uv_write_t write;
	uv_shutdown_t shutdown;
	size_t write_left_seen;      /* progress of the write in flight, at the last sweep */
	uint64_t write_progress_ns;
	size_t body_counted;         /* in server->body_bytes */
	uint64_t since_ns;           /* of the present wait: idle, headers, body, linger */
	bool write_busy, reading;
	bool eof;        /* the peer's FIN came */
	bool processing; /* inside conn_process: no recursion from handlers */
	bool last;       /* no request after the present answer */
	bool lingering, shut, closing;
	bool over_limit;
	bool broken; /* a write could not even start: the sweep closes */
};

struct http_server {
	uv_tcp_t listener;
	uv_timer_t sweep;
	uv_loop_t *loop;
	struct http_limits limits;
	struct http_callbacks callbacks;
	void *context;
	struct list conns;
	uint32_t conn_count, refused_count;
	uint64_t body_bytes; /* held for bodies, all connections */
	uint32_t handles_open; /* listener and timer */
	bool accepting, closing;
	char read_buffer[HTTP_READ_BYTES];
};

/* http.c */
void http__server_unref(struct http_server *server);

/* http_conn.c */
void http__conn_close(struct http_conn *conn);
/* Handles what was read until an exchange is open, input is short, or answers pile up. */
void http__conn_process(struct http_conn *conn);
/* Called from inside handlers, so a failure closes the connection later, at the sweep. */
void http__conn_flush(struct http_conn *conn);
void http__conn_read_resume(struct http_conn *conn);
size_t http__conn_unsent_bytes(const struct http_conn *conn);
void http__conn_count_body(struct http_conn *conn);
/* An answer of the server itself, in the error form that API clients read; then the end. */
void http__conn_refuse(struct http_conn *conn, int status, const char *text);
/* The peer's kernel has reset the connection. */
bool http__peer_is_gone(struct http_conn *conn);

/* http_answer.c */
void http__respond(struct http_conn *conn, int status, const char *content_type, const void *body,
		   size_t bytes);
/* The present answer is complete in conn->out. */
void http__answer_done(struct http_conn *conn);

#endif
