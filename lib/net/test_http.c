/* The HTTP server over real loopback sockets: its loop in a thread, blocking clients here. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/clock.h"
#include "net/http.h"

struct fixture {
	uv_loop_t loop;
	uv_async_t stop;
	uv_timer_t later; /* answers the waiting exchange of /later */
	pthread_t thread;
	struct http_server *server;
	uint16_t port;
	struct http_exchange *waiting, *flood;
	size_t flood_left, flood_queued_max;
	_Atomic uint32_t gone, requests;
};

static void on_later(uv_timer_t *timer)
{
	struct fixture *f = timer->data;
	if (f->waiting)
		http_respond(f->waiting, 200, "text/plain", "late", 4);
	f->waiting = NULL;
}

#define FLOOD_PIECE 16384

static void flood_more(struct fixture *f)
{
	static char piece[FLOOD_PIECE];
	memset(piece, 'f', sizeof piece);
	while (f->flood_left && http_queued_bytes(f->flood) < 4 * FLOOD_PIECE) {
		http_stream_send(f->flood, piece, sizeof piece);
		f->flood_left -= sizeof piece;
		f->flood_queued_max = MAX(f->flood_queued_max, http_queued_bytes(f->flood));
	}
	if (!f->flood_left) {
		struct http_exchange *exchange = f->flood;
		f->flood = NULL;
		http_stream_end(exchange);
	}
}

static void on_request(struct http_exchange *exchange, const struct http_request *request,
		       void *context)
{
	struct fixture *f = context;
	atomic_fetch_add(&f->requests, 1);
	if (!strcmp(request->path, "/echo")) {
		http_answer_header(exchange, "X-Method", request->method);
		http_answer_header(exchange, "X-Query", request->query);
		http_answer_header(exchange, "X-Forged", "a\r\nX-Evil: 1");
		const char *mark = http_header(exchange, "x-mark");
		if (mark)
			http_answer_header(exchange, "X-Mark", mark);
		http_respond(exchange, 200, "text/plain", request->body, request->body_bytes);
	} else if (!strcmp(request->path, "/later")) {
		f->waiting = exchange;
		uv_timer_start(&f->later, on_later, 700, 0);
	} else if (!strcmp(request->path, "/stream")) {
		http_stream_begin(exchange, 200, "text/event-stream");
		http_stream_send(exchange, "one ", 4);
		http_stream_send(exchange, "two", 3);
		http_stream_end(exchange);
	} else if (!strcmp(request->path, "/flood")) {
		f->flood = exchange;
		f->flood_left = 512 * FLOOD_PIECE;
		http_stream_begin(exchange, 200, "text/plain");
		flood_more(f);
	} else {
		http_respond(exchange, 404, "text/plain", request->path, strlen(request->path));
	}
}

static void on_gone(struct http_exchange *exchange, void *context)
{
	struct fixture *f = context;
	if (f->waiting == exchange)
		f->waiting = NULL;
	if (f->flood == exchange)
		f->flood = NULL;
	atomic_fetch_add(&f->gone, 1);
}

static void on_writable(struct http_exchange *exchange, void *context)
{
	struct fixture *f = context;
	if (f->flood == exchange)
		flood_more(f);
}

static void on_stop(uv_async_t *async)
{
	struct fixture *f = async->data;
	http_close(f->server);
	uv_close((uv_handle_t *)&f->later, NULL);
	uv_close((uv_handle_t *)&f->stop, NULL);
}

static void *loop_main(void *argument)
{
	struct fixture *f = argument;
	uv_run(&f->loop, UV_RUN_DEFAULT);
	return NULL;
}

static struct fixture *fixture_start(const struct http_limits *limits)
{
	struct fixture *f = calloc(1, sizeof *f);
	static const struct http_callbacks callbacks = { on_request, on_gone, on_writable };
	uv_loop_init(&f->loop);
	uv_async_init(&f->loop, &f->stop, on_stop);
	uv_timer_init(&f->loop, &f->later);
	f->stop.data = f->later.data = f;
	assert_int_equal(http_listen(&f->loop, "127.0.0.1", 0, false, limits, &callbacks, f,
				     &f->server, &f->port),
			 0);
	assert_int_not_equal(f->port, 0);
	pthread_create(&f->thread, NULL, loop_main, f);
	return f;
}

static void fixture_stop(struct fixture *f)
{
	uv_async_send(&f->stop);
	pthread_join(f->thread, NULL);
	assert_int_equal(uv_loop_close(&f->loop), 0); /* no handle is left behind */
	free(f);
}

static int client(const struct fixture *f)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(f->port) };
	struct timeval limit = { .tv_sec = 5 };
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
	return fd;
}

static void say(int fd, const char *text)
{
	(void)!send(fd, text, strlen(text), MSG_NOSIGNAL);
}

/* Reads until the end of the connection or until @mark has been seen. */
static char *hear(int fd, const char *mark)
{
	struct buf all;
	buf_init(&all, 64u << 20);
	for (;;) {
		char piece[65536];
		ssize_t bytes = recv(fd, piece, sizeof piece, 0);
		if (bytes <= 0)
			break;
		buf_append(&all, piece, (size_t)bytes);
		if (mark && strstr(all.data, mark))
			break;
	}
	return buf_steal(&all);
}

/* Sends, reads to the end of the connection, checks how the answer begins. */
static char *ask(const struct fixture *f, const char *text, const char *want)
{
	int fd = client(f);
	say(fd, text);
	char *answer = hear(fd, NULL);
	close(fd);
	if (strncmp(answer, want, strlen(want)) != 0)
		fail_msg("asked %.60s, got %.200s", text, answer);
	return answer;
}

static void ask_only(const struct fixture *f, const char *text, const char *want)
{
	free(ask(f, text, want));
}

static uint32_t count_of(const char *text, const char *needle)
{
	uint32_t count = 0;
	for (const char *p = text; (p = strstr(p, needle)); p += strlen(needle))
		count++;
	return count;
}

#define CLOSE "Connection: close\r\n"
#define HOST "Host: x\r\n"

static void test_plain(void **state)
{
	struct fixture *f = fixture_start(NULL);
	char *answer = ask(f,
			   "POST /e%63ho?a=%31 HTTP/1.1\r\n" HOST CLOSE
			   "X-Mark:   spaced\r\nEmpty:\r\nContent-Length: 5\r\n\r\nhello",
			   "HTTP/1.1 200 OK\r\n");
	assert_non_null(strstr(answer, "X-Method: POST\r\n"));
	assert_non_null(strstr(answer, "X-Query: a=%31\r\n"));
	assert_non_null(strstr(answer, "X-Mark: spaced\r\n"));
	assert_null(strstr(answer, "X-Evil"));
	assert_non_null(strstr(answer, "\r\n\r\nhello"));
	free(answer);
	answer = ask(f, "HEAD /echo HTTP/1.1\r\n" HOST CLOSE "\r\n", "HTTP/1.1 200 OK");
	assert_string_equal(strstr(answer, "\r\n\r\n"), "\r\n\r\n");
	free(answer);
	answer = ask(f, "GET /echo HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK");
	assert_null(strstr(answer, "chunked"));
	free(answer);
	answer = ask(f, "GET /stream HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK");
	assert_null(strstr(answer, "chunked"));
	assert_non_null(strstr(answer, "\r\n\r\none two"));
	free(answer);
	answer = ask(f, "GET /stream HTTP/1.1\r\n" HOST CLOSE "\r\n", "HTTP/1.1 200 OK");
	assert_non_null(strstr(answer, "4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n"));
	free(answer);
	answer = ask(f,
		     "POST /echo HTTP/1.1\r\n" HOST CLOSE
		     "Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nT: r\r\n\r\n",
		     "HTTP/1.1 200 OK");
	assert_non_null(strstr(answer, "\r\n\r\nhello"));
	free(answer);
	ask_only(f, "GET http://x/nowhere HTTP/1.1\r\n" HOST CLOSE "\r\n", "HTTP/1.1 404");
	ask_only(f, "GET /echo HTTP/1.1\r\n" HOST CLOSE "Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
		 "HTTP/1.1 200");
	fixture_stop(f);
}

static void test_refused(void **state)
{
	static const struct {
		const char *text, *want;
	} cases[] = {
		{ "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
		  "0\r\n\r\nGET /echo HTTP/1.1\r\n" HOST "\r\n", "HTTP/1.1 400" },
		{ "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n"
		  "0\r\n\r\n", "HTTP/1.1 400" },
		{ "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 2\r\nContent-Length: 40\r\n\r\n{}",
		  "HTTP/1.1 400" },
		{ "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
		  "HTTP/1.1 400" },
		{ "POST /echo HTTP/1.1\r\n" HOST "Content-Length: -1\r\n\r\n", "HTTP/1.1 400" },
		{ "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 99999999999999999999999\r\n\r\n",
		  "HTTP/1.1 400" },
		{ "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip\r\n\r\n", "HTTP/1.1 501" },
		{ "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked, gzip\r\n\r\n",
		  "HTTP/1.1 400" },
		{ "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 400" },
		{ "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\nzz\r\nhello",
		  "HTTP/1.1 400" },
		{ "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 100000000000\r\n\r\n{",
		  "HTTP/1.1 413" },
		{ "POST /echo HTTP/1.1\r\n" HOST "Expect: miracles\r\nContent-Length: 1\r\n\r\n{",
		  "HTTP/1.1 417" },
		{ "GET /echo HTTP/1.1\r\n\r\n", "HTTP/1.1 400" },
		{ "GET /echo HTTP/1.1\r\n" HOST HOST "\r\n", "HTTP/1.1 400" },
		{ "GET /ec%00ho HTTP/1.1\r\n" HOST "\r\n", "HTTP/1.1 400" },
		{ "GET /ec%4 HTTP/1.1\r\n" HOST "\r\n", "HTTP/1.1 400" },
		{ "GET /echo HTTP/2.0\r\n" HOST "\r\n", "HTTP/1.1 " },
		{ "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.1 " },
		{ "GET /echo\r\n\r\n", "HTTP/1.1 505" },
		{ "\x16\x03\x01 hello tls", "HTTP/1.1 400" },
		{ "GET /echo HTTP/1.1\r\n" HOST "Bad Name: x\r\n\r\n", "HTTP/1.1 400" },
		{ "CONNECT x:80 HTTP/1.1\r\n" HOST "\r\n", "HTTP/1.1 400" },
	};
	struct fixture *f = fixture_start(NULL);
	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		uint32_t before = atomic_load(&f->requests);
		char *answer = ask(f, cases[i].text, cases[i].want);
		/* One answer, and no handler saw the request. */
		assert_int_equal(count_of(answer, "HTTP/1.1 2") + count_of(answer, "HTTP/1.1 4") +
					 count_of(answer, "HTTP/1.1 5"),
				 1);
		assert_non_null(strstr(answer, "\"error\":{\"message\":\""));
		assert_int_equal(atomic_load(&f->requests), before);
		free(answer);
	}
	fixture_stop(f);
}

static void test_bounds(void **state)
{
	struct http_limits limits = { .header_bytes_max = 4096, .body_bytes_max = 100000,
				      .connections_max = 3 };
	struct fixture *f = fixture_start(&limits);
	struct buf text;
	buf_init(&text, 0);
	buf_append_text(&text, "GET /echo HTTP/1.1\r\n" HOST "X-Big: ");
	for (int i = 0; i < 262144; i++)
		buf_append_text(&text, "a");
	buf_append_text(&text, "\r\n\r\n");
	ask_only(f, text.data, "HTTP/1.1 431");
	buf_clear(&text);
	buf_append_text(&text, "GET /");
	for (int i = 0; i < 5000; i++)
		buf_append_text(&text, "a");
	buf_append_text(&text, " HTTP/1.1\r\n" HOST "\r\n");
	ask_only(f, text.data, "HTTP/1.1 414");
	buf_clear(&text);
	buf_append_text(&text, "GET /echo HTTP/1.1\r\n" HOST);
	for (int i = 0; i < 200; i++)
		buf_append_text(&text, "A: b\r\n");
	buf_append_text(&text, "\r\n");
	ask_only(f, text.data, "HTTP/1.1 431");
	buf_clear(&text);
	buf_append_text(&text, "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n");
	for (int i = 0; i < 200; i++)
		buf_printf(&text, "400\r\n%01024d\r\n", 0);
	ask_only(f, text.data, "HTTP/1.1 413");
	buf_clear(&text);
	buf_append_text(&text, "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n");
	for (int i = 0; i < 200; i++)
		buf_printf(&text, "1;%0100d=1\r\nx\r\n", 0);
	ask_only(f, text.data, "HTTP/1.1 431");
	/* A fourth connection is told so; one that ends makes room. */
	int held[3];
	for (int i = 0; i < 3; i++) {
		held[i] = client(f);
		say(held[i], "GET /echo HTTP/1.1\r\n" HOST "\r\n");
		free(hear(held[i], "\r\n\r\n"));
	}
	ask_only(f, "", "HTTP/1.1 503");
	for (int i = 0; i < 3; i++)
		close(held[i]);
	usleep(300000);
	ask_only(f, "GET /echo HTTP/1.1\r\n" HOST CLOSE "\r\n", "HTTP/1.1 200");
	buf_fini(&text);
	fixture_stop(f);
}

/* Each body is within its bound, together they are not. Buffers double, so two of them hold
 * 1 MiB. */
static void test_bodies_together(void **state)
{
	struct http_limits limits = { .body_bytes_max = 400000, .body_total_max = 1200000 };
	struct fixture *f = fixture_start(&limits);
	struct buf body;
	int fds[4];
	buf_init(&body, 0);
	for (int i = 0; i < 30000; i++)
		buf_append_text(&body, "0123456789");
	for (int i = 0; i < 4; i++) {
		fds[i] = client(f);
		say(fds[i], "POST /echo HTTP/1.1\r\n" HOST CLOSE "Content-Length: 300010\r\n\r\n");
		say(fds[i], body.data);
		usleep(50000);
	}
	char *answer;
	for (int i = 2; i < 4; i++) {
		answer = hear(fds[i], NULL);
		assert_int_equal(strncmp(answer, "HTTP/1.1 503", 12), 0);
		free(answer);
	}
	/* The others are unharmed, and what they give back is there for the next one. */
	for (int i = 0; i < 2; i++) {
		say(fds[i], "0123456789");
		answer = hear(fds[i], NULL);
		assert_int_equal(strncmp(answer, "HTTP/1.1 200", 12), 0);
		free(answer);
	}
	for (int i = 0; i < 4; i++)
		close(fds[i]);
	usleep(100000);
	int fd = client(f);
	say(fd, "POST /echo HTTP/1.1\r\n" HOST CLOSE "Content-Length: 300000\r\n\r\n");
	say(fd, body.data);
	answer = hear(fd, NULL);
	assert_int_equal(strncmp(answer, "HTTP/1.1 200", 12), 0);
	free(answer);
	close(fd);
	buf_fini(&body);
	fixture_stop(f);
}

static void test_pipelined(void **state)
{
	struct fixture *f = fixture_start(NULL);
	/* The first waits; the later ones keep their order behind it. */
	char *answer = ask(f,
			   "GET /later HTTP/1.1\r\n" HOST "\r\n"
			   "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nabc"
			   "\r\nGET /nowhere HTTP/1.1\r\n" HOST CLOSE "\r\n",
			   "HTTP/1.1 200 OK");
	const char *late = strstr(answer, "\r\n\r\nlate"), *abc = strstr(answer, "\r\n\r\nabc"),
		   *none = strstr(answer, "\r\n\r\n/nowhere");
	assert_true(late && abc && none && late < abc && abc < none);
	free(answer);

	enum { COUNT = 5000 };
	struct buf text;
	buf_init(&text, 0);
	for (int i = 0; i < COUNT; i++)
		buf_printf(&text, "GET /echo?%d HTTP/1.1\r\n" HOST "%s\r\n", i,
			   i == COUNT - 1 ? CLOSE : "");
	int fd = client(f);
	pid_t child = fork();
	if (!child) {
		say(fd, text.data); /* in a process of its own: both directions fill up */
		_exit(0);
	}
	answer = hear(fd, NULL);
	assert_int_equal(count_of(answer, "HTTP/1.1 200 OK\r\n"), COUNT);
	assert_non_null(strstr(answer, "X-Query: 4999\r\n"));
	free(answer);
	close(fd);

	/* Byte by byte. */
	fd = client(f);
	const char *slow = "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nabcGET /echo HTTP/1.1\r\n"
			   HOST CLOSE "\r\n";
	for (const char *p = slow; *p; p++) {
		send(fd, p, 1, MSG_NOSIGNAL);
		usleep(200);
	}
	answer = hear(fd, NULL);
	assert_int_equal(count_of(answer, "HTTP/1.1 200 OK\r\n"), 2);
	free(answer);
	close(fd);
	buf_fini(&text);
	fixture_stop(f);
}

static void test_expect(void **state)
{
	struct fixture *f = fixture_start(NULL);
	int fd = client(f);
	say(fd, "POST /echo HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n");
	char *answer = hear(fd, "\r\n\r\n");
	assert_string_equal(answer, "HTTP/1.1 100 Continue\r\n\r\n");
	free(answer);
	say(fd, "hello");
	answer = hear(fd, "hello");
	assert_non_null(strstr(answer, "HTTP/1.1 200 OK\r\n"));
	free(answer);
	close(fd);
	fixture_stop(f);
}

static void wait_gone(struct fixture *f, uint32_t want)
{
	for (int i = 0; i < 50 && atomic_load(&f->gone) != want; i++)
		usleep(10000);
	assert_int_equal(atomic_load(&f->gone), want);
}

static void test_leaving(void **state)
{
	struct fixture *f = fixture_start(NULL);
	/* Half-closed: still answered, with nothing but interim answers before. */
	int fd = client(f);
	say(fd, "GET /later HTTP/1.1\r\n" HOST "\r\n");
	shutdown(fd, SHUT_WR);
	char *answer = hear(fd, NULL);
	assert_non_null(strstr(answer, "HTTP/1.1 200 OK\r\n"));
	assert_non_null(strstr(answer, "late"));
	free(answer);
	close(fd);
	assert_int_equal(atomic_load(&f->gone), 0);
	/* Closed while waiting: noticed long before the answer would have been ready. */
	fd = client(f);
	say(fd, "GET /later HTTP/1.1\r\n" HOST "\r\n");
	usleep(50000);
	close(fd);
	wait_gone(f, 1);
	/* Reset. */
	fd = client(f);
	say(fd, "GET /later HTTP/1.1\r\n" HOST "\r\n");
	usleep(50000);
	struct linger hard = { 1, 0 };
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
	close(fd);
	wait_gone(f, 2);
	/* An HTTP/1.0 peer that closes. */
	fd = client(f);
	say(fd, "GET /later HTTP/1.0\r\n\r\n");
	usleep(50000);
	close(fd);
	wait_gone(f, 3);
	/* In the middle of a stream, unread. */
	fd = client(f);
	say(fd, "GET /flood HTTP/1.1\r\n" HOST "\r\n");
	usleep(100000);
	close(fd);
	wait_gone(f, 4);
	/* A body that ends early. */
	fd = client(f);
	say(fd, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 50\r\n\r\nhello");
	shutdown(fd, SHUT_WR);
	answer = hear(fd, NULL);
	assert_int_equal(strncmp(answer, "HTTP/1.1 400", 12), 0);
	free(answer);
	close(fd);
	/* Pipelined, then half-closed: all are answered. */
	fd = client(f);
	say(fd, "GET /later HTTP/1.1\r\n" HOST "\r\nGET /echo HTTP/1.1\r\n" HOST "\r\n");
	shutdown(fd, SHUT_WR);
	answer = hear(fd, NULL);
	assert_int_equal(count_of(answer, "HTTP/1.1 200 OK\r\n"), 2);
	free(answer);
	close(fd);
	fixture_stop(f);
}

static void test_slow_reader(void **state)
{
	struct fixture *f = fixture_start(NULL);
	int fd = client(f);
	say(fd, "GET /flood HTTP/1.1\r\n" HOST CLOSE "\r\n");
	usleep(200000);
	char *answer = hear(fd, NULL);
	size_t letters = 0;
	for (const char *p = answer; *p; p++)
		letters += *p == 'f';
	/* Chunk sizes are hexadecimal, so a few more. */
	assert_true(letters >= 512 * FLOOD_PIECE);
	free(answer);
	close(fd);
	assert_true(f->flood_queued_max <= 6 * FLOOD_PIECE);
	fixture_stop(f);
}

static void test_deadlines(void **state)
{
	struct http_limits limits = { .header_timeout_ns = 300 * NS_PER_MS,
				      .body_timeout_ns = 300 * NS_PER_MS,
				      .idle_timeout_ns = 300 * NS_PER_MS,
				      .send_timeout_ns = 300 * NS_PER_MS };
	struct fixture *f = fixture_start(&limits);
	ask_only(f, "GET /echo HTTP/1.1\r\nHos", "HTTP/1.1 408");
	ask_only(f, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhe", "HTTP/1.1 408");
	ask_only(f, "", "");
	ask_only(f, "GET /echo HTTP/1.1\r\n" HOST "\r\n", "HTTP/1.1 200"); /* idle: closed */
	/* A header byte now and then does not stretch the deadline. */
	uint64_t begin = clock_now_ns();
	int fd = client(f);
	char *answer = NULL;
	for (int i = 0; i < 20; i++) {
		say(fd, i ? "a" : "GET /");
		usleep(50000);
	}
	answer = hear(fd, NULL);
	assert_int_equal(strncmp(answer, "HTTP/1.1 408", 12), 0);
	free(answer);
	close(fd);
	/* A reader that takes nothing is let go. */
	fd = client(f);
	say(fd, "GET /flood HTTP/1.1\r\n" HOST "\r\n");
	usleep(1000000);
	assert_int_equal(atomic_load(&f->gone), 1);
	close(fd);
	assert_true(clock_now_ns() - begin < 10 * NS_PER_S);
	fixture_stop(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plain),	   cmocka_unit_test(test_refused),
		cmocka_unit_test(test_bounds), cmocka_unit_test(test_bodies_together),	   cmocka_unit_test(test_pipelined),
		cmocka_unit_test(test_expect),	   cmocka_unit_test(test_leaving),
		cmocka_unit_test(test_slow_reader), cmocka_unit_test(test_deadlines),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
