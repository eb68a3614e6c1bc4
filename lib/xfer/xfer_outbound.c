/*
 * Sending, at the connector's end of an open connection. Slices are put into batches (headers,
 * payload, sums as one scatter list), a batch is written whole, then comes the next. A slice that
 * comes without a sum is hashed piece by piece as it enters the batch, so that the following
 * sendmsg() finds it in the cache.
 *
 * X2: bytes that sendmsg() took lie in the socket. An operation ends with its ack, which counts
 * only after its last byte was written (end_at), or with the connection, whose socket is closed
 * first. Over shm the receiver reads until it acks. One that was frozen meanwhile keeps its
 * mapping when the connection ends and may still read the old place afterwards: it only reads,
 * it writes into a range that it has not reported, and what it read must match the old sum to be
 * reported. So the owner of the memory may reuse it; the worst outcome is a slice reported
 * corrupt, or one reported landed that did land.
 */
#include "xfer/xfer_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/hash.h"

int xfer__outbound_init(struct xfer__conn *conn)
{
	struct xfer__outbound *out = calloc(1, sizeof *out);
	if (!out)
		return -ENOMEM;
	list_init(&out->in_flight);
	out->leaf_sums = malloc(XFER_LEAVES_MAX * sizeof *out->leaf_sums);
	if (conn->xfer->config.faults.flip_every)
		out->flipped = malloc(HASH_LEAF_BYTES);
	if (!out->leaf_sums || (conn->xfer->config.faults.flip_every && !out->flipped)) {
		free(out->leaf_sums);
		free(out->flipped);
		free(out);
		return -ENOMEM;
	}
	conn->out = out;
	return 0;
}

void xfer__outbound_fini(struct xfer__conn *conn, int error)
{
	struct xfer__outbound *out = conn->out;

	if (!out)
		return;
	list_for_each_safe(link, after, &out->in_flight)
		xfer__operation_end(conn->xfer, list_entry(link, struct xfer__operation, link), error);
	free(out->leaf_sums);
	free(out->flipped);
	free(out);
	conn->out = NULL;
}

/* ---- batches ---- */

static void batch_add(struct xfer__outbound *out, const void *data, size_t bytes)
{
	CHECK(out->iov_count < ARRAY_COUNT(out->iov));
	out->iov[out->iov_count++] = (struct iovec){ (void *)data, bytes };
	out->batched_at += bytes;
}

static const uint8_t *operation_data(const struct xfer *xfer, const struct xfer__operation *op)
{
	return (const uint8_t *)xfer->config.slab.base + op->slice.offset;
}

static bool fault_due(const struct xfer *xfer, uint32_t every)
{
	return every && xfer->fault_sent % every == 0;
}

static bool cut_due(const struct xfer__outbound *out)
{
	return out->cut && out->at >= out->cut_at;
}

/* Takes the next operation from the peer's queue. */
static bool next_operation(struct xfer__conn *conn)
{
	struct xfer__outbound *out = conn->out;
	const struct xfer_faults *faults = &conn->xfer->config.faults;

	if (list_empty(&conn->peer->queue) || out->in_flight_count == XFER_IN_FLIGHT_MAX ||
	    cut_due(out))
		return false;
	struct xfer__operation *op =
		list_entry(conn->peer->queue.next, struct xfer__operation, link);
	list_remove(&op->link);
	list_push_back(&out->in_flight, &op->link);
	if (!out->in_flight_count++)
		conn->progress_ns = conn->xfer->now_ns; /* it was idle before */
	op->sequence = out->next_sequence++;
	op->end_at = UINT64_MAX;
	out->current = op;
	out->at = 0;
	conn->xfer->fault_sent++;
	out->flip = fault_due(conn->xfer, faults->flip_every);
	out->cut = fault_due(conn->xfer, faults->drop_every);
	out->cut_at = op->slice.bytes / 2 / HASH_LEAF_BYTES * HASH_LEAF_BYTES;
	return true;
}

static void add_head(struct xfer__conn *conn, bool inline_payload, uint64_t sum)
{
	struct xfer__outbound *out = conn->out;
	const struct xfer__operation *op = out->current;
	const struct wire_slice slice = {
		.inline_payload = inline_payload,
		.sequence = op->sequence,
		.ticket = op->ticket,
		.index = op->slice.index,
		.bytes = op->slice.bytes,
		.offset = inline_payload ? 0 : op->slice.offset,
		.sum = sum,
	};
	wire_pack_slice(&slice, out->heads[out->part_count]);
	batch_add(out, out->heads[out->part_count++], WIRE_SLICE_BYTES);
}

static void current_done(struct xfer__outbound *out)
{
	out->current->end_at = out->batched_at;
	out->current = NULL;
}

static void hash_piece(struct xfer__conn *conn, uint32_t end)
{
	struct xfer__outbound *out = conn->out;
	const uint8_t *data = operation_data(conn->xfer, out->current);

	for (uint32_t at = out->at; at < end; at += HASH_LEAF_BYTES) {
		/* The next leaf is fetched meanwhile: a fifth less time on cold memory. A prefetch past
		 * the end of the slab faults nothing. */
		for (uint32_t line = 0; line < HASH_LEAF_BYTES; line += 64)
			__builtin_prefetch(data + at + HASH_LEAF_BYTES + line, 0, 2);
		out->leaf_sums[at / HASH_LEAF_BYTES] = hash_leaf(data + at);
	}
}

static uint64_t current_sum(const struct xfer__outbound *out)
{
	if (out->current->slice.sum)
		return out->current->slice.sum;
	return hash_leaves(out->leaf_sums, hash_leaf_count(out->current->slice.bytes));
}

/* The next piece of the current operation's payload, at most @room bytes. Return: bytes. */
static uint32_t add_payload(struct xfer__conn *conn, uint32_t room)
{
	struct xfer__outbound *out = conn->out;
	const struct xfer__operation *op = out->current;
	const uint8_t *data = operation_data(conn->xfer, op);
	uint32_t begin = out->at, end = begin + MIN(op->slice.bytes - begin, room);

	if (out->cut)
		end = MIN(end, out->cut_at);
	if (!op->slice.sum)
		hash_piece(conn, end);
	if (begin == 0 && out->flip) {
		memcpy(out->flipped, data, HASH_LEAF_BYTES);
		out->flipped[conn->xfer->fault_sent % HASH_LEAF_BYTES] ^= 0x10;
		batch_add(out, out->flipped, HASH_LEAF_BYTES);
		begin = HASH_LEAF_BYTES;
	}
	if (begin < end)
		batch_add(out, data + begin, end - begin);
	room = end - out->at;
	out->at = end;
	return room;
}

/* tcp: payload and sum follow the header. */
static void fill_inline(struct xfer__conn *conn)
{
	struct xfer__outbound *out = conn->out;
	uint32_t room = XFER_CHUNK_BYTES;

	while (room >= HASH_LEAF_BYTES && !cut_due(out)) {
		if (!out->current) {
			if (out->part_count == OUTBOUND_PARTS_MAX || !next_operation(conn))
				return;
			add_head(conn, true, 0);
		}
		room -= add_payload(conn, room);
		if (out->at < out->current->slice.bytes)
			continue;
		wire_pack_u64(current_sum(out), out->sums[out->sum_count]);
		batch_add(out, out->sums[out->sum_count++], WIRE_SUM_BYTES);
		current_done(out);
		if (out->flip)
			return; /* there is one buffer for a flipped leaf */
	}
}

/* shm: the header says where the payload lies; it must know the sum. */
static void fill_announcements(struct xfer__conn *conn)
{
	struct xfer__outbound *out = conn->out;
	uint32_t room = XFER_TURN_BYTES;

	while (room >= HASH_LEAF_BYTES && out->part_count < OUTBOUND_PARTS_MAX) {
		if (!out->current && !next_operation(conn))
			return;
		const struct xfer__operation *op = out->current;
		if (!op->slice.sum) {
			uint32_t end = out->at + MIN(op->slice.bytes - out->at, room);
			hash_piece(conn, end);
			room -= end - out->at;
			out->at = end;
			if (end < op->slice.bytes)
				return;
		}
		add_head(conn, false, current_sum(out) ^ (out->flip ? 0x10 : 0));
		out->at = op->slice.bytes;
		current_done(out);
	}
}

static int batch_write(struct xfer__conn *conn, uint64_t now_ns)
{
	struct xfer__outbound *out = conn->out;
	struct msghdr message = { .msg_iov = out->iov + out->iov_at,
				  .msg_iovlen = out->iov_count - out->iov_at };
	ssize_t count = sendmsg(conn->source.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);

	if (count < 0)
		return errno == EINTR ? 0 : -errno;
	conn->progress_ns = now_ns;
	out->written_at += count;
	size_t left = count;
	while (left) {
		struct iovec *iov = &out->iov[out->iov_at];
		size_t taken = MIN(left, iov->iov_len);
		iov->iov_base = (char *)iov->iov_base + taken;
		iov->iov_len -= taken;
		left -= taken;
		if (!iov->iov_len)
			out->iov_at++;
	}
	return (int)count;
}

int xfer__outbound_write(struct xfer__conn *conn, uint64_t now_ns)
{
	struct xfer__outbound *out = conn->out;

	for (uint32_t moved = 0; moved < XFER_TURN_BYTES;) {
		if (out->iov_at == out->iov_count) {
			if (cut_due(out))
				return -ECONNRESET; /* the injected fault */
			out->iov_at = out->iov_count = out->part_count = out->sum_count = 0;
			if (conn->ops->pull)
				fill_announcements(conn);
			else
				fill_inline(conn);
			if (!out->iov_count) {
				/* Hashing goes on in the next turn. */
				if (out->current)
					xfer__conn_ready_later(conn);
				return 0;
			}
		}
		int count = batch_write(conn, now_ns);
		if (count == -EAGAIN)
			return -EAGAIN;
		if (count < 0)
			return count;
		moved += count;
	}
	xfer__conn_ready_later(conn);
	return 0;
}

/* ---- acks ---- */

static int take_ack(struct xfer__conn *conn, const uint8_t *bytes)
{
	struct xfer__outbound *out = conn->out;
	uint64_t sequence;
	int status, error = wire_unpack_ack(bytes, &sequence, &status);

	if (error)
		return error;
	if (list_empty(&out->in_flight))
		return BATON_EPROTOCOL;
	struct xfer__operation *op = list_entry(out->in_flight.next, struct xfer__operation, link);
	if (op->sequence != sequence || op->end_at > out->written_at)
		return BATON_EPROTOCOL;
	out->in_flight_count--;
	conn->acked = true;
	if (!status)
		xfer__count(&conn->xfer->counters.sent_bytes[conn->ops->transport], op->slice.bytes);
	xfer__operation_end(conn->xfer, op, status);
	return 0;
}

int xfer__outbound_acks(struct xfer__conn *conn, uint64_t now_ns)
{
	struct xfer__outbound *out = conn->out;
	ssize_t count = recv(conn->source.fd, out->acks + out->acks_bytes,
			     sizeof out->acks - out->acks_bytes, MSG_DONTWAIT);

	if (count == 0)
		return -ECONNRESET;
	if (count < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	conn->progress_ns = now_ns;
	out->acks_bytes += count;
	uint32_t at = 0;
	for (; at + WIRE_ACK_BYTES <= out->acks_bytes; at += WIRE_ACK_BYTES) {
		int error = take_ack(conn, out->acks + at);
		if (error)
			return error;
	}
	out->acks_bytes -= at;
	memmove(out->acks, out->acks + at, out->acks_bytes);
	xfer__peer_pump_later(conn->peer);
	return 0;
}
