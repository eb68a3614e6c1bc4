#include "net/http_parse.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A request's buffers above this are given back when the next one begins. */
#define HTTP_KEEP_BYTES (64u << 10)

static struct http_message *message_of(llhttp_t *parser)
{
	return parser->data;
}

static int refuse(struct http_message *m, int status, const char *text)
{
	if (!m->refuse_status) {
		m->refuse_status = status;
		m->refuse_text = text;
	}
	return HPE_USER;
}

static int count_header_bytes(struct http_message *m, size_t bytes)
{
	m->header_bytes += bytes;
	if (m->header_bytes > m->header_bytes_max)
		return refuse(m, 431, "the request's header fields are too large");
	return 0;
}

static int on_url(llhttp_t *parser, const char *at, size_t bytes)
{
	struct http_message *m = message_of(parser);
	if (count_header_bytes(m, bytes)) {
		m->refuse_status = 414;
		m->refuse_text = "the request's target is too long";
		return HPE_USER;
	}
	buf_append(&m->url, at, bytes);
	return 0;
}

static int on_header_field(llhttp_t *parser, const char *at, size_t bytes)
{
	struct http_message *m = message_of(parser);
	if (count_header_bytes(m, bytes))
		return HPE_USER;
	if (m->headers_complete)
		return 0; /* a trailer: bounded, otherwise ignored */
	if (!m->field_open) {
		if (m->header_count == HTTP_HEADERS_MAX)
			return refuse(m, 431, "the request has too many header fields");
		if (m->value_open)
			buf_append(&m->head, "", 1);
		m->value_open = false;
		m->field_open = true;
		m->headers[m->header_count++].name = (uint32_t)m->head.bytes;
	}
	buf_append(&m->head, at, bytes);
	return 0;
}

static int on_header_field_complete(llhttp_t *parser)
{
	struct http_message *m = message_of(parser);
	if (m->headers_complete || !m->header_count)
		return 0;
	buf_append(&m->head, "", 1);
	m->headers[m->header_count - 1].value = (uint32_t)m->head.bytes;
	m->field_open = false;
	m->value_open = true;
	return 0;
}

static int on_header_value(llhttp_t *parser, const char *at, size_t bytes)
{
	struct http_message *m = message_of(parser);
	if (count_header_bytes(m, bytes))
		return HPE_USER;
	if (!m->headers_complete)
		buf_append(&m->head, at, bytes);
	return 0;
}

static int on_header_value_complete(llhttp_t *parser)
{
	struct http_message *m = message_of(parser);
	if (!m->headers_complete && m->value_open)
		buf_append(&m->head, "", 1);
	m->value_open = false;
	return 0;
}

static int on_chunk_extension(llhttp_t *parser, const char *at, size_t bytes)
{
	return count_header_bytes(message_of(parser), bytes);
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* Splits the target into decoded path and raw query. The absolute form (http://host/path), which
 * proxies send, is accepted. */
static int split_target(struct http_message *m)
{
	char *target = m->url.data ? m->url.data : (char *)"";
	if (!strncasecmp(target, "http://", 7) || !strncasecmp(target, "https://", 8)) {
		target = strstr(target, "//") + 2;
		target += strcspn(target, "/?");
	}
	if (*target != '/' && strcmp(target, "*") != 0 && *target != '?' && *target)
		return refuse(m, 400, "the request's target is not a path");
	char *fragment = strchr(target, '#');
	if (fragment)
		*fragment = 0;
	char *query = strchr(target, '?');
	if (query)
		*query = 0;
	m->query = query ? query + 1 : "";
	if (!*target)
		target = (char *)"/";
	for (const char *p = target; *p; p++) {
		char c = *p;
		if (c == '%') {
			int high = hex_digit(p[1]);
			int low = high < 0 ? -1 : hex_digit(p[2]);
			if (low < 0 || high * 16 + low == 0)
				return refuse(m, 400, "the request's path holds a bad escape");
			c = (char)(high * 16 + low);
			p += 2;
		}
		buf_append(&m->path, &c, 1);
	}
	return 0;
}

static uint32_t header_count_of(const struct http_message *m, const char *name)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < m->header_count; i++)
		if (!strcasecmp(m->head.data + m->headers[i].name, name))
			count++;
	return count;
}

static int check_framing(struct http_message *m)
{
	if (m->parser.http_major != 1 || m->parser.http_minor > 1)
		return refuse(m, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
	m->http11 = m->parser.http_minor == 1;
	uint32_t hosts = header_count_of(m, "host");
	if (hosts > 1 || (m->http11 && !hosts))
		return refuse(m, 400, "exactly one Host field is needed");
	bool coded = header_count_of(m, "transfer-encoding");
	if (coded && (!m->http11 || !(m->parser.flags & F_CHUNKED)))
		return refuse(m, m->http11 ? 501 : 400, "the transfer coding is not supported");
	if (coded && header_count_of(m, "content-length"))
		return refuse(m, 400, "Content-Length and Transfer-Encoding exclude each other");
	if (header_count_of(m, "content-length") > 1)
		return refuse(m, 400, "Content-Length came twice");
	if ((m->parser.flags & F_CONTENT_LENGTH) && m->parser.content_length > m->body_bytes_max)
		return refuse(m, 413, "the request's body is too large");
	const char *expect = http_message_header(m, "expect");
	if (expect && m->http11) {
		if (strcasecmp(expect, "100-continue") != 0)
			return refuse(m, 417, "the only expectation met here is 100-continue");
		m->wants_continue = (m->parser.flags & F_CHUNKED) || m->parser.content_length > 0;
	}
	return 0;
}

static int on_headers_complete(llhttp_t *parser)
{
	struct http_message *m = message_of(parser);
	if (m->head.failed || m->url.failed)
		return refuse(m, 503, "out of memory");
	if (split_target(m) || check_framing(m))
		return HPE_USER;
	m->headers_complete = true;
	m->keep_alive = llhttp_should_keep_alive(parser);
	parser->upgrade = 0; /* the protocol stays; a server may ignore Upgrade */
	return 0;
}

static int on_body(llhttp_t *parser, const char *at, size_t bytes)
{
	struct http_message *m = message_of(parser);
	if (m->body.bytes + bytes > m->body_bytes_max)
		return refuse(m, 413, "the request's body is too large");
	buf_append(&m->body, at, bytes);
	if (m->body.failed)
		return refuse(m, 503, "out of memory");
	return 0;
}

static int on_message_complete(llhttp_t *parser)
{
	message_of(parser)->complete = true;
	return HPE_PAUSED;
}

static const llhttp_settings_t parser_settings = {
	.on_url = on_url,
	.on_header_field = on_header_field,
	.on_header_field_complete = on_header_field_complete,
	.on_header_value = on_header_value,
	.on_header_value_complete = on_header_value_complete,
	.on_chunk_extension_name = on_chunk_extension,
	.on_chunk_extension_value = on_chunk_extension,
	.on_headers_complete = on_headers_complete,
	.on_body = on_body,
	.on_message_complete = on_message_complete,
};

static void parser_begin(struct http_message *m)
{
	llhttp_init(&m->parser, HTTP_REQUEST, &parser_settings);
	m->parser.data = m;
}

void http_message_init(struct http_message *m, uint32_t header_bytes_max, uint64_t body_bytes_max)
{
	memset(m, 0, sizeof *m);
	m->header_bytes_max = header_bytes_max;
	m->body_bytes_max = body_bytes_max;
	m->query = "";
	parser_begin(m);
}

void http_message_fini(struct http_message *m)
{
	buf_fini(&m->url);
	buf_fini(&m->path);
	buf_fini(&m->head);
	buf_fini(&m->body);
}

static void renew(struct buf *buf)
{
	if (buf->capacity > HTTP_KEEP_BYTES)
		buf_fini(buf);
	else
		buf_clear(buf);
}

void http_message_next(struct http_message *m)
{
	renew(&m->url);
	renew(&m->path);
	renew(&m->head);
	renew(&m->body);
	m->query = "";
	m->header_count = 0;
	m->header_bytes = 0;
	m->begun = m->field_open = m->value_open = false;
	m->headers_complete = m->complete = false;
	m->http11 = m->keep_alive = m->wants_continue = false;
	m->refuse_status = 0;
	m->refuse_text = NULL;
	parser_begin(m);
}

int http_message_feed(struct http_message *m, const char *data, size_t bytes, size_t *ret_consumed)
{
	*ret_consumed = 0;
	size_t skipped = 0;
	if (!m->begun) {
		/* Empty lines between requests are tolerated, and are not yet a request. */
		while (skipped < bytes && (data[skipped] == '\r' || data[skipped] == '\n'))
			skipped++;
		if (skipped == bytes) {
			*ret_consumed = bytes;
			return 0;
		}
		m->begun = true;
	}
	enum llhttp_errno result = llhttp_execute(&m->parser, data + skipped, bytes - skipped);
	if (result == HPE_PAUSED && m->complete) {
		*ret_consumed = (size_t)(llhttp_get_error_pos(&m->parser) - data);
		return 1;
	}
	if (result == HPE_OK) {
		*ret_consumed = bytes;
		return 0;
	}
	(void)refuse(m, 400, llhttp_get_error_reason(&m->parser));
	if (!m->refuse_text || !*m->refuse_text)
		m->refuse_text = "the request is malformed";
	return -EPROTO;
}

const char *http_message_header(const struct http_message *m, const char *name)
{
	for (uint32_t i = 0; i < m->header_count; i++)
		if (!strcasecmp(m->head.data + m->headers[i].name, name))
			return m->head.data + m->headers[i].value;
	return NULL;
}

const char *http_message_method(const struct http_message *m)
{
	return llhttp_method_name(m->parser.method);
}
