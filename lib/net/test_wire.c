/* Real connections on loopback: proof, frames both ways, bounds, and what a stranger gets. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/hash.h"
#include "net/wire.h"
#include "proto/frame.h"

struct side {
	struct wire_conn *conn;
	bool ready, closed;
	int reason;
	uint32_t frames;
	uint64_t sum;
	bool echo, hang_up;
};

static struct side accepted, dialled;
static uv_loop_t loop;
static struct wire_listener *listener;
static uint16_t port;
static const struct wire_key key = { "the cluster key of this test ..." };
static const struct wire_key other_key = { "another key, which does not fit." };

static void on_ready(struct wire_conn *conn, void *context)
{
	((struct side *)context)->ready = true;
}

static int on_frame(struct wire_conn *conn, uint16_t type, const uint8_t *body, uint32_t bytes, void *context)
{
	struct side *side = context;
	side->frames++;
	side->sum = side->sum * 31 + type + bytes + (bytes ? body[bytes - 1] : 0);
	if (side->hang_up)
		wire_close(conn, -EPIPE);
	return side->echo ? wire_send(conn, type, body, bytes) : type == 666 ? BATON_EPROTOCOL : 0;
}

static void on_close(struct wire_conn *conn, int reason, void *context)
{
	struct side *side = context;
	side->closed = true;
	side->reason = reason;
	side->conn = NULL;
}

static const struct wire_callbacks callbacks = { on_ready, on_frame, on_close };

static void *on_accept(struct wire_conn *conn, void *context)
{
	accepted.conn = conn;
	return &accepted;
}

static void run_until(bool *flag)
{
	for (int i = 0; i < 20000 && !*flag; i++)
		uv_run(&loop, UV_RUN_ONCE);
	assert_true(*flag);
}

static int setup(void **state)
{
	memset(&accepted, 0, sizeof accepted);
	memset(&dialled, 0, sizeof dialled);
	uv_loop_init(&loop);
	assert_int_equal(wire_listen(&loop, "127.0.0.1", 0, &key, &callbacks, on_accept, NULL, &listener, &port), 0);
	return 0;
}

static int teardown(void **state)
{
	wire_listener_close(listener);
	if (accepted.conn)
		wire_close(accepted.conn, 0);
	if (dialled.conn)
		wire_close(dialled.conn, 0);
	uv_run(&loop, UV_RUN_DEFAULT);
	return uv_loop_close(&loop); /* UV_EBUSY when a handle leaked */
}

static void dial(const struct wire_key *with)
{
	assert_int_equal(wire_connect(&loop, "127.0.0.1", port, NULL, with, &callbacks, &dialled, &dialled.conn), 0);
}

static void test_frames_both_ways(void **state)
{
	accepted.echo = true;
	dial(&key);
	assert_int_equal(wire_send(dialled.conn, 1, "x", 1), -ENOTCONN);
	run_until(&dialled.ready);
	uint8_t *body = malloc(FRAME_BODY_BYTES_MAX);
	for (uint32_t i = 0; i < FRAME_BODY_BYTES_MAX; i++)
		body[i] = (uint8_t)(i * 7);
	static const uint32_t sizes[] = { 0, 1, 7, 65536, FRAME_BODY_BYTES_MAX, 3 };
	uint64_t sum = 0;
	for (uint32_t i = 0; i < 6; i++) {
		assert_int_equal(wire_send(dialled.conn, (uint16_t)(i + 1), body, sizes[i]), 0);
		sum = sum * 31 + i + 1 + sizes[i] + (sizes[i] ? body[sizes[i] - 1] : 0);
	}
	while (dialled.frames < 6)
		uv_run(&loop, UV_RUN_ONCE);
	assert_int_equal(dialled.sum, sum);
	assert_int_equal(accepted.sum, sum);
	free(body);
}

static void test_wrong_key(void **state)
{
	dial(&other_key);
	run_until(&dialled.closed);
	assert_int_equal(dialled.reason, BATON_EAUTH);
	run_until(&accepted.closed);
	assert_int_equal(accepted.reason, BATON_EAUTH);
	assert_false(dialled.ready || accepted.ready);
}

static void test_nobody_listens(void **state)
{
	uint16_t listening = port;
	port = 1; /* tcpmux: nobody */
	dial(&key);
	run_until(&dialled.closed);
	assert_int_equal(dialled.reason, -ECONNREFUSED);
	port = listening;
}

static void test_bad_frame_closes(void **state)
{
	dial(&key);
	run_until(&dialled.ready);
	assert_int_equal(wire_send(dialled.conn, 666, "?", 1), 0);
	run_until(&accepted.closed);
	assert_int_equal(accepted.reason, BATON_EPROTOCOL);
	run_until(&dialled.closed);
	assert_int_equal(dialled.reason, -ECONNRESET);
}

static void test_close_in_callback(void **state)
{
	accepted.hang_up = true;
	dial(&key);
	run_until(&dialled.ready);
	for (int i = 0; i < 3; i++)
		assert_int_equal(wire_send(dialled.conn, 1, "abc", 3), 0);
	run_until(&accepted.closed);
	assert_int_equal(accepted.frames, 1);
}

/* A peer that does not read costs a bounded queue, then -EAGAIN, and nobody else. */
static void test_queue_bound(void **state)
{
	static uint8_t body[FRAME_BODY_BYTES_MAX];
	int status = 0, sent = 0;
	dial(&key);
	run_until(&dialled.ready);
	while (!(status = wire_send(dialled.conn, 1, body, sizeof body)) && sent < 1000)
		sent++;
	assert_int_equal(status, -EAGAIN);
	assert_true(wire_queued_bytes(dialled.conn) <= 64u << 20);
	while (accepted.frames < (uint32_t)sent)
		uv_run(&loop, UV_RUN_ONCE);
	assert_int_equal(wire_send(dialled.conn, 1, body, sizeof body), 0);
}

struct stranger {
	uv_tcp_t tcp;
	uv_connect_t connect;
	bool closed;
	const char *bytes;
	size_t count;
};

static void stranger_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
	static char room[4096];
	*buf = uv_buf_init(room, sizeof room);
}

static void stranger_on_read(uv_stream_t *stream, ssize_t bytes, const uv_buf_t *buf)
{
	struct stranger *stranger = stream->data;
	if (bytes < 0 && !stranger->closed) {
		stranger->closed = true;
		uv_close((uv_handle_t *)stream, NULL);
	}
}

static void stranger_on_connect(uv_connect_t *request, int status)
{
	struct stranger *stranger = request->data;
	assert_int_equal(status, 0);
	uv_buf_t buf = uv_buf_init((char *)stranger->bytes, (unsigned)stranger->count);
	assert_int_equal(uv_try_write((uv_stream_t *)&stranger->tcp, &buf, 1), (int)stranger->count);
	uv_read_start((uv_stream_t *)&stranger->tcp, stranger_alloc, stranger_on_read);
}

static void test_garbage_is_refused(void **state)
{
	static char garbage[4096];
	struct sockaddr_in address;
	struct stranger stranger = { .bytes = garbage, .count = sizeof garbage };
	memset(garbage, 0x5a, sizeof garbage);
	uv_tcp_init(&loop, &stranger.tcp);
	stranger.tcp.data = stranger.connect.data = &stranger;
	uv_ip4_addr("127.0.0.1", port, &address);
	uv_tcp_connect(&stranger.connect, &stranger.tcp, (struct sockaddr *)&address, stranger_on_connect);
	run_until(&stranger.closed);
	run_until(&accepted.closed);
	assert_int_equal(accepted.reason, BATON_EAUTH);
	assert_int_equal(accepted.frames, 0);
}

/* Connections that say nothing are held in a small number and keep nobody out. */
static void test_silent_strangers(void **state)
{
	struct sockaddr_in address;
	int strangers[300];
	uv_ip4_addr("127.0.0.1", port, &address);
	for (size_t i = 0; i < 300; i++) {
		strangers[i] = socket(AF_INET, SOCK_STREAM, 0);
		assert_int_equal(connect(strangers[i], (struct sockaddr *)&address, sizeof address), 0);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	dial(&key);
	run_until(&dialled.ready);
	assert_false(dialled.closed);
	for (size_t i = 0; i < 300; i++)
		close(strangers[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_frames_both_ways, setup, teardown),
		cmocka_unit_test_setup_teardown(test_wrong_key, setup, teardown),
		cmocka_unit_test_setup_teardown(test_nobody_listens, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bad_frame_closes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_close_in_callback, setup, teardown),
		cmocka_unit_test_setup_teardown(test_queue_bound, setup, teardown),
		cmocka_unit_test_setup_teardown(test_garbage_is_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_silent_strangers, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
