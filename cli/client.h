/* HTTP/1.1 client for the tool: one request on a blocking socket, every wait bounded. */
#ifndef BATON_CLI_CLIENT_H
#define BATON_CLI_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct client_url {
	char host[256];
	char port[6];
};

/* "http://HOST:PORT", "HOST:PORT" or "http://[::1]:PORT", a slash may end it. Return: 0, -EINVAL. */
int client_url_parse(const char *text, struct client_url *ret_url);

struct client_call {
	const char *method, *path;
	const char *body; /* JSON, or NULL */
	uint64_t timeout_ns; /* for connecting, and for each wait for more bytes */
	/* A piece of a 2xx answer's body, borrowed; a negative return ends the call with it.
	 * NULL, and for other statuses: the body is collected. */
	int (*on_body)(const char *data, size_t bytes, void *context);
	void *context;
	const char *api_key; /* NULL or "": none */
};

/*
 * @ret_body: initialised by the caller, who bounds it by bytes_max; the collected body.
 * Return: 0 and the HTTP status, or negative: -ETIMEDOUT, -ECONNREFUSED, -EPROTO (no HTTP),
 * -ECONNRESET (closed within the answer), -EMSGSIZE, ...
 */
int client_do(const struct client_url *url, const struct client_call *call, int *ret_status,
	      struct buf *ret_body);

#endif
