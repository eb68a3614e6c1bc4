/*
 * Processes that die or freeze, strangers, and garbage. The other process is a real one: it is
 * forked while this one has no xfer (and so no second thread), and told what to do over a pipe.
 */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#include "xfer/test_raw.h"

#define SLICE (2 * MIB)
#define SLICES 24
#define SLAB ((uint64_t)SLICES * SLICE)

static enum xfer_transport transport_of(void **state)
{
	return *(enum xfer_transport *)*state;
}

/* ---- the other process ---- */

struct child {
	pid_t pid;
	int to, from; /* pipes */
};

/* What it is told and what it tells. */
struct letter {
	uint8_t address[XFER_ADDRESS_BYTES_MAX];
	size_t address_bytes;
	struct grant grant;
	uint32_t landed, intact, changed;
};

static struct child child_fork(void (*run)(enum xfer_transport transport, int in, int out),
			       enum xfer_transport transport)
{
	int to[2], from[2];
	struct child child;
	assert_int_equal(pipe(to), 0);
	assert_int_equal(pipe(from), 0);
	fflush(NULL);
	child.pid = fork();
	assert_true(child.pid >= 0);
	if (!child.pid) {
		close(to[1]);
		close(from[0]);
		run(transport, to[0], from[1]);
		_exit(0);
	}
	close(to[0]);
	close(from[1]);
	child.to = to[1];
	child.from = from[0];
	return child;
}

static void letter_write(int fd, const struct letter *letter)
{
	CHECK(write(fd, letter, sizeof *letter) == sizeof *letter);
}

static struct letter letter_read(int fd)
{
	struct letter letter = { 0 };
	for (size_t at = 0; at < sizeof letter;) {
		ssize_t count = read(fd, (char *)&letter + at, sizeof letter - at);
		if (count <= 0)
			_exit(9); /* the other process failed first */
		at += count;
	}
	return letter;
}

static void child_end(struct child *child, int signal)
{
	int status;
	if (signal)
		assert_int_equal(kill(child->pid, signal), 0);
	close(child->to);
	close(child->from);
	assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
	if (signal)
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == signal);
	else
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void all_ranges(struct xfer_range ranges[SLICES])
{
	for (uint32_t i = 0; i < SLICES; i++)
		ranges[i] = (struct xfer_range){ (uint64_t)i * SLICE, SLICE };
}

static int send_all(struct xfer_peer *peer, const struct grant *grant)
{
	struct xfer_slice slices[SLICES];
	for (uint32_t i = 0; i < SLICES; i++)
		slices[i] = (struct xfer_slice){ i, (uint64_t)i * SLICE, SLICE, 0 };
	return xfer_send(peer, grant->ticket, grant->ticket_bytes, slices, SLICES, 1);
}

/* Sends everything against a ticket that comes in a letter, then waits to be ended. */
static void sender_run(enum xfer_transport transport, int in, int out)
{
	struct end *end = end_new(end_config(transport), SLAB);
	struct xfer_peer *peer;
	fill_random(end->slab.base, SLAB, 42);
	struct letter letter = letter_read(in);
	CHECK(!xfer_peer_ref(end->xfer, letter.address, letter.address_bytes, &peer));
	CHECK(!send_all(peer, &letter.grant));
	for (;;)
		(void)ends_wait(end, NULL, XFER_SENT, UINT32_MAX, 1000);
}

/*
 * Grants everything and says so; on the next letter (it may have slept meanwhile) revokes, takes
 * the ranges back, fills them, and looks whether they stay. What landed must be what was sent.
 */
static void receiver_run(enum xfer_transport transport, int in, int out)
{
	struct xfer_config config = end_config(transport);
	struct xfer_range ranges[SLICES];
	struct letter letter = { 0 };

	config.faults.delay_us = 20000;
	struct end *end = end_new(config, SLAB);
	uint8_t *sent = malloc(SLAB);
	fill_random(sent, SLAB, 42);
	all_ranges(ranges);
	letter.grant = end_expect(end, ranges, SLICES, 1);
	letter.address_bytes = xfer_address(end->xfer, letter.address);
	letter_write(out, &letter);
	while (!end_count(end, XFER_LANDED))
		(void)ends_wait(end, NULL, XFER_LANDED, 1, 1000);
	letter_write(out, &letter);
	(void)letter_read(in);
	(void)ends_wait(end, NULL, XFER_LANDED_ALL, 1, 200);
	xfer_revoke(end->xfer, letter.grant.id);
	while (!end_count(end, XFER_REVOKED) && !end_count(end, XFER_LANDED_ALL))
		(void)ends_wait(end, NULL, XFER_REVOKED, 1, 100);
	for (uint32_t i = 0; i < end->event_count; i++) {
		uint64_t at = (uint64_t)end->events[i].index * SLICE;
		if (end->events[i].kind != XFER_LANDED)
			continue;
		letter.landed++;
		letter.intact += !memcmp(sent + at, (char *)end->slab.base + at, SLICE);
	}
	memset(end->slab.base, 0x77, SLAB);
	wait_ms(300);
	for (uint64_t i = 0; i < SLAB; i++)
		letter.changed += ((uint8_t *)end->slab.base)[i] != 0x77;
	letter_write(out, &letter);
	(void)letter_read(in); /* never comes: the end of the pipe */
}

/* ---- tests with another process ---- */

static void test_sender_killed(void **state)
{
	struct child child = child_fork(sender_run, transport_of(state));
	struct xfer_config config = end_config(transport_of(state));
	struct xfer_range ranges[SLICES];
	struct letter letter = { 0 };

	config.faults.delay_us = 20000; /* so that it dies with a slice under way */
	struct end *end = end_new(config, SLAB);
	all_ranges(ranges);
	letter.grant = end_expect(end, ranges, SLICES, 5);
	letter.address_bytes = xfer_address(end->xfer, letter.address);
	letter_write(child.to, &letter);
	assert_true(ends_wait(end, NULL, XFER_LANDED, 2, 5000));
	child_end(&child, SIGKILL);
	assert_true(ends_wait(end, NULL, XFER_BROKEN, 1, 2000));
	/* The expect stays open, until it is taken back; after that nothing comes. */
	assert_true(end_count(end, XFER_LANDED) < SLICES);
	xfer_revoke(end->xfer, letter.grant.id);
	assert_true(ends_wait(end, NULL, XFER_REVOKED, 1, 1000));
	wait_ms(100);
	end_drain(end);
	assert_int_equal(end->events[end->event_count - 1].kind, XFER_REVOKED);
	for (uint32_t i = 0; i < end->event_count; i++)
		assert_int_equal(end->events[i].user, 5);
	end_free(end);
}

static void test_receiver_killed(void **state)
{
	struct child child = child_fork(receiver_run, transport_of(state));
	struct letter letter = letter_read(child.from);
	struct end *end = end_new(end_config(transport_of(state)), SLAB);
	struct xfer_peer *peer;

	fill_random(end->slab.base, SLAB, 42);
	assert_int_equal(xfer_peer_ref(end->xfer, letter.address, letter.address_bytes, &peer), 0);
	assert_int_equal(send_all(peer, &letter.grant), 0);
	assert_true(ends_wait(end, NULL, XFER_SENT, 1, 5000));
	child_end(&child, SIGKILL);
	assert_true(ends_wait(end, NULL, XFER_SENT, SLICES, 5000));
	wait_ms(100);
	end_drain(end);
	assert_int_equal(end_count(end, XFER_SENT), SLICES); /* X3: once each */
	uint32_t lost = end_count_status(end, -ECONNRESET) + end_count_status(end, -ECONNREFUSED);
	assert_true(lost > 0);
	assert_int_equal(lost + end_count_status(end, 0), SLICES);
	xfer_peer_unref(peer);
	end_free(end);
}

/*
 * The receiver freezes with a slice under way; the sender gives up and reuses its memory; the
 * receiver thaws. Nothing of the new contents may be reported landed, nothing may be written once
 * the receiver has taken its ranges back, and the sender's memory is its own.
 */
static void test_receiver_frozen(void **state)
{
	struct child child = child_fork(receiver_run, transport_of(state));
	struct letter letter = letter_read(child.from);
	struct xfer_config config = end_config(transport_of(state));
	struct xfer_peer *peer;

	config.stall_ms = 500;
	config.handshake_ms = 500;
	struct end *end = end_new(config, SLAB);
	fill_random(end->slab.base, SLAB, 42);
	assert_int_equal(xfer_peer_ref(end->xfer, letter.address, letter.address_bytes, &peer), 0);
	assert_int_equal(send_all(peer, &letter.grant), 0);
	(void)letter_read(child.from); /* the first has landed */
	assert_int_equal(kill(child.pid, SIGSTOP), 0);
	assert_true(ends_wait(end, NULL, XFER_SENT, SLICES, 5000));
	assert_true(end_count_status(end, -ETIMEDOUT) > 0);
	assert_int_equal(end_count_status(end, -ETIMEDOUT) + end_count_status(end, 0), SLICES);

	fill_random(end->slab.base, SLAB, 43);
	uint8_t *copy = malloc(SLAB);
	memcpy(copy, end->slab.base, SLAB);
	assert_int_equal(kill(child.pid, SIGCONT), 0);
	letter_write(child.to, &letter);
	letter = letter_read(child.from);
	assert_true(letter.landed > 0);
	assert_true(letter.landed < SLICES);
	assert_int_equal(letter.intact, letter.landed);
	assert_int_equal(letter.changed, 0);
	assert_memory_equal(copy, end->slab.base, SLAB);
	free(copy);
	close(child.to);
	child.to = -1;
	int status;
	waitpid(child.pid, &status, 0); /* leaves at the end of its pipe */
	close(child.from);
	xfer_peer_unref(peer);
	end_free(end);
}

/* ---- strangers ---- */

static void test_wrong_key(void **state)
{
	struct xfer_config config = end_config(transport_of(state));
	struct end *target = end_new(config, SLICE);
	const struct xfer_range range = { 0, SLICE };
	const struct xfer_slice slice = { 0, 0, SLICE, 0 };
	struct grant grant = end_expect(target, &range, 1, 1);
	struct xfer_stats stats;

	config.cluster_key[31] ^= 1;
	struct end *source = end_new(config, SLICE);
	struct xfer_peer *peer = end_peer(source, target);
	memset(source->slab.base, 1, SLICE);
	assert_int_equal(xfer_send(peer, grant.ticket, grant.ticket_bytes, &slice, 1, 1), 0);
	assert_true(ends_wait(source, target, XFER_SENT, 1, 5000));
	assert_int_equal(source->events[0].status, -ECONNRESET);
	xfer_stats(target->xfer, &stats);
	assert_int_equal(stats.refused, 1);
	assert_int_equal(stats.connects, 0);
	assert_int_equal(((uint8_t *)target->slab.base)[0], 0);
	xfer_peer_unref(peer);
	end_free(source);
	end_free(target);
}

/* An address of a former life, whose port another process has now. */
static void test_other_instance(void **state)
{
	struct end *source = end_new(end_config(XFER_TCP), SLICE);
	struct end *target = end_new(end_config(XFER_TCP), SLICE);
	struct wire_address address = raw_address(target);
	uint8_t packed[XFER_ADDRESS_BYTES_MAX];
	const struct xfer_range range = { 0, SLICE };
	const struct xfer_slice slice = { 0, 0, SLICE, 0 };
	struct grant grant = end_expect(target, &range, 1, 1);
	struct xfer_peer *peer;

	address.instance ^= 1;
	size_t bytes = wire_pack_address(&address, packed);
	assert_int_equal(xfer_peer_ref(source->xfer, packed, bytes, &peer), 0);
	assert_int_equal(xfer_send(peer, grant.ticket, grant.ticket_bytes, &slice, 1, 1), 0);
	assert_true(ends_wait(source, target, XFER_SENT, 1, 5000));
	assert_int_equal(source->events[0].status, -ECONNRESET);
	xfer_peer_unref(peer);
	end_free(source);
	end_free(target);
}

static void test_garbage(void **state)
{
	struct xfer_config config = end_config(XFER_TCP);
	uint8_t garbage[4096];
	struct xfer_stats stats;

	config.handshake_ms = 300;
	struct end *end = end_new(config, MIB);
	fill_random(garbage, sizeof garbage, 6);

	int fd = raw_connect(end); /* instead of a proof */
	raw_write(fd, garbage, sizeof garbage);
	raw_expect_closed(fd);
	fd = raw_connect(end); /* a stranger who says nothing */
	uint64_t began = clock_now_ns();
	raw_expect_closed(fd);
	assert_true(clock_now_ns() - began < 2 * NS_PER_S);
	fd = raw_handshake(end, config.cluster_key); /* one who knows the key, and then babbles */
	raw_write(fd, garbage, sizeof garbage);
	raw_expect_closed(fd);
	fd = raw_handshake(end, config.cluster_key); /* a slice without its payload: shm's */
	struct wire_slice slice = { .bytes = PAGE };
	raw_write_head(fd, &slice);
	raw_expect_closed(fd);
	xfer_stats(end->xfer, &stats);
	assert_int_equal(stats.refused, 3);
	end_free(end);
}

/* Silent strangers cannot keep the others out. */
static void test_many_strangers(void **state)
{
	enum { STRANGERS = 200 };
	struct end *source = end_new(end_config(XFER_TCP), SLICE);
	struct end *target = end_new(end_config(XFER_TCP), SLICE);
	struct xfer_peer *peer = end_peer(source, target);
	const struct xfer_range range = { 0, SLICE };
	const struct xfer_slice slice = { 0, 0, SLICE, 0 };
	struct grant grant = end_expect(target, &range, 1, 1);
	int fds[STRANGERS];

	for (int i = 0; i < STRANGERS; i++)
		fds[i] = raw_connect(target);
	assert_int_equal(xfer_send(peer, grant.ticket, grant.ticket_bytes, &slice, 1, 1), 0);
	assert_true(ends_wait(source, target, XFER_SENT, 1, 3000));
	assert_int_equal(source->events[0].status, 0);
	for (int i = 0; i < STRANGERS; i++)
		close(fds[i]);
	xfer_peer_unref(peer);
	end_free(source);
	end_free(target);
}

/* A sender that stops in the middle of a slice: noticed after stall_ms, and the expect lives on. */
static void test_stalled_slice(void **state)
{
	struct xfer_config config = end_config(XFER_TCP);
	const struct xfer_range range = { 0, SLICE };
	uint8_t *payload = malloc(SLICE), sum[WIRE_SUM_BYTES];

	config.stall_ms = 300;
	struct end *end = end_new(config, SLICE);
	struct grant grant = end_expect(end, &range, 1, 5);
	fill_random(payload, SLICE, 8);
	wire_pack_u64(hash_slice(payload, SLICE), sum);
	int fd = raw_handshake(end, config.cluster_key);
	struct wire_slice slice = raw_slice(&grant, 0, 0, SLICE);
	raw_write_head(fd, &slice);
	raw_write(fd, payload, SLICE / 2);
	assert_true(ends_wait(end, NULL, XFER_BROKEN, 1, 2000));
	assert_int_equal(end->events[0].user, 5);
	assert_int_equal(end->events[0].bytes, SLICE);
	raw_expect_closed(fd);

	fd = raw_handshake(end, config.cluster_key);
	raw_write_head(fd, &slice);
	raw_write(fd, payload, SLICE);
	raw_write(fd, sum, sizeof sum);
	assert_int_equal(raw_read_ack(fd, 0), 0);
	assert_true(ends_wait(end, NULL, XFER_LANDED_ALL, 1, 1000));
	assert_memory_equal(payload, end->slab.base, SLICE);
	close(fd);
	free(payload);
	end_free(end);
}

/* A resend over a new connection while the old one is only half dead: the newer wins the range. */
static void test_newer_slice_wins(void **state)
{
	struct xfer_config config = end_config(XFER_TCP);
	const struct xfer_range range = { 0, SLICE };
	uint8_t *payload = malloc(SLICE), *late = malloc(SLICE), sum[WIRE_SUM_BYTES];
	struct end *end = end_new(config, SLICE);
	struct grant grant = end_expect(end, &range, 1, 5);

	fill_random(payload, SLICE, 8);
	memset(late, 0xee, SLICE);
	wire_pack_u64(hash_slice(payload, SLICE), sum);
	int old = raw_handshake(end, config.cluster_key), new = raw_handshake(end, config.cluster_key);
	struct wire_slice slice = raw_slice(&grant, 0, 0, SLICE);
	raw_write_head(old, &slice);
	raw_write(old, late, SLICE / 2);
	end_await_byte(end, SLICE / 2 - 1, 0xee);
	raw_write_head(new, &slice);
	raw_write(new, payload, SLICE);
	raw_write(new, sum, sizeof sum);
	assert_int_equal(raw_read_ack(new, 0), 0);
	raw_write(old, late, SLICE / 2);
	raw_write(old, sum, sizeof sum);
	assert_int_equal(raw_read_ack(old, 0), BATON_EREVOKED);
	assert_true(ends_wait(end, NULL, XFER_LANDED_ALL, 1, 1000));
	assert_memory_equal(payload, end->slab.base, SLICE);
	close(old);
	close(new);
	free(payload);
	free(late);
	end_free(end);
}

static enum xfer_transport shm = XFER_SHM, tcp = XFER_TCP;

#define OVER_EACH(test)                                                                          \
	{ #test " shm", test, NULL, NULL, &shm }, { #test " tcp", test, NULL, NULL, &tcp }

int main(void)
{
	const struct CMUnitTest tests[] = {
		OVER_EACH(test_sender_killed),
		OVER_EACH(test_receiver_killed),
		OVER_EACH(test_receiver_frozen),
		OVER_EACH(test_wrong_key),
		cmocka_unit_test(test_other_instance),
		cmocka_unit_test(test_garbage),
		cmocka_unit_test(test_many_strangers),
		cmocka_unit_test(test_stalled_slice),
		cmocka_unit_test(test_newer_slice_wins),
	};
	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
