/* A connector written out by hand, for what a well-behaved xfer never does: stall, lie, babble. */
#ifndef BATON_XFER_TEST_RAW_H
#define BATON_XFER_TEST_RAW_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "xfer/test_support.h"
#include "xfer/xfer_wire.h"

static inline struct wire_address raw_address(const struct end *end)
{
	uint8_t packed[XFER_ADDRESS_BYTES_MAX];
	struct wire_address address;
	size_t bytes = xfer_address(end->xfer, packed);
	assert_int_equal(wire_unpack_address(packed, bytes, &address), 0);
	return address;
}

static inline int raw_connect(const struct end *end)
{
	struct wire_address address = raw_address(end);
	struct sockaddr_in target = { .sin_family = AF_INET, .sin_port = htons(address.port) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	const struct timeval limit = { 5, 0 };

	assert_true(fd >= 0);
	assert_int_equal(inet_pton(AF_INET, address.host, &target.sin_addr), 1);
	assert_int_equal(connect(fd, (struct sockaddr *)&target, sizeof target), 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
	return fd;
}

static inline void raw_write(int fd, const void *data, size_t bytes)
{
	for (size_t at = 0; at < bytes;) {
		ssize_t count = send(fd, (const char *)data + at, bytes - at, MSG_NOSIGNAL);
		assert_true(count > 0);
		at += count;
	}
}

/* Return: true when all came, false at the end of the connection. Fails when it takes too long. */
static inline bool raw_read(int fd, void *data, size_t bytes)
{
	for (size_t at = 0; at < bytes;) {
		ssize_t count = recv(fd, (char *)data + at, bytes - at, 0);
		if (count == 0 || (count < 0 && errno == ECONNRESET))
			return false;
		assert_true(count > 0);
		at += count;
	}
	return true;
}

static inline void raw_expect_closed(int fd)
{
	uint8_t bytes[256];
	while (raw_read(fd, bytes, 1))
		;
	close(fd);
}

static inline int raw_handshake(const struct end *end, const uint8_t key[32])
{
	uint8_t greeting[WIRE_GREETING_BYTES], proof[WIRE_PROOF_BYTES], confirm[WIRE_CONFIRM_BYTES];
	const uint8_t nonce[32] = { 9 };
	struct wire_address address = raw_address(end);
	int fd = raw_connect(end);

	assert_true(raw_read(fd, greeting, sizeof greeting));
	assert_int_equal(wire_check_greeting(greeting), 0);
	wire_pack_proof(key, "tcp", greeting, 4711, address.instance, nonce, proof);
	raw_write(fd, proof, sizeof proof);
	assert_true(raw_read(fd, confirm, sizeof confirm));
	assert_int_equal(wire_check_confirm(key, "tcp", greeting, proof, confirm), 0);
	return fd;
}

static inline struct wire_slice raw_slice(const struct grant *grant, uint64_t sequence,
					  uint32_t index, uint32_t bytes)
{
	struct wire_slice slice = { .inline_payload = true, .sequence = sequence, .index = index,
				    .bytes = bytes };
	assert_int_equal(wire_unpack_ticket(grant->ticket, grant->ticket_bytes, &slice.ticket), 0);
	return slice;
}

static inline void raw_write_head(int fd, const struct wire_slice *slice)
{
	uint8_t head[WIRE_SLICE_BYTES];
	wire_pack_slice(slice, head);
	raw_write(fd, head, sizeof head);
}

static inline int raw_read_ack(int fd, uint64_t sequence)
{
	uint8_t ack[WIRE_ACK_BYTES];
	uint64_t acked;
	int status;
	assert_true(raw_read(fd, ack, sizeof ack));
	assert_int_equal(wire_unpack_ack(ack, &acked, &status), 0);
	assert_int_equal(acked, sequence);
	return status;
}

#endif
