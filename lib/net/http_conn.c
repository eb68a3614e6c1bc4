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
 * Bounds of the server: connections, and bytes of all bodies together. Per connection: the
 * parser's, HTTP_PENDING_MAX bytes read ahead of the open exchange (then reading stops),
 * HTTP_ANSWERS_MAX bytes of answers before the next pipelined request is looked at. What a stream
 * queues is up to its owner, who asks http_queued_bytes().
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/check.h"
#include "base/clock.h"
#include "net/http_private.h"

void http__conn_count_body(struct http_conn *conn)
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
	http__conn_count_body(conn);
	buf_fini(&conn->exchange.extra);
	buf_fini(&conn->pending);
	buf_fini(&conn->out);
	buf_fini(&conn->writing);
	free(conn);
	http__server_unref(server);
}

void http__conn_close(struct http_conn *conn)
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
		http__conn_close(conn);
}

/* The last answer is out: FIN, then swallow what the client still sends for a while, since
 * closing over unread bytes would send RST and could destroy the answer on its way. */
static void conn_linger(struct http_conn *conn)
{
	if (conn->closing || conn->shut)
		return;
	if (conn->eof) {
		http__conn_close(conn);
		return;
	}
	conn->shut = conn->lingering = true;
	conn->since_ns = clock_now_ns();
	buf_fini(&conn->pending);
	conn->shutdown.data = conn;
	if (uv_shutdown(&conn->shutdown, (uv_stream_t *)&conn->tcp, on_shutdown))
		http__conn_close(conn);
	else
		http__conn_read_resume(conn);
}

/* ---- writing ---- */

size_t http__conn_unsent_bytes(const struct http_conn *conn)
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
		http__conn_close(conn);
		return;
	}
	if (conn->out.bytes)
		http__conn_flush(conn);
	if (conn->closing || conn->write_busy)
		return;
	if (conn->exchange.open) {
		if (conn->exchange.streaming && conn->server->callbacks.on_writable)
			conn->server->callbacks.on_writable(&conn->exchange,
							    conn->server->context);
	} else {
		http__conn_process(conn);
	}
}

void http__conn_flush(struct http_conn *conn)
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

/* ---- requests ---- */

void http__conn_refuse(struct http_conn *conn, int status, const char *text)
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
	http__respond(conn, status, "application/json", body, (size_t)bytes);
	buf_fini(&conn->pending);
	http__answer_done(conn);
}

static void conn_send_continue(struct http_conn *conn)
{
	buf_append_text(&conn->out, "HTTP/1.1 100 Continue\r\n\r\n");
	http__conn_flush(conn);
}

/* FIN came during an open exchange: make a peer that has closed say so. */
static void conn_probe(struct http_conn *conn)
{
	if (!conn->message.http11)
		http__conn_close(conn);
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
		http__conn_refuse(conn, m->refuse_status, m->refuse_text);
		return false;
	}
	buf_consume(&conn->pending, consumed);
	http__conn_count_body(conn);
	if (conn->server->body_bytes > conn->server->limits.body_total_max) {
		http__conn_refuse(conn, 503, "too many large requests at once");
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
		http__conn_refuse(conn, 400, "the connection ended in the middle of the request");
		return;
	}
	conn->last = true;
	if (!conn->write_busy && !conn->out.bytes)
		http__conn_close(conn);
}

void http__conn_process(struct http_conn *conn)
{
	if (conn->processing || conn->closing)
		return;
	conn->processing = true;
	while (!conn->closing && !conn->exchange.open && !conn->last && conn->pending.bytes &&
	       http__conn_unsent_bytes(conn) < HTTP_ANSWERS_MAX)
		if (!conn_feed(conn))
			break;
	conn->processing = false;
	if (conn->closing)
		return;
	http__conn_flush(conn);
	if (conn->closing || conn->exchange.open)
		return;
	if (conn->last && !conn->write_busy && !conn->out.bytes) {
		conn_linger(conn);
		return;
	}
	if (conn->eof && !conn->pending.bytes)
		conn_at_eof(conn);
	else if (conn->pending.bytes < HTTP_PENDING_MAX / 2)
		http__conn_read_resume(conn);
}

/* ---- reading ---- */

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_piece)
{
	struct http_conn *conn = handle->data;
	*ret_piece = uv_buf_init(conn->server->read_buffer, sizeof conn->server->read_buffer);
}

bool http__peer_is_gone(struct http_conn *conn)
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
		http__conn_close(conn);
		return;
	}
	if (!conn->exchange.open) {
		http__conn_process(conn);
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
		http__conn_close(conn);
		return;
	}
	if (conn->lingering || conn->last)
		return; /* nothing more is answered here */
	buf_append(&conn->pending, piece->base, (size_t)bytes);
	if (conn->pending.failed) {
		http__conn_close(conn);
		return;
	}
	http__conn_process(conn);
	if (!conn->closing && conn->reading && conn->pending.bytes >= HTTP_PENDING_MAX) {
		uv_read_stop(stream);
		conn->reading = false;
	}
}

void http__conn_read_resume(struct http_conn *conn)
{
	if (conn->reading || conn->eof || conn->closing)
		return;
	if (uv_read_start((uv_stream_t *)&conn->tcp, on_alloc, on_read))
		http__conn_close(conn);
	else
		conn->reading = true;
}
