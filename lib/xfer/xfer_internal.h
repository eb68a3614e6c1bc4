/*
 * Inside lib/xfer. One thread per process (the xfer thread) owns every data-plane socket and is
 * the only one that writes into granted ranges or reads slices to be sent, so X1 and X2 are
 * statements about one thread's program order:
 *
 *     loop thread                          xfer thread
 *     xfer_expect, xfer_revoke  --ring-->  expects   <- inbound <- conn  <- peers' senders
 *     xfer_send                 --ring-->  peers     -> outbound -> conn -> peers' receivers
 *     xfer_poll                 <--ring--  events
 *
 * Nothing in the rings can overflow: every command and every event has its place counted before
 * the call that leads to it is accepted.
 *   - An operation (one slice to be sent) has one command and one event; xfer_send() answers
 *     -EAGAIN when no operation is free.
 *   - An expect has two commands (grant, revoke) and two events (its end; "gone", which lets the
 *     loop reuse the slot when a revoke crossed the end on its way).
 *   - LANDED, CORRUPT and BROKEN take a credit before the slice is read into its range. Without a
 *     free credit the connection is not read: a slow loop holds the senders back.
 *
 * The three transports fit behind struct xfer__ops. tcp and shm are streams that speak
 * xfer_wire.h; they differ in how a connection comes to be and in whether the bytes of a slice
 * follow the header or are pulled from the sender's slab.
 */
#ifndef BATON_XFER_INTERNAL_H
#define BATON_XFER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>

#include "base/list.h"
#include "base/ring.h"
#include "xfer/xfer.h"
#include "xfer/xfer_wire.h"

#define XFER_OPERATIONS_MAX 16384 /* slices under way from this process, all peers together */
#define XFER_PEERS_MAX 1024
#define XFER_CREDITS_MAX 4096	  /* landed slices that the loop has not heard of */
#define XFER_UNPROVEN_MAX 64	  /* accepted connections that have not shown the key yet */
#define XFER_ACCEPTED_MAX 4096
#define XFER_IN_FLIGHT_MAX 64	  /* slices of one connection without their ack */
#define XFER_LEAVES_MAX (XFER_SLICE_BYTES_MAX / 4096)
/* What one connection moves before the next one has its turn, and what is read or written by one
 * system call: it is hashed while it is in the second-level cache. */
#define XFER_TURN_BYTES (1u << 20)
#define XFER_CHUNK_BYTES (256u << 10)

#define XFER_CONNECT_BACKOFF_MIN_NS (50 * NS_PER_MS)
#define XFER_CONNECT_BACKOFF_MAX_NS (2 * NS_PER_S)

struct xfer__conn;
struct xfer__expect;

/* ---- commands (loop to xfer thread) and events (back) ---- */

struct xfer__command {
	enum { COMMAND_SEND, COMMAND_GRANT, COMMAND_REVOKE, COMMAND_PEER_END } kind;
};

struct xfer__event {
	struct xfer_event event;
	/* What becomes free when the loop has drained it. */
	enum { FREES_CREDIT, FREES_OPERATION, FREES_EXPECT, FREES_EXPECT_SILENT, FREES_PEER } frees;
	void *owner;
};

/* ---- receiver ---- */

enum xfer__range_state { RANGE_WAITING, RANGE_ARRIVING, RANGE_LANDED };

struct xfer__expect {
	struct xfer__command grant, revoke;
	/* loop thread */
	struct list free_link;
	uint32_t generation;
	bool in_use, revoke_sent;
	/* set by the loop thread before the grant, constant until the end */
	uint64_t user, token;
	struct xfer_range *ranges;
	uint8_t *range_states; /* xfer thread's; enum xfer__range_state */
	uint32_t range_count;
	/* xfer thread */
	bool live;
	uint32_t live_generation, landed_count;
	struct list writers; /* inbounds whose slice is going into one of the ranges */
};

/*
 * The receiving end of one connection: a parser that says where the next bytes go and is told how
 * many came. It knows no socket, so tests and the fuzzer drive it by hand.
 */
struct xfer__inbound {
	struct xfer *xfer;
	struct list writer_link;
	enum { INBOUND_HEADER, INBOUND_WAIT, INBOUND_PAYLOAD, INBOUND_PULL } state;
	uint8_t head[WIRE_SLICE_BYTES];
	uint32_t head_bytes;
	/* The sum of the slice under way, then what was read of the next header with it. */
	uint8_t tail[WIRE_SUM_BYTES + WIRE_SLICE_BYTES];
	uint32_t tail_bytes;
	uint64_t next_sequence;
	/* The slice under way. */
	struct wire_slice slice;
	struct xfer__expect *expect; /* NULL: nobody expects it (any more); it is drained */
	uint8_t *target;	     /* where it goes; NULL: to scratch */
	int outcome;		     /* of a slice that is drained */
	bool credit;
	uint32_t at, hashed;
	uint64_t hold_until_ns; /* fault injection */
	uint64_t *leaf_sums;
	/* shm: the peer's slab, read-only */
	const uint8_t *source;
	uint64_t source_bytes;
	enum xfer_transport transport;
	/* Acks not yet written. Full: nothing more is read. */
	uint8_t acks[256 * WIRE_ACK_BYTES];
	uint32_t acks_bytes;
};

int xfer__inbound_init(struct xfer__inbound *in, struct xfer *xfer, enum xfer_transport transport);
/* The slice under way is broken off: XFER_BROKEN when somebody expects it. */
void xfer__inbound_fini(struct xfer__inbound *in);
/* Where the next bytes from the socket go. Return: entries of @iov, 0 when it does not read now. */
int xfer__inbound_want(struct xfer__inbound *in, struct iovec iov[2]);
/* That many bytes came. Return: 0, or BATON_EPROTOCOL: close the connection. */
int xfer__inbound_feed(struct xfer__inbound *in, size_t bytes, uint64_t now_ns);
/* Goes on with what waits for no socket. Return: true when there is more to do at once. */
bool xfer__inbound_step(struct xfer__inbound *in, uint64_t now_ns);

void xfer__expect_grant(struct xfer *xfer, struct xfer__expect *expect);
void xfer__expect_revoke(struct xfer *xfer, struct xfer__expect *expect);

/* ---- sender ---- */

struct xfer__operation {
	struct xfer__command command;
	struct list link;      /* xfer thread: peer's queue, then the connection's in_flight */
	struct list loop_link; /* loop thread: free, or peer's open_operations */
	struct xfer_peer *peer;
	struct wire_ticket ticket;
	struct xfer_slice slice;
	uint64_t user;
	_Atomic bool cancel;
	/* xfer thread */
	uint64_t sequence, end_at; /* the connection's byte count when its last byte is written */
};

struct xfer_peer {
	struct xfer *xfer;
	struct wire_address address;
	_Atomic(const char *) transport_name;
	/* loop thread */
	struct list loop_link;
	uint32_t references, operation_count;
	struct list operations;
	struct xfer__command end;
	/* xfer thread */
	struct list link; /* in xfer->peers_busy while anything is queued or connected */
	struct list queue, conns;
	uint32_t conn_count, connecting_count;
	bool ending, known, shm_refused;
	struct list pump_link; /* in xfer->peers_pump: something changed for it */
	uint64_t backoff_ns, retry_at_ns;
	uint8_t packed[XFER_ADDRESS_BYTES_MAX];
	size_t packed_bytes;
};

#define OUTBOUND_PARTS_MAX 16 /* slices in one sendmsg */
struct xfer__outbound {
	struct xfer__operation *current; /* being put into batches; also in in_flight */
	uint32_t at;			 /* bytes of it that are in a batch */
	uint32_t cut_at;		 /* injected fault: close there */
	bool cut, flip;
	struct list in_flight;
	uint32_t in_flight_count;
	uint64_t next_sequence;
	uint64_t batched_at, written_at; /* byte counts of the connection */
	struct iovec iov[3 * OUTBOUND_PARTS_MAX + 1]; /* head, payload, sum; a flipped leaf */
	uint32_t iov_at, iov_count;
	uint32_t part_count, sum_count;
	uint8_t heads[OUTBOUND_PARTS_MAX][WIRE_SLICE_BYTES];
	uint8_t sums[OUTBOUND_PARTS_MAX][WIRE_SUM_BYTES];
	uint8_t acks[64 * WIRE_ACK_BYTES];
	uint32_t acks_bytes;
	uint64_t *leaf_sums;
	uint8_t *flipped; /* 4 KiB, only with that fault */
};

void xfer__peer_queue(struct xfer_peer *peer, struct xfer__operation *operation);
void xfer__peer_pump_later(struct xfer_peer *peer);
void xfer__peer_pump(struct xfer_peer *peer, uint64_t now_ns);
void xfer__peer_check(struct xfer_peer *peer, uint64_t now_ns);
void xfer__peer_cancel_marked(struct xfer_peer *peer);
void xfer__peer_fail_queue(struct xfer_peer *peer, int error);
void xfer__operation_end(struct xfer *xfer, struct xfer__operation *operation, int status);

/* ---- connections ---- */

struct xfer__source { /* something in the epoll set */
	void (*ready)(struct xfer__source *source, uint32_t events);
	struct xfer *xfer;
	int fd;
	uint32_t events;
};
int xfer__source_add(struct xfer__source *source, uint32_t events);
void xfer__source_want(struct xfer__source *source, uint32_t events);
void xfer__source_close(struct xfer__source *source);

struct xfer__ops {
	enum xfer_transport transport;
	const char *name;
	/* Return: a listening descriptor. Fills its part of @address. */
	int (*listen)(struct xfer *xfer, struct wire_address *address);
	/* Return: a descriptor on which a connect() is under way or done. */
	int (*connect)(const struct wire_address *address);
	void (*adjust)(int fd);
	/* After both ends have proven themselves, at the connector: 0, -EAGAIN, or an error. */
	int (*introduce)(struct xfer__conn *conn);
	/* At the acceptor, until it returns 0. */
	int (*meet)(struct xfer__conn *conn);
	void (*part)(struct xfer__conn *conn);
	bool pull; /* the receiver reads the sender's slab */
};
extern const struct xfer__ops xfer__tcp, xfer__shm;

enum xfer__conn_state {
	CONN_CONNECTING, /* connect() is under way */
	CONN_GREETING,	 /* connector: waits for it */
	CONN_CONFIRM,	 /* connector: waits for it */
	CONN_INTRODUCE,	 /* connector: ops->introduce has not been able to write */
	CONN_PROOF,	 /* acceptor: waits for it */
	CONN_MEET,	 /* acceptor: ops->meet has not read everything */
	CONN_OPEN,
	CONN_CLOSED, /* freed at the end of the thread's turn */
};

struct xfer__conn {
	struct xfer__source source;
	struct list link;	/* xfer->conns, then xfer->conns_closed */
	struct list peer_link;	/* connector: peer->conns */
	struct list ready_link; /* xfer->conns_ready: work that waits for no socket */
	const struct xfer__ops *ops;
	struct xfer *xfer;
	struct xfer_peer *peer; /* NULL at the acceptor */
	enum xfer__conn_state state;
	uint64_t started_ns, progress_ns;
	uint8_t greeting[WIRE_GREETING_BYTES], proof[WIRE_PROOF_BYTES];
	uint8_t input[WIRE_PROOF_BYTES];
	uint32_t input_bytes;
	uint8_t output[WIRE_PROOF_BYTES]; /* handshake only */
	uint32_t output_bytes, output_at;
	int slab_fd; /* shm acceptor, between meeting and mapping */
	bool acked;  /* connector: the other end has answered a slice */
	struct xfer__inbound *in;
	struct xfer__outbound *out;
};

int xfer__conn_connect(struct xfer_peer *peer, const struct xfer__ops *ops, uint64_t now_ns);
void xfer__conn_accepted(struct xfer *xfer, const struct xfer__ops *ops, int fd, uint64_t now_ns);
void xfer__conn_work(struct xfer__conn *conn, uint64_t now_ns); /* from the ready list */
void xfer__conn_check(struct xfer__conn *conn, uint64_t now_ns); /* deadlines */
void xfer__conn_close(struct xfer__conn *conn, int error);
void xfer__conn_ready_later(struct xfer__conn *conn);
void xfer__conn_free(struct xfer__conn *conn);

/* outbound: what a connector's open connection does */
int xfer__outbound_init(struct xfer__conn *conn);
void xfer__outbound_fini(struct xfer__conn *conn, int error);
int xfer__outbound_write(struct xfer__conn *conn, uint64_t now_ns); /* 0 or an error */
int xfer__outbound_acks(struct xfer__conn *conn, uint64_t now_ns);

/* ---- the whole ---- */

struct xfer__counters {
	_Atomic uint64_t sent_bytes[5], landed_bytes[5];
	_Atomic uint64_t slices_corrupt, slices_revoked, connects, disconnects, refused;
};

struct xfer {
	/* constant after xfer_open */
	struct xfer_config config;
	struct wire_address address;
	uint64_t stall_ns, idle_ns, handshake_ns;
	pthread_t thread;
	bool started;
	struct xfer__source wake, listeners[2];
	const struct xfer__ops *listener_ops[2];
	uint32_t listener_count;
	int epoll_fd;
	char *socket_path; /* to be unlinked */

	/* rings, and the two flags that coalesce their wake-ups */
	struct ring commands, events, events_free;
	struct xfer__event *event_slots;
	_Atomic bool wake_sent, notify_sent, stop, cancel_marked, starved, resume;
	_Atomic uint32_t credits_used;
	struct xfer__counters counters;

	/* loop thread */
	pthread_t loop;
	bool loop_known;
	struct xfer__operation *operations;
	struct list operations_free;
	struct xfer__expect *expects;
	struct list expects_free;
	uint32_t expects_open, expects_revoking, peer_count, operation_count;
	struct list peers;

	/* xfer thread */
	struct list conns, conns_ready, conns_closed, peers_busy, peers_pump;
	uint32_t unproven_count, accepted_count;
	uint64_t now_ns, check_at_ns, listen_again_ns;
	uint64_t fault_sent; /* slices counted for the injected faults */
	bool events_queued;
	uint8_t *scratch; /* XFER_CHUNK_BYTES that drained payloads go to */
};

void xfer__post(struct xfer *xfer, const struct xfer_event *event, int frees, void *owner);
bool xfer__credit_take(struct xfer *xfer);
void xfer__credit_return(struct xfer *xfer);
void xfer__commands_drain(struct xfer *xfer);
void xfer__check_by(struct xfer *xfer, uint64_t at_ns); /* a deadline no later than that */
int xfer__thread_prepare(struct xfer *xfer);
void *xfer__thread_main(void *argument);
/* All but sockets and the thread; xfer_open() and the tests of the parser. */
int xfer__init(struct xfer *xfer, const struct xfer_config *config);
void xfer__fini(struct xfer *xfer);

static inline void xfer__count(_Atomic uint64_t *counter, uint64_t amount)
{
	atomic_fetch_add_explicit(counter, amount, memory_order_relaxed);
}

#endif
