/*
 * One HTTP/1 request out of a stream of bytes: llhttp (strict) plus the bounds and refusals that
 * a server owes itself. No socket, no clock, so that a fuzzer can drive it.
 *
 * Refused here: both framings at once, two lengths, a transfer coding that is not chunked (or any
 * under HTTP/1.0), no or two Host fields under HTTP/1.1, NUL and bad escapes in the path, and
 * everything past the bounds. Upgrades are ignored, as HTTP allows.
 */
#ifndef BATON_NET_HTTP_PARSE_H
#define BATON_NET_HTTP_PARSE_H

#include <llhttp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define HTTP_HEADERS_MAX 128

struct http_header_at {
	uint32_t name, value; /* offsets into head.data, NUL-terminated texts */
};

struct http_message {
	llhttp_t parser;
	uint32_t header_bytes_max;
	uint64_t body_bytes_max;

	struct buf url;  /* as sent */
	struct buf path; /* decoded */
	const char *query;
	struct buf head;
	struct http_header_at headers[HTTP_HEADERS_MAX];
	uint32_t header_count;
	uint64_t header_bytes; /* what counts against header_bytes_max, trailers included */
	struct buf body;

	bool begun;            /* the first byte of the request has been seen */
	bool field_open, value_open; /* llhttp is inside a header's name, its value */
	bool headers_complete, complete;
	bool http11, keep_alive;
	bool wants_continue;   /* Expect: 100-continue, and a body is to come */
	int refuse_status;     /* when a feed failed */
	const char *refuse_text;
};

void http_message_init(struct http_message *m, uint32_t header_bytes_max, uint64_t body_bytes_max);
void http_message_fini(struct http_message *m);
/* Ready for the connection's next request; keeps the buffers' memory unless they grew large. */
void http_message_next(struct http_message *m);

/*
 * http_message_feed() - more bytes of the connection
 * @ret_consumed: bytes that belong to this request; the rest is the next one's
 * Return: 1 when the request is complete, 0 when more is needed, -EPROTO when it is refused:
 * refuse_status and refuse_text say how to answer, and the connection must end.
 */
int http_message_feed(struct http_message *m, const char *data, size_t bytes, size_t *ret_consumed);

/* First header of that name, or NULL. */
const char *http_message_header(const struct http_message *m, const char *name);
const char *http_message_method(const struct http_message *m);

#endif
