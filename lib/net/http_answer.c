/* Answers: whole ones and streams. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "net/http_private.h"

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

void http__answer_done(struct http_conn *conn)
{
	conn->exchange.open = conn->exchange.streaming = false;
	http_message_next(&conn->message);
	http__conn_count_body(conn);
	conn->since_ns = clock_now_ns();
	http__conn_flush(conn);
	if (!conn->processing)
		http__conn_process(conn);
}

void http_answer_header(struct http_exchange *exchange, const char *name, const char *value)
{
	/* A line break would let a caller's text forge headers. */
	if (strpbrk(name, "\r\n:") || strpbrk(value, "\r\n"))
		return;
	buf_printf(&exchange->extra, "%s: %s\r\n", name, value);
}

void http__respond(struct http_conn *conn, int status, const char *content_type, const void *body,
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
	http__respond(conn, status, content_type, body, bytes);
	http__answer_done(conn);
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
	http__conn_flush(conn);
}

void http_stream_end(struct http_exchange *exchange)
{
	struct http_conn *conn = exchange->conn;
	CHECK(exchange->open && exchange->streaming);
	if (exchange->chunked && !exchange->head)
		buf_append_text(&conn->out, "0\r\n\r\n");
	http__answer_done(conn);
}

size_t http_queued_bytes(const struct http_exchange *exchange)
{
	return http__conn_unsent_bytes(exchange->conn);
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
