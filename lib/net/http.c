/* The HTTP server: its listener, its connections as a whole, their deadlines. */
#include "net/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/check.h"
#include "base/clock.h"
#include "net/http_private.h"

#define HTTP_SWEEP_MS 100
/* Connections past connections_max get a 503; past this many more, nothing at all. */
#define HTTP_REFUSED_MAX 256

void http__server_unref(struct http_server *server)
{
	if (server->closing && !server->handles_open && list_empty(&server->conns))
		free(server);
}

/* ---- deadlines ---- */

static void conn_sweep(struct http_conn *conn, uint64_t now_ns)
{
	const struct http_limits *limits = &conn->server->limits;
	uint64_t waited_ns = now_ns - MIN(now_ns, conn->since_ns);
	if (conn->broken) {
		http__conn_close(conn);
		return;
	}
	if (conn->write_busy) {
		size_t left = uv_stream_get_write_queue_size((uv_stream_t *)&conn->tcp);
		if (left != conn->write_left_seen) {
			conn->write_left_seen = left;
			conn->write_progress_ns = now_ns;
		} else if (now_ns - conn->write_progress_ns > limits->send_timeout_ns) {
			http__conn_close(conn);
			return;
		}
	}
	if (conn->exchange.open) {
		if (conn->eof && http__peer_is_gone(conn))
			http__conn_close(conn);
		return;
	}
	if (conn->lingering) {
		if (waited_ns > HTTP_LINGER_NS)
			http__conn_close(conn);
		return;
	}
	if (conn->last || conn->write_busy)
		return;
	if (!conn->message.begun) {
		if (waited_ns > limits->idle_timeout_ns)
			http__conn_close(conn);
	} else if (!conn->message.headers_complete) {
		if (waited_ns > limits->header_timeout_ns)
			http__conn_refuse(conn, 408, "the request's header took too long");
	} else if (waited_ns > limits->body_timeout_ns) {
		http__conn_refuse(conn, 408, "the request's body made no progress");
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
		http__conn_close(conn);
		return;
	}
	uv_tcp_nodelay(&conn->tcp, 1);
	uv_tcp_keepalive(&conn->tcp, 1, 60);
	if (conn->over_limit)
		http__conn_refuse(conn, 503, "too many connections");
	else
		http__conn_read_resume(conn);
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
	http__server_unref(server);
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
			http__conn_close(conn);
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
		http__conn_close(list_entry(node, struct http_conn, link));
}

uint32_t http_connection_count(const struct http_server *server)
{
	return server->conn_count;
}
