/*
 * The data plane: moves byte ranges between the registered slabs of two processes, verified.
 * It does not know what a KV block is.
 *
 * A transfer is granted by its receiver: xfer_expect() names the destination ranges and returns
 * an opaque ticket, which the control plane carries to the sender; xfer_send() sends slices
 * against that ticket. Over tcp the sender writes into the socket and the receiver's own thread
 * reads into place; over shm the sender announces where the slice lies and the receiver copies
 * it out of a read-only mapping; rdma will write one-sided and notify. In every case the receiver
 * verifies the sum (hash_slice()) that came with the slice before it reports it landed, and the
 * sender hears the outcome of each slice.
 *
 * Invariants
 *   X1  After XFER_REVOKED for a transfer no byte of its ranges changes any more (a late write
 *       can never land in reused memory). Until then the owner keeps the ranges QUARANTINED.
 *   X2  After XFER_SENT for a slice the sender's memory is not read any more on its behalf.
 *   X3  Every xfer_send() slice ends with exactly one XFER_SENT; every xfer_expect() ends with
 *       exactly one XFER_LANDED_ALL or XFER_REVOKED.
 *
 * Threading: all calls from the loop thread. Work happens on the xfer's own thread(s); their
 * outcomes are events, drained by xfer_poll() after the notify callback fired.
 */
#ifndef BATON_XFER_XFER_H
#define BATON_XFER_XFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define XFER_ADDRESS_BYTES_MAX 256
#define XFER_TICKET_BYTES_MAX 64
#define XFER_SLICE_BYTES_MAX (64u << 20)
#define XFER_RANGES_MAX (1u << 20)	/* of one transfer */
#define XFER_PEER_SLICES_MAX 4096	/* queued or under way to one peer */

enum xfer_transport { XFER_AUTO, XFER_SHM, XFER_TCP, XFER_RDMA, XFER_SIM };

struct xfer;
struct xfer_peer;

/* One piece of memory that slices come from and go to. memfd is mapped by shm readers, who must be
 * sure that it never shrinks under them: it carries F_SEAL_SHRINK, or shm refuses it. -1: no shm. */
struct xfer_slab {
	int memfd;
	void *base;
	uint64_t bytes;
};

/* A slab as xfer wants it: a memfd, sealed and mapped, zeroed. Return: 0 or -errno. */
int xfer_slab_map(uint64_t bytes, struct xfer_slab *ret_slab);
void xfer_slab_unmap(struct xfer_slab *slab);

struct xfer_config {
	enum xfer_transport transport; /* AUTO: shm where the peer is on this machine, else tcp */
	const char *host;              /* tcp listener; "127.0.0.1" */
	const char *advertise;         /* where others reach it; NULL: host (which is no wildcard then) */
	uint16_t port;                 /* 0: any */
	const char *socket_dir;        /* shm: folder for the unix socket; NULL: abstract name */
	uint8_t cluster_key[32];       /* both ends of every connection prove it */
	struct xfer_slab slab;
	uint32_t streams_per_peer; /* tcp connections to one peer; 0: 2 */
	uint32_t expects_max;      /* transfers granted at a time */
	/* Deadlines; 0: the default. */
	uint32_t stall_ms;     /* a connection with work and no progress ends with -ETIMEDOUT; 10,000 */
	uint32_t idle_ms;      /* one without work is closed; 60,000 */
	uint32_t handshake_ms; /* a stranger has that long to show the key; 5,000 */
	void (*notify)(void *context); /* any thread; uv_async_send fits */
	void *notify_context;
	/* Faults for tests, all 0 in production (-Dquarantine=false builds ignore X1 on purpose). */
	struct xfer_faults {
		uint32_t flip_every;   /* flip one bit in every n-th slice on the wire */
		uint32_t delay_us;     /* hold each slice back that long at the receiver */
		uint32_t drop_every;   /* close the connection at every n-th slice */
	} faults;
};

int xfer_open(const struct xfer_config *config, struct xfer **ret_xfer, char *ret_error,
	      size_t error_bytes);
void xfer_close(struct xfer *xfer); /* joins its threads; open transfers just end */

/* Where others reach this process: opaque, carried by the control plane. Return: bytes. */
size_t xfer_address(const struct xfer *xfer, uint8_t ret_address[XFER_ADDRESS_BYTES_MAX]);

/* ---- receiver ---- */

struct xfer_range {
	uint64_t offset; /* in the slab */
	uint32_t bytes;
};

typedef struct {
	uint32_t index, generation;
} xfer_expect_id;

/*
 * xfer_expect() - grant a transfer of @range_count slices
 * @ranges: copied; each a multiple of HASH_LEAF_BYTES, at most XFER_SLICE_BYTES_MAX, in the slab
 * @user: comes back in events
 * Return: 0, -ENOSPC when expects_max are open, -EINVAL for a malformed range, -ENOMEM.
 */
int xfer_expect(struct xfer *xfer, const struct xfer_range ranges[], uint32_t range_count,
		uint64_t user, xfer_expect_id *ret_id, uint8_t ret_ticket[XFER_TICKET_BYTES_MAX],
		size_t *ret_ticket_bytes);
/* Takes the grant back; XFER_REVOKED follows when no write can come any more. Never fails: an id
 * that has ended already gives no event (its XFER_LANDED_ALL is on its way or was drained). */
void xfer_revoke(struct xfer *xfer, xfer_expect_id id);

/* ---- sender ---- */

/* A peer by its address; the connection is made on the first send. Never blocks. Two calls with
 * the same address give the same peer, counted. Return: 0, -EINVAL (not an address), -ENOMEM. */
int xfer_peer_ref(struct xfer *xfer, const uint8_t address[], size_t address_bytes,
		  struct xfer_peer **ret_peer);
void xfer_peer_unref(struct xfer_peer *peer);
const char *xfer_peer_transport(const struct xfer_peer *peer); /* "shm", "tcp", "" before connected */

struct xfer_slice {
	uint32_t index;  /* which of the ticket's ranges */
	uint64_t offset; /* in the sender's slab */
	uint32_t bytes;  /* the whole range */
	uint64_t sum;    /* hash_slice(); 0: the xfer thread computes it while sending */
};

/* Queues slices. They may be sent in any number of calls and in any order, and again after a failure:
 * a range that has landed already answers 0 without being written. @user comes back in XFER_SENT.
 * Return: 0, -EAGAIN when the peer's queue is full (nothing queued: retry after the next XFER_SENT),
 * -EINVAL for a malformed ticket or slice, or more than XFER_PEER_SLICES_MAX at once. */
int xfer_send(struct xfer_peer *peer, const uint8_t ticket[], size_t ticket_bytes,
	      const struct xfer_slice slices[], uint32_t slice_count, uint64_t user);
/* Slices of @user not yet on their way end with -ECANCELED; those under way end as they do. */
void xfer_cancel(struct xfer_peer *peer, uint64_t user);

/* ---- events ---- */

enum xfer_event_kind {
	XFER_LANDED,     /* one slice landed and verified: user, index, bytes */
	XFER_LANDED_ALL, /* the last one did; the expect is over */
	XFER_CORRUPT,    /* a slice failed its sum (the sender hears BATON_ECHECKSUM and may resend) */
	XFER_BROKEN,     /* the sender's connection went before the end; the expect stays open for a
			    resend over a new connection until revoked */
	XFER_REVOKED,
	XFER_SENT,       /* one slice's outcome at the sender: user, index, bytes, status */
};

struct xfer_event {
	enum xfer_event_kind kind;
	uint64_t user;
	uint32_t index, bytes;
	/* XFER_SENT: 0 landed and verified; BATON_ECHECKSUM; BATON_EREVOKED (the receiver does not
	 * expect it any more); -ECONNRESET, -ETIMEDOUT... the connection; -ECANCELED. */
	int status;
};

/* Next event; false when there is none. Whoever stops before that comes back without waiting for
 * notify(), which fires again only for what comes after a false. */
bool xfer_poll(struct xfer *xfer, struct xfer_event *ret_event);

struct xfer_stats {
	uint64_t sent_bytes[5], landed_bytes[5]; /* by enum xfer_transport */
	uint64_t slices_corrupt, slices_revoked, connects, disconnects;
	uint64_t refused; /* connections of strangers: wrong key, wrong version, garbage */
	uint32_t expects_open, expects_revoking; /* revoking: quarantined */
};
void xfer_stats(const struct xfer *xfer, struct xfer_stats *ret_stats);

#endif
