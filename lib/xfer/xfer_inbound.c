/*
 * Receiving. What a slice is allowed to do is decided when its header is complete: it gets a
 * target, or it is drained to scratch. From then on the target may only be taken away (X1):
 * xfer__expect_revoke() and a newer slice for the same range both redirect() the one under way,
 * and every byte that comes after that goes to scratch. Since the same thread reads the sockets
 * and posts XFER_REVOKED, nothing is left to wait for.
 */
#include "xfer/xfer_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/hash.h"

int xfer__inbound_init(struct xfer__inbound *in, struct xfer *xfer, enum xfer_transport transport)
{
	memset(in, 0, sizeof *in);
	in->xfer = xfer;
	in->transport = transport;
	list_init(&in->writer_link);
	in->leaf_sums = malloc(XFER_LEAVES_MAX * sizeof *in->leaf_sums);
	return in->leaf_sums ? 0 : -ENOMEM;
}

static void post_slice(struct xfer__inbound *in, enum xfer_event_kind kind, int status)
{
	CHECK(in->credit);
	in->credit = false;
	xfer__post(in->xfer,
		   &(struct xfer_event){ .kind = kind,
					 .user = in->expect->user,
					 .index = in->slice.index,
					 .bytes = in->slice.bytes,
					 .status = status },
		   FREES_CREDIT, NULL);
}

/* The slice under way leaves its range; what is still to come of it is drained. */
static void redirect(struct xfer__inbound *in, int outcome)
{
	list_remove(&in->writer_link);
	in->expect = NULL;
	in->outcome = outcome;
	if (in->credit)
		xfer__credit_return(in->xfer);
	in->credit = false;
#ifndef XFER_NO_QUARANTINE
	in->target = NULL;
#endif
}

void xfer__inbound_fini(struct xfer__inbound *in)
{
	if (in->state != INBOUND_HEADER && in->expect) {
		in->expect->range_states[in->slice.index] = RANGE_WAITING;
		if (in->credit)
			post_slice(in, XFER_BROKEN, -ECONNRESET);
	}
	redirect(in, 0);
	free(in->leaf_sums);
	in->leaf_sums = NULL;
}

/* ---- expects ---- */

void xfer__expect_grant(struct xfer *xfer, struct xfer__expect *expect)
{
	CHECK(!expect->live);
	expect->live = true;
	expect->live_generation = expect->generation;
	expect->landed_count = 0;
	list_init(&expect->writers);
}

void xfer__expect_revoke(struct xfer *xfer, struct xfer__expect *expect)
{
	struct xfer_event event = { .kind = XFER_REVOKED, .user = expect->user };

	if (!expect->live) {
		/* Its end crossed the revoke; the loop waits for this to reuse the slot. */
		xfer__post(xfer, &event, FREES_EXPECT_SILENT, expect);
		return;
	}
	expect->live = false;
	list_for_each_safe(link, after, &expect->writers)
		redirect(list_entry(link, struct xfer__inbound, writer_link), BATON_EREVOKED);
	xfer__post(xfer, &event, FREES_EXPECT, expect);
}

static struct xfer__expect *find_expect(struct xfer *xfer, const struct wire_ticket *ticket)
{
	if (ticket->instance != xfer->address.instance || ticket->index >= xfer->config.expects_max)
		return NULL;
	struct xfer__expect *expect = &xfer->expects[ticket->index];
	if (!expect->live || expect->live_generation != ticket->generation ||
	    expect->token != ticket->token)
		return NULL;
	return expect;
}

/* ---- one slice ---- */

static void ack(struct xfer__inbound *in, int status)
{
	CHECK(in->acks_bytes + WIRE_ACK_BYTES <= sizeof in->acks);
	wire_pack_ack(in->slice.sequence, status, in->acks + in->acks_bytes);
	in->acks_bytes += WIRE_ACK_BYTES;
	if (status == BATON_EREVOKED)
		xfer__count(&in->xfer->counters.slices_revoked, 1);
	in->state = INBOUND_HEADER;
	in->target = NULL;
}

static void drain(struct xfer__inbound *in, int outcome)
{
	in->expect = NULL;
	in->target = NULL;
	in->outcome = outcome;
}

/* A resend may come over a new connection before the old one is known to be dead. The newer one
 * wins the range and overwrites it whole. */
static void displace(struct xfer__expect *expect, uint32_t index)
{
	list_for_each_safe(link, after, &expect->writers) {
		struct xfer__inbound *other = list_entry(link, struct xfer__inbound, writer_link);
		if (other->slice.index == index)
			redirect(other, BATON_EREVOKED);
	}
}

static void choose_target(struct xfer__inbound *in)
{
	struct xfer *xfer = in->xfer;
	const struct wire_slice *slice = &in->slice;
	struct xfer__expect *expect = find_expect(xfer, &slice->ticket);

	if (!expect) { /* the grant may still lie in the ring: it was put there before the ticket left */
		xfer__commands_drain(xfer);
		expect = find_expect(xfer, &slice->ticket);
	}
	if (!expect) {
		drain(in, BATON_EREVOKED);
	} else if (slice->index >= expect->range_count ||
		   expect->ranges[slice->index].bytes != slice->bytes) {
		drain(in, BATON_EPROTOCOL);
	} else if (expect->range_states[slice->index] == RANGE_LANDED) {
		drain(in, 0);
	} else {
		if (expect->range_states[slice->index] == RANGE_ARRIVING)
			displace(expect, slice->index);
		expect->range_states[slice->index] = RANGE_ARRIVING;
		in->expect = expect;
		in->target = (uint8_t *)xfer->config.slab.base + expect->ranges[slice->index].offset;
		list_push_back(&expect->writers, &in->writer_link);
	}
}

static int slice_start(struct xfer__inbound *in, uint64_t now_ns)
{
	int error = wire_unpack_slice(in->head, &in->slice);

	if (error)
		return error;
	if (in->slice.sequence != in->next_sequence || in->slice.inline_payload == !!in->source)
		return BATON_EPROTOCOL;
	if (in->source && (in->slice.offset > in->source_bytes ||
			   in->slice.bytes > in->source_bytes - in->slice.offset))
		return BATON_EPROTOCOL;
	in->next_sequence++;
	in->head_bytes = in->tail_bytes = 0;
	in->at = in->hashed = 0;
	in->hold_until_ns = 0;
	if (in->xfer->config.faults.delay_us)
		in->hold_until_ns = now_ns + in->xfer->config.faults.delay_us * UINT64_C(1000);
	choose_target(in);
	in->state = INBOUND_WAIT;
	return 0;
}

static void landed(struct xfer__inbound *in)
{
	struct xfer__expect *expect = in->expect;
	uint64_t user = expect->user;

	expect->range_states[in->slice.index] = RANGE_LANDED;
	xfer__count(&in->xfer->counters.landed_bytes[in->transport], in->slice.bytes);
	post_slice(in, XFER_LANDED, 0);
	if (++expect->landed_count < expect->range_count)
		return;
	CHECK(list_empty(&expect->writers));
	expect->live = false;
	xfer__post(in->xfer, &(struct xfer_event){ .kind = XFER_LANDED_ALL, .user = user },
		   FREES_EXPECT, expect);
}

static void slice_end(struct xfer__inbound *in, uint64_t sum)
{
	int status = in->outcome;

	if (in->expect) {
		bool good = hash_leaves(in->leaf_sums, hash_leaf_count(in->slice.bytes)) == sum;
		list_remove(&in->writer_link);
		if (good) {
			landed(in);
		} else {
			in->expect->range_states[in->slice.index] = RANGE_WAITING;
			xfer__count(&in->xfer->counters.slices_corrupt, 1);
			post_slice(in, XFER_CORRUPT, BATON_ECHECKSUM);
		}
		status = good ? 0 : BATON_ECHECKSUM;
		in->expect = NULL;
	}
	ack(in, status);
}

/* ---- payload that follows its header ---- */

int xfer__inbound_want(struct xfer__inbound *in, struct iovec iov[2])
{
	/* Room for the ack of a slice that is complete with what is read now. */
	if (in->acks_bytes + WIRE_ACK_BYTES > sizeof in->acks)
		return 0;
	if (in->state == INBOUND_HEADER) {
		iov[0].iov_base = in->head + in->head_bytes;
		iov[0].iov_len = sizeof in->head - in->head_bytes;
		return 1;
	}
	if (in->state != INBOUND_PAYLOAD)
		return 0;
	uint32_t left = in->slice.bytes - in->at;
	iov[0].iov_base = in->target ? in->target + in->at : in->xfer->scratch;
	iov[0].iov_len = MIN(left, XFER_CHUNK_BYTES);
	if (left > XFER_CHUNK_BYTES)
		return 1;
	/* The last piece brings its sum and, of a busy sender, the next header. */
	iov[1].iov_base = in->tail + in->tail_bytes;
	iov[1].iov_len = sizeof in->tail - in->tail_bytes;
	if (left)
		return 2;
	iov[0] = iov[1];
	return 1;
}

static void hash_arrived(struct xfer__inbound *in)
{
	if (!in->expect)
		return;
	for (; (in->hashed + 1) * HASH_LEAF_BYTES <= in->at; in->hashed++)
		in->leaf_sums[in->hashed] = hash_leaf(in->target + in->hashed * HASH_LEAF_BYTES);
}

static int feed_head(struct xfer__inbound *in, size_t bytes, uint64_t now_ns)
{
	in->head_bytes += bytes;
	CHECK(in->head_bytes <= sizeof in->head);
	return in->head_bytes == sizeof in->head ? slice_start(in, now_ns) : 0;
}

int xfer__inbound_feed(struct xfer__inbound *in, size_t bytes, uint64_t now_ns)
{
	uint8_t tail[sizeof in->tail];

	if (in->state == INBOUND_HEADER)
		return feed_head(in, bytes, now_ns);
	CHECK(in->state == INBOUND_PAYLOAD);
	uint32_t payload = MIN(in->slice.bytes - in->at, bytes);
	in->at += payload;
	in->tail_bytes += bytes - payload;
	CHECK(in->tail_bytes <= sizeof in->tail);
	hash_arrived(in);
	if (in->at < in->slice.bytes || in->tail_bytes < WIRE_SUM_BYTES)
		return 0;
	uint32_t rest = in->tail_bytes - WIRE_SUM_BYTES;
	memcpy(tail, in->tail, in->tail_bytes);
	slice_end(in, wire_unpack_u64(tail));
	memcpy(in->head, tail + WIRE_SUM_BYTES, rest);
	in->head_bytes = 0;
	return feed_head(in, rest, now_ns);
}

/* ---- payload that lies in the sender's slab ---- */

static void pull(struct xfer__inbound *in)
{
	const uint8_t *source = in->source + in->slice.offset;
	uint32_t end = MIN(in->slice.bytes, in->at + XFER_TURN_BYTES);

	for (; in->target && in->at < end; in->at += HASH_LEAF_BYTES, in->hashed++) {
		memcpy(in->target + in->at, source + in->at, HASH_LEAF_BYTES);
		in->leaf_sums[in->hashed] = hash_leaf(in->target + in->at);
	}
	if (!in->target || in->at == in->slice.bytes)
		slice_end(in, in->slice.sum);
}

bool xfer__inbound_step(struct xfer__inbound *in, uint64_t now_ns)
{
	if (in->state == INBOUND_WAIT) {
		if (in->expect && !in->credit && !(in->credit = xfer__credit_take(in->xfer)))
			return false;
		if (in->hold_until_ns > now_ns && in->target) {
			xfer__check_by(in->xfer, in->hold_until_ns);
			return false;
		}
		in->state = in->source ? INBOUND_PULL : INBOUND_PAYLOAD;
	}
	if (in->state != INBOUND_PULL || in->acks_bytes + WIRE_ACK_BYTES > sizeof in->acks)
		return false;
	pull(in);
	return in->state == INBOUND_PULL;
}
