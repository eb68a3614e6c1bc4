/*
 * Connections of the HTTP server. The parser (http_parse.c) makes requests of bytes; here live
 * the socket, the deadlines, the order of answers and the two ways in which a client leaves.
 *
 * A client that shuts its sending side (FIN) may still want its answer, or may be gone: TCP says
 * the same thing for both. So that a request which nobody waits for does not go on computing, a
 * FIN during an open HTTP/1.1 exchange is answered with an interim 100: a peer that has closed
 * replies with RST, which the sweep sees in the socket's state, and one that half-closed ignores
 * it. An HTTP/1.0 peer knows no interim answers; its FIN counts as gone.
 *
 * Bounds of the server: connections, and bytes of all bodies together. Per connection: the parser's, HTTP_PENDING_MAX bytes read ahead of the open exchange
 * (then reading stops), HTTP_ANSWERS_MAX bytes of answers before the next pipelined request is
 * looked at. What a stream queues is up to its owner, who asks http_queued_bytes().
 */
#include "net/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/list.h"
#include "net/http_parse.h"

#define HTTP_PENDING_MAX (128u << 10)
#define HTTP_ANSWERS_MAX (1u << 20)
#define HTTP_READ_BYTES (64u << 10)
#define HTTP_LINGER_NS (2 * NS_PER_S)
#define HTTP_SWEEP_MS 100
/* Connections past connections_max get a 503; past this many more, nothing at all. */
#define HTTP_REFUSED_MAX 256

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

static void conn_process(struct http_conn *conn);
static void conn_flush(struct http_conn *conn);
static void conn_read_resume(struct http_conn *conn);

static void server_unref(struct http_server *server)
{
	if (server->closing && !server->handles_open && list_empty(&server->conns))
		free(server);
}

static void conn_count_body(struct http_conn *conn)
{
	size_t held = conn->message.body.capacity;
	conn->server->body_bytes += held;
	conn->server->body_bytes -= conn->body_counted;
	conn->body_counted = held;
}

/* ---- closing ---- */

static void on_conn_closed(uv_handle_t *handle)
{
	struct http_conn *conn = handle->data;
	struct http_server *server = conn->server;
	list_remove(&conn->link);
	if (conn->over_limit)
		server->refused_count--;
	else
		server->conn_count--;
	http_message_fini(&conn->message);
	conn_count_body(conn);
	buf_fini(&conn->exchange.extra);
	buf_fini(&conn->pending);
	buf_fini(&conn->out);
	buf_fini(&conn->writing);
	free(conn);
	server_unref(server);
}

static void conn_close(struct http_conn *conn)
{
	if (conn->closing)
		return;
	conn->closing = true;
	if (conn->exchange.open) {
		conn->exchange.open = false;
		if (conn->server->callbacks.on_gone)
			conn->server->callbacks.on_gone(&conn->exchange, conn->server->context);
	}
	uv_close((uv_handle_t *)&conn->tcp, on_conn_closed);
}

static void on_shutdown(uv_shutdown_t *request, int status)
{
	struct http_conn *conn = request->data;
	if (status < 0)
		conn_close(conn);
}

/* The last answer is out: FIN, then swallow what the client still sends for a while, since
 * closing over unread bytes would send RST and could destroy the answer on its way. */
static void conn_linger(struct http_conn *conn)
{
	if (conn->closing || conn->shut)
		return;
	if (conn->eof) {
		conn_close(conn);
		return;
	}
	conn->shut = conn->lingering = true;
	conn->since_ns = clock_now_ns();
	buf_fini(&conn->pending);
	conn->shutdown.data = conn;
	if (uv_shutdown(&conn->shutdown, (uv_stream_t *)&conn->tcp, on_shutdown))
		conn_close(conn);
	else
		conn_read_resume(conn);
}

/* ---- writing ---- */

static size_t conn_unsent_bytes(const struct http_conn *conn)
{
	size_t bytes = conn->out.bytes;
	if (conn->write_busy)
		bytes += uv_stream_get_write_queue_size((const uv_stream_t *)&conn->tcp);
	return bytes;
}

static void on_written(uv_write_t *request, int status)
{
	struct http_conn *conn = request->data;
	conn->write_busy = false;
	conn->write_progress_ns = clock_now_ns();
	buf_clear(&conn->writing);
	if (conn->writing.capacity > HTTP_ANSWERS_MAX)
		buf_fini(&conn->writing);
	if (conn->closing)
		return;
	if (status < 0) {
		conn_close(conn);
		return;
	}
	if (conn->out.bytes)
		conn_flush(conn);
	if (conn->closing || conn->write_busy)
		return;
	if (conn->exchange.open) {
		if (conn->exchange.streaming && conn->server->callbacks.on_writable)
			conn->server->callbacks.on_writable(&conn->exchange,
							    conn->server->context);
	} else {
		conn_process(conn);
	}
}

/* Called from inside handlers, so a failure closes the connection later, at the sweep. */
static void conn_flush(struct http_conn *conn)
{
	if (conn->write_busy || conn->closing || conn->broken)
		return;
	if (conn->out.failed) {
		conn->broken = true;
		return;
	}
	if (!conn->out.bytes)
		return;
	struct buf swap = conn->writing;
	conn->writing = conn->out;
	conn->out = swap;
	buf_clear(&conn->out);
	uv_buf_t piece = uv_buf_init(conn->writing.data, (unsigned)conn->writing.bytes);
	conn->write.data = conn;
	conn->write_busy = true;
	conn->write_progress_ns = clock_now_ns();
	conn->write_left_seen = conn->writing.bytes;
	if (uv_write(&conn->write, (uv_stream_t *)&conn->tcp, &piece, 1, on_written)) {
		conn->write_busy = false;
		conn->broken = true;
	}
}

/* ---- answers ---- */

const char *http_status_text(int status)
{
	static const struct {
		int status;
		const char *text;
	} texts[] = {
		{ 200, "OK" }, { 204, "No Content" }, { 400, "Bad Request" },
		{ 401, "Unauthorized" }, { 403, "Forbidden" }, { 404, "Not Found" },
		{ 405, "Method Not Allowed" }, { 408, "Request Timeout" }, { 409, "Conflict" },
		{ 413, "Content Too Large" }, { 414, "URI Too Long" },
		{ 415, "Unsupported Media Type" }, { 417, "Expectation Failed" },
		{ 422, "Unprocessable Content" }, { 429, "Too Many Requests" },
		{ 431, "Request Header Fields Too Large" }, { 500, "Internal Server Error" },
		{ 501, "Not Implemented" }, { 502, "Bad Gateway" },
		{ 503, "Service Unavailable" }, { 504, "Gateway Timeout" },
		{ 505, "HTTP Version Not Supported" },
	};
	for (size_t i = 0; i < ARRAY_COUNT(texts); i++)
		if (texts[i].status == status)
			return texts[i].text;
	return "Unknown";
}

static void answer_date(struct buf *out)
{
	time_t now = time(NULL);
	struct tm parts;
	char text[64];
	gmtime_r(&now, &parts);
	strftime(text, sizeof text, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", &parts);
	buf_append_text(out, text);
}

static void answer_head(struct http_conn *conn, int status, const char *content_type)
{
	struct buf *out = &conn->out;
	buf_printf(out, "HTTP/1.1 %d %s\r\n", status, http_status_text(status));
	answer_date(out);
	if (content_type && *content_type)
		buf_printf(out, "Content-Type: %s\r\n", content_type);
	if (conn->last)
		buf_append_text(out, "Connection: close\r\n");
	else if (!conn->message.http11)
		buf_append_text(out, "Connection: keep-alive\r\n");
	buf_append(out, conn->exchange.extra.data, conn->exchange.extra.bytes);
}

/* The present answer is complete in conn->out. */
static void answer_done(struct http_conn *conn)
{
	conn->exchange.open = conn->exchange.streaming = false;
	http_message_next(&conn->message);
	conn_count_body(conn);
	conn->since_ns = clock_now_ns();
	conn_flush(conn);
	if (!conn->processing)
		conn_process(conn);
}

void http_answer_header(struct http_exchange *exchange, const char *name, const char *value)
{
	/* A line break would let a caller's text forge headers. */
	if (strpbrk(name, "\r\n:") || strpbrk(value, "\r\n"))
		return;
	buf_printf(&exchange->extra, "%s: %s\r\n", name, value);
}

static void respond(struct http_conn *conn, int status, const char *content_type, const void *body,
		    size_t bytes)
{
	answer_head(conn, status, content_type);
	if (status == 204 || status == 304)
		bytes = 0;
	else
		buf_printf(&conn->out, "Content-Length: %zu\r\n", bytes);
	buf_append_text(&conn->out, "\r\n");
	if (!conn->exchange.head)
		buf_append(&conn->out, body, bytes);
}

void http_respond(struct http_exchange *exchange, int status, const char *content_type,
		  const void *body, size_t bytes)
{
	struct http_conn *conn = exchange->conn;
	CHECK(exchange->open && !exchange->streaming);
	respond(conn, status, content_type, body, bytes);
	answer_done(conn);
}

void http_stream_begin(struct http_exchange *exchange, int status, const char *content_type)
{
	struct http_conn *conn = exchange->conn;
	CHECK(exchange->open && !exchange->streaming);
	exchange->streaming = true;
	exchange->chunked = conn->message.http11;
	if (!exchange->chunked)
		conn->last = true;
	answer_head(conn, status, content_type);
	if (exchange->chunked)
		buf_append_text(&conn->out, "Transfer-Encoding: chunked\r\n");
	buf_append_text(&conn->out, "\r\n");
}

void http_stream_send(struct http_exchange *exchange, const void *data, size_t bytes)
{
	struct http_conn *conn = exchange->conn;
	CHECK(exchange->open && exchange->streaming);
	if (!bytes || exchange->head)
		return;
	if (exchange->chunked)
		buf_printf(&conn->out, "%zx\r\n", bytes);
	buf_append(&conn->out, data, bytes);
	if (exchange->chunked)
		buf_append_text(&conn->out, "\r\n");
	conn_flush(conn);
}

void http_stream_end(struct http_exchange *exchange)
{
	struct http_conn *conn = exchange->conn;
	CHECK(exchange->open && exchange->streaming);
	if (exchange->chunked && !exchange->head)
		buf_append_text(&conn->out, "0\r\n\r\n");
	answer_done(conn);
}

size_t http_queued_bytes(const struct http_exchange *exchange)
{
	return conn_unsent_bytes(exchange->conn);
}

const char *http_header(const struct http_exchange *exchange, const char *name)
{
	return http_message_header(&exchange->conn->message, name);
}

void http_set_user(struct http_exchange *exchange, void *user)
{
	exchange->user = user;
}

void *http_user(const struct http_exchange *exchange)
{
	return exchange->user;
}

/* ---- requests ---- */

/* An answer of the server itself, in the error form that API clients read; then the end. */
static void conn_refuse(struct http_conn *conn, int status, const char *text)
{
	char body[512];
	const char *type = status >= 500 ? "ServiceUnavailableError" : "BadRequestError";
	int bytes = snprintf(body, sizeof body,
			     "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,"
			     "\"code\":%d}}",
			     text, type, status);
	conn->last = true;
	conn->exchange.head = conn->message.headers_complete &&
			      conn->message.parser.method == HTTP_HEAD;
	buf_clear(&conn->exchange.extra);
	respond(conn, status, "application/json", body, (size_t)bytes);
	buf_fini(&conn->pending);
	answer_done(conn);
}

static void conn_send_continue(struct http_conn *conn)
{
	buf_append_text(&conn->out, "HTTP/1.1 100 Continue\r\n\r\n");
	conn_flush(conn);
}

/* FIN came during an open exchange: make a peer that has closed say so. */
static void conn_probe(struct http_conn *conn)
{
	if (!conn->message.http11)
		conn_close(conn);
	else if (!conn->exchange.streaming)
		conn_send_continue(conn);
}

static void conn_dispatch(struct http_conn *conn)
{
	struct http_exchange *exchange = &conn->exchange;
	struct http_message *m = &conn->message;
	buf_clear(&exchange->extra);
	exchange->user = NULL;
	exchange->open = true;
	exchange->streaming = false;
	exchange->head = m->parser.method == HTTP_HEAD;
	if (!m->keep_alive || conn->server->closing || !conn->server->accepting)
		conn->last = true;
	struct http_request request = {
		.method = http_message_method(m),
		.path = m->path.data ? m->path.data : "/",
		.query = m->query,
		.body = m->body.data ? m->body.data : "",
		.body_bytes = m->body.bytes,
	};
	conn->server->callbacks.on_request(exchange, &request, conn->server->context);
	if (exchange->open && conn->eof)
		conn_probe(conn);
}

/* Feeds what was read. Return: false when the connection can do nothing more for now. */
static bool conn_feed(struct http_conn *conn)
{
	struct http_message *m = &conn->message;
	bool begun = m->begun, head_done = m->headers_complete;
	size_t body_bytes = m->body.bytes, consumed;
	int result = http_message_feed(m, conn->pending.data, conn->pending.bytes, &consumed);
	if (result < 0) {
		conn_refuse(conn, m->refuse_status, m->refuse_text);
		return false;
	}
	buf_consume(&conn->pending, consumed);
	conn_count_body(conn);
	if (conn->server->body_bytes > conn->server->limits.body_total_max) {
		conn_refuse(conn, 503, "too many large requests at once");
		return false;
	}
	if ((m->begun && !begun) || (m->headers_complete && !head_done) ||
	    m->body.bytes > body_bytes)
		conn->since_ns = clock_now_ns();
	if (result == 1) {
		conn_dispatch(conn);
		return true;
	}
	if (m->wants_continue && m->headers_complete && !m->body.bytes) {
		m->wants_continue = false;
		conn_send_continue(conn);
	}
	return false;
}

static void conn_at_eof(struct http_conn *conn)
{
	if (conn->exchange.open || conn->closing)
		return;
	if (conn->message.begun && !conn->last) {
		conn_refuse(conn, 400, "the connection ended in the middle of the request");
		return;
	}
	conn->last = true;
	if (!conn->write_busy && !conn->out.bytes)
		conn_close(conn);
}

/* Handles what was read until an exchange is open, input is short, or answers pile up. */
static void conn_process(struct http_conn *conn)
{
	if (conn->processing || conn->closing)
		return;
	conn->processing = true;
	while (!conn->closing && !conn->exchange.open && !conn->last && conn->pending.bytes &&
	       conn_unsent_bytes(conn) < HTTP_ANSWERS_MAX)
		if (!conn_feed(conn))
			break;
	conn->processing = false;
	if (conn->closing)
		return;
	conn_flush(conn);
	if (conn->closing || conn->exchange.open)
		return;
	if (conn->last && !conn->write_busy && !conn->out.bytes) {
		conn_linger(conn);
		return;
	}
	if (conn->eof && !conn->pending.bytes)
		conn_at_eof(conn);
	else if (conn->pending.bytes < HTTP_PENDING_MAX / 2)
		conn_read_resume(conn);
}

/* ---- reading ---- */

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_piece)
{
	struct http_conn *conn = handle->data;
	*ret_piece = uv_buf_init(conn->server->read_buffer, sizeof conn->server->read_buffer);
}

/* 1: the peer's kernel has reset the connection; 0: still there. */
static bool peer_is_gone(struct http_conn *conn)
{
	struct tcp_info info;
	socklen_t bytes = sizeof info;
	uv_os_fd_t fd;
	if (uv_fileno((uv_handle_t *)&conn->tcp, &fd) ||
	    getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes))
		return true;
	return info.tcpi_state == TCP_CLOSE;
}

static void conn_on_fin(struct http_conn *conn)
{
	conn->eof = true;
	conn->reading = false;
	if (conn->lingering) {
		conn_close(conn);
		return;
	}
	if (!conn->exchange.open) {
		conn_process(conn);
		return;
	}
	conn_probe(conn);
}

static void on_read(uv_stream_t *stream, ssize_t bytes, const uv_buf_t *piece)
{
	struct http_conn *conn = stream->data;
	if (bytes == 0 || conn->closing)
		return;
	if (bytes == UV_EOF) {
		conn_on_fin(conn);
		return;
	}
	if (bytes < 0) {
		conn_close(conn);
		return;
	}
	if (conn->lingering || conn->last)
		return; /* nothing more is answered here */
	buf_append(&conn->pending, piece->base, (size_t)bytes);
	if (conn->pending.failed) {
		conn_close(conn);
		return;
	}
	conn_process(conn);
	if (!conn->closing && conn->reading && conn->pending.bytes >= HTTP_PENDING_MAX) {
		uv_read_stop(stream);
		conn->reading = false;
	}
}

static void conn_read_resume(struct http_conn *conn)
{
	if (conn->reading || conn->eof || conn->closing)
		return;
	if (uv_read_start((uv_stream_t *)&conn->tcp, on_alloc, on_read))
		conn_close(conn);
	else
		conn->reading = true;
}

/* ---- deadlines ---- */

static void conn_sweep(struct http_conn *conn, uint64_t now_ns)
{
	const struct http_limits *limits = &conn->server->limits;
	uint64_t waited_ns = now_ns - MIN(now_ns, conn->since_ns);
	if (conn->broken) {
		conn_close(conn);
		return;
	}
	if (conn->write_busy) {
		size_t left = uv_stream_get_write_queue_size((uv_stream_t *)&conn->tcp);
		if (left != conn->write_left_seen) {
			conn->write_left_seen = left;
			conn->write_progress_ns = now_ns;
		} else if (now_ns - conn->write_progress_ns > limits->send_timeout_ns) {
			conn_close(conn);
			return;
		}
	}
	if (conn->exchange.open) {
		if (conn->eof && peer_is_gone(conn))
			conn_close(conn);
		return;
	}
	if (conn->lingering) {
		if (waited_ns > HTTP_LINGER_NS)
			conn_close(conn);
		return;
	}
	if (conn->last || conn->write_busy)
		return;
	if (!conn->message.begun) {
		if (waited_ns > limits->idle_timeout_ns)
			conn_close(conn);
	} else if (!conn->message.headers_complete) {
		if (waited_ns > limits->header_timeout_ns)
			conn_refuse(conn, 408, "the request's header took too long");
	} else if (waited_ns > limits->body_timeout_ns) {
		conn_refuse(conn, 408, "the request's body made no progress");
	}
}

static void on_sweep(uv_timer_t *timer)
{
	struct http_server *server = timer->data;
	uint64_t now_ns = clock_now_ns();
	list_for_each_safe(node, after, &server->conns) {
		struct http_conn *conn = list_entry(node, struct http_conn, link);
		if (!conn->closing)
			conn_sweep(conn, now_ns);
	}
}

/* ---- server ---- */

static struct http_conn *conn_new(struct http_server *server)
{
	struct http_conn *conn = calloc(1, sizeof *conn);
	if (!conn)
		return NULL;
	conn->server = server;
	conn->exchange.conn = conn;
	conn->tcp.data = conn;
	conn->since_ns = clock_now_ns();
	http_message_init(&conn->message, server->limits.header_bytes_max,
			  server->limits.body_bytes_max);
	if (uv_tcp_init(server->loop, &conn->tcp)) {
		http_message_fini(&conn->message);
		free(conn);
		return NULL;
	}
	conn->over_limit = server->conn_count >= server->limits.connections_max;
	if (conn->over_limit)
		server->refused_count++;
	else
		server->conn_count++;
	list_push_back(&server->conns, &conn->link);
	return conn;
}

static void on_connection(uv_stream_t *stream, int status)
{
	struct http_server *server = stream->data;
	if (status < 0)
		return;
	struct http_conn *conn = conn_new(server);
	if (!conn)
		return;
	if (uv_accept(stream, (uv_stream_t *)&conn->tcp) ||
	    (conn->over_limit && server->refused_count > HTTP_REFUSED_MAX)) {
		conn_close(conn);
		return;
	}
	uv_tcp_nodelay(&conn->tcp, 1);
	uv_tcp_keepalive(&conn->tcp, 1, 60);
	if (conn->over_limit)
		conn_refuse(conn, 503, "too many connections");
	else
		conn_read_resume(conn);
}

static void apply_defaults(struct http_limits *limits)
{
#define DEFAULT(field, value)                                                                    \
	if (!limits->field)                                                                      \
	limits->field = (value)
	DEFAULT(header_bytes_max, 64u << 10);
	DEFAULT(body_bytes_max, 32u << 20);
	DEFAULT(body_total_max, 16 * limits->body_bytes_max);
	DEFAULT(connections_max, 10000);
	DEFAULT(header_timeout_ns, 30 * NS_PER_S);
	DEFAULT(body_timeout_ns, 30 * NS_PER_S);
	DEFAULT(idle_timeout_ns, 75 * NS_PER_S);
	DEFAULT(send_timeout_ns, 60 * NS_PER_S);
#undef DEFAULT
}

static int bind_listener(struct http_server *server, const char *host, uint16_t port,
			 bool reuse_port, uint16_t *ret_port)
{
	struct sockaddr_storage address;
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE };
	struct addrinfo *found = NULL;
	char service[8];
	snprintf(service, sizeof service, "%u", port);
	/* Only at start, so the look-up may wait. */
	if (getaddrinfo(host && *host ? host : NULL, service, &hints, &found) || !found)
		return -EADDRNOTAVAIL;
	memcpy(&address, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
	int result;
	result = uv_tcp_init_ex(server->loop, &server->listener, address.ss_family);
	if (result)
		return result;
	server->handles_open++;
	uv_os_fd_t fd;
	int one = 1;
	if (reuse_port && (uv_fileno((uv_handle_t *)&server->listener, &fd) ||
			   setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one)))
		return -errno;
	result = uv_tcp_bind(&server->listener, (struct sockaddr *)&address, 0);
	if (!result)
		result = uv_listen((uv_stream_t *)&server->listener, 1024, on_connection);
	int bytes = sizeof address;
	if (!result)
		result = uv_tcp_getsockname(&server->listener, (struct sockaddr *)&address, &bytes);
	if (!result)
		*ret_port = ntohs(address.ss_family == AF_INET6 ?
					  ((struct sockaddr_in6 *)&address)->sin6_port :
					  ((struct sockaddr_in *)&address)->sin_port);
	return result;
}

int http_listen(uv_loop_t *loop, const char *host, uint16_t port, bool reuse_port,
		const struct http_limits *limits, const struct http_callbacks *callbacks,
		void *context, struct http_server **ret_server, uint16_t *ret_port)
{
	struct http_server *server = calloc(1, sizeof *server);
	if (!server)
		return -ENOMEM;
	server->loop = loop;
	if (limits)
		server->limits = *limits;
	apply_defaults(&server->limits);
	server->callbacks = *callbacks;
	server->context = context;
	list_init(&server->conns);
	server->listener.data = server->sweep.data = server;
	uint16_t bound = port;
	int result = bind_listener(server, host, port, reuse_port, &bound);
	if (result) {
		bool inited = server->handles_open;
		server->closing = true;
		if (inited)
			http_close(server);
		else
			free(server);
		return result;
	}
	uv_timer_init(loop, &server->sweep);
	uv_timer_start(&server->sweep, on_sweep, HTTP_SWEEP_MS, HTTP_SWEEP_MS);
	server->handles_open++;
	server->accepting = true;
	*ret_server = server;
	if (ret_port)
		*ret_port = bound;
	return 0;
}

static void on_handle_closed(uv_handle_t *handle)
{
	struct http_server *server = handle->data;
	server->handles_open--;
	server_unref(server);
}

void http_stop_accepting(struct http_server *server)
{
	server->accepting = false;
	if (!uv_is_closing((uv_handle_t *)&server->listener))
		uv_close((uv_handle_t *)&server->listener, on_handle_closed);
	/* Idle connections have nothing to wait for. */
	list_for_each_safe(node, after, &server->conns) {
		struct http_conn *conn = list_entry(node, struct http_conn, link);
		if (!conn->exchange.open && !conn->message.begun && !conn->pending.bytes &&
		    !conn->write_busy && !conn->lingering)
			conn_close(conn);
	}
}

void http_close(struct http_server *server)
{
	if (!server)
		return;
	http_stop_accepting(server);
	server->closing = true;
	if (uv_handle_get_type((uv_handle_t *)&server->sweep) == UV_TIMER &&
	    !uv_is_closing((uv_handle_t *)&server->sweep))
		uv_close((uv_handle_t *)&server->sweep, on_handle_closed);
	list_for_each_safe(node, after, &server->conns)
		conn_close(list_entry(node, struct http_conn, link));
}

uint32_t http_connection_count(const struct http_server *server)
{
	return server->conn_count;
}
