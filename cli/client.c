#include "cli/client.h"

#include <errno.h>
#include <fcntl.h>
#include <llhttp.h>
#include <netdb.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"

int client_url_parse(const char *text, struct client_url *ret_url)
{
	struct client_url url = { 0 };
	size_t host_bytes, port_bytes;

	if (!strncmp(text, "http://", 7))
		text += 7;
	const char *host = text;
	if (*text == '[') {
		host++;
		host_bytes = strcspn(host, "]");
		text = host + host_bytes + (host[host_bytes] == ']');
	} else {
		host_bytes = strcspn(host, ":/");
		text = host + host_bytes;
	}
	if (*text != ':' || !host_bytes || host_bytes >= sizeof url.host)
		return -EINVAL;
	port_bytes = strspn(++text, "0123456789");
	if (!port_bytes || port_bytes >= sizeof url.port)
		return -EINVAL;
	memcpy(url.host, host, host_bytes);
	memcpy(url.port, text, port_bytes);
	text += port_bytes;
	if (strcmp(text, "") && strcmp(text, "/"))
		return -EINVAL;
	*ret_url = url;
	return 0;
}

/* Return: 0, -ETIMEDOUT or another negative errno. */
static int wait_for(int fd, short events, uint64_t timeout_ns)
{
	struct pollfd poll_fd = { .fd = fd, .events = events };
	uint64_t deadline = clock_now_ns() + timeout_ns;

	for (;;) {
		uint64_t now = clock_now_ns();
		uint64_t left_ms = now < deadline ? (deadline - now) / NS_PER_MS + 1 : 0;
		int count = poll(&poll_fd, 1, (int)MIN(left_ms, UINT64_C(1000000)));
		if (count > 0)
			return 0;
		if (count < 0 && errno != EINTR)
			return -errno;
		if (count == 0 && clock_now_ns() >= deadline)
			return -ETIMEDOUT;
	}
}

static int connect_one(const struct addrinfo *address, uint64_t timeout_ns)
{
	int error = 0;
	socklen_t bytes = sizeof error;
	int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -errno;
	if (connect(fd, address->ai_addr, address->ai_addrlen) < 0) {
		error = errno == EINPROGRESS ? wait_for(fd, POLLOUT, timeout_ns) : -errno;
		if (!error) {
			(void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
			error = -error;
		}
	}
	if (!error)
		return fd;
	close(fd);
	return error;
}

static int connect_any(const struct client_url *url, uint64_t timeout_ns)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV }, *all;
	int fd = -EHOSTUNREACH;

	if (getaddrinfo(url->host, url->port, &hints, &all))
		return -EHOSTUNREACH;
	for (const struct addrinfo *one = all; one && fd < 0; one = one->ai_next)
		fd = connect_one(one, timeout_ns);
	freeaddrinfo(all);
	return fd;
}

static int send_all(int fd, const char *data, size_t bytes, uint64_t timeout_ns)
{
	while (bytes) {
		ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);
		if (sent >= 0) {
			data += sent;
			bytes -= (size_t)sent;
			continue;
		}
		int error = errno == EAGAIN ? wait_for(fd, POLLOUT, timeout_ns) : errno == EINTR ? 0 : -errno;
		if (error)
			return error;
	}
	return 0;
}

static int send_request(int fd, const struct client_url *url, const struct client_call *call)
{
	struct buf head;
	bool brackets = strchr(url->host, ':');

	buf_init(&head, 0);
	buf_printf(&head, "%s %s HTTP/1.1\r\nHost: %s%s%s:%s\r\nConnection: close\r\nAccept: */*\r\n",
		   call->method, call->path, brackets ? "[" : "", url->host, brackets ? "]" : "",
		   url->port);
	if (call->api_key && *call->api_key)
		buf_printf(&head, "Authorization: Bearer %s\r\n", call->api_key);
	if (call->body)
		buf_printf(&head, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
			   strlen(call->body));
	else if (strcmp(call->method, "GET"))
		buf_append_text(&head, "Content-Length: 0\r\n");
	buf_append_text(&head, "\r\n");
	if (call->body)
		buf_append_text(&head, call->body);
	int error = head.failed ? -ENOMEM : send_all(fd, head.data, head.bytes, call->timeout_ns);
	buf_fini(&head);
	return error;
}

struct answer {
	const struct client_call *call;
	struct buf *body;
	int error;
	bool complete;
};

static int on_body(llhttp_t *parser, const char *data, size_t bytes)
{
	struct answer *answer = parser->data;

	if (answer->call->on_body && parser->status_code / 100 == 2) {
		answer->error = answer->call->on_body(data, bytes, answer->call->context);
		return answer->error ? HPE_USER : 0;
	}
	buf_append(answer->body, data, bytes);
	if (answer->body->failed)
		answer->error = -EMSGSIZE;
	return answer->error ? HPE_USER : 0;
}

static int on_complete(llhttp_t *parser)
{
	struct answer *answer = parser->data;
	/* 100 Continue and its like come before the answer proper. */
	answer->complete = parser->status_code / 100 != 1;
	return answer->complete ? HPE_PAUSED : 0;
}

static int receive(int fd, llhttp_t *parser, struct answer *answer)
{
	char room[16384];

	while (!answer->complete) {
		ssize_t bytes = recv(fd, room, sizeof room, 0);
		if (bytes < 0 && errno == EINTR)
			continue;
		if (bytes < 0 && errno != EAGAIN)
			return -errno;
		if (bytes < 0) {
			int error = wait_for(fd, POLLIN, answer->call->timeout_ns);
			if (error)
				return error;
			continue;
		}
		llhttp_errno_t result = bytes ? llhttp_execute(parser, room, (size_t)bytes) :
						llhttp_finish(parser);
		if (answer->error)
			return answer->error;
		if (!answer->complete && (result != HPE_OK || !bytes))
			return bytes || result != HPE_OK ? -EPROTO : -ECONNRESET;
	}
	return 0;
}

int client_do(const struct client_url *url, const struct client_call *call, int *ret_status,
	      struct buf *ret_body)
{
	struct answer answer = { .call = call, .body = ret_body };
	llhttp_settings_t settings;
	llhttp_t parser;

	int fd = connect_any(url, call->timeout_ns);
	if (fd < 0)
		return fd;
	llhttp_settings_init(&settings);
	settings.on_body = on_body;
	settings.on_message_complete = on_complete;
	llhttp_init(&parser, HTTP_RESPONSE, &settings);
	parser.data = &answer;
	int error = send_request(fd, url, call);
	/* A server may answer and close before it has read all; the answer says why. */
	if (!error || error == -EPIPE || error == -ECONNRESET)
		error = receive(fd, &parser, &answer);
	close(fd);
	if (!error)
		*ret_status = parser.status_code;
	return error;
}
