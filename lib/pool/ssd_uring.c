/*
 * I/O by io_uring: one ring, made, fed and reaped by the disk thread alone. Files and the caller's
 * arena are registered where the kernel allows it; what is not goes the plain way. The loop's wakes
 * come in as a read of the eventfd, so there is one place to wait.
 */
#include "pool/ssd_internal.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/check.h"
#include "base/err.h"
#include "base/log.h"

#define ARENA_PIECE_BYTES (UINT64_C(1) << 30) /* the kernel's limit of one registered buffer */
#define ARENA_PIECES_MAX 1024u

struct uring {
	struct io_uring ring;
	uint64_t wake_count;
	bool wake_armed;
	uint32_t files_registered; /* room in the table */
	uint32_t pieces;	   /* of the arena; buffer 0 is ssd->pages */
	bool buffers;
};

static struct io_uring_sqe *sqe_get(struct uring *uring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);
	while (!sqe) {
		(void)io_uring_submit(&uring->ring);
		sqe = io_uring_get_sqe(&uring->ring);
	}
	return sqe;
}

static void files_register(struct uring *uring)
{
	struct rlimit limit;
	uint32_t count = SSD_FILES_REGISTERED_MAX;

	if (!getrlimit(RLIMIT_NOFILE, &limit))
		count = (uint32_t)MIN(limit.rlim_cur, count);
	if (!io_uring_register_files_sparse(&uring->ring, count))
		uring->files_registered = count;
}

static void buffers_register(struct ssd *ssd, struct uring *uring)
{
	uint64_t pieces = DIV_UP(ssd->config.arena_bytes, ARENA_PIECE_BYTES);
	struct iovec *vectors;

	if (!ssd->config.arena || pieces >= ARENA_PIECES_MAX)
		pieces = 0;
	vectors = calloc(pieces + 1, sizeof *vectors);
	if (!vectors)
		return;
	vectors[0] = (struct iovec){ ssd->pages, ssd->pages_bytes };
	for (uint64_t i = 0; i < pieces; i++)
		vectors[1 + i] = (struct iovec){
			(uint8_t *)ssd->config.arena + i * ARENA_PIECE_BYTES,
			MIN(ARENA_PIECE_BYTES, ssd->config.arena_bytes - i * ARENA_PIECE_BYTES)
		};
	int error = io_uring_register_buffers(&uring->ring, vectors, (unsigned)pieces + 1);
	if (!error) {
		uring->buffers = true;
		uring->pieces = (uint32_t)pieces;
		atomic_store(&ssd->counters.arena_registered, pieces != 0);
	} else if (pieces) {
		log_info("ssd %s: cannot register the arena (%s), each transfer maps its pages",
			 ssd->config.path, err_text(error));
	}
	free(vectors);
}

/* Linux before 5.6 has a ring, but not everything that is done with it here. */
static bool operations_there(struct uring *uring)
{
	static const int wanted[] = { IORING_OP_READ,	    IORING_OP_WRITE, IORING_OP_READ_FIXED,
				      IORING_OP_WRITE_FIXED, IORING_OP_FALLOCATE };
	struct io_uring_probe *probe = io_uring_get_probe_ring(&uring->ring);
	bool there = probe != NULL;

	for (uint32_t i = 0; i < ARRAY_COUNT(wanted) && there; i++)
		there = io_uring_opcode_supported(probe, wanted[i]);
	io_uring_free_probe(probe);
	return there;
}

static int uring_init(struct ssd *ssd)
{
	struct uring *uring = calloc(1, sizeof *uring);
	/* Two I/Os per operation, the scan's or growth's, the wake. */
	uint32_t entries = 2 * ssd->depth + SSD_SCAN_READS + 2;
	struct io_uring_params params = { .flags = IORING_SETUP_SINGLE_ISSUER |
						   IORING_SETUP_DEFER_TASKRUN };

	if (!uring)
		return -ENOMEM;
	int error = io_uring_queue_init_params(entries, &uring->ring, &params);
	if (error == -EINVAL) /* before Linux 6.1 */
		error = io_uring_queue_init(entries, &uring->ring, 0);
	if (!error && !operations_there(uring)) {
		io_uring_queue_exit(&uring->ring);
		error = -ENOSYS;
	}
	if (error) {
		free(uring);
		return error;
	}
	ssd->ring = uring;
	files_register(uring);
	buffers_register(ssd, uring);
	return 0;
}

static void uring_fini(struct ssd *ssd)
{
	struct uring *uring = ssd->ring;
	io_uring_queue_exit(&uring->ring);
	free(uring);
	ssd->ring = NULL;
}

/* The registered buffer that holds all of it, or -1. */
static int buffer_index(const struct ssd *ssd, const struct uring *uring, const uint8_t *at, uint64_t bytes)
{
	const uint8_t *arena = ssd->config.arena;

	if (uring->buffers && at >= ssd->pages && at + bytes <= ssd->pages + ssd->pages_bytes)
		return 0;
	if (!uring->pieces || at < arena || at + bytes > arena + ssd->config.arena_bytes)
		return -1;
	uint64_t from = (uint64_t)(at - arena);
	if (from / ARENA_PIECE_BYTES != (from + bytes - 1) / ARENA_PIECE_BYTES)
		return -1;
	return (int)(1 + from / ARENA_PIECE_BYTES);
}

static void uring_submit(struct ssd *ssd, struct ssd__io *io)
{
	struct uring *uring = ssd->ring;
	struct io_uring_sqe *sqe = sqe_get(uring);
	uint8_t *at = ssd__io_step_at(io);
	uint64_t bytes = ssd__io_step_bytes(io), offset = io->offset + io->done;
	bool registered = io->segment < uring->files_registered;
	int fd = registered ? (int)io->segment : io->fd;
	int buffer = at ? buffer_index(ssd, uring, at, bytes) : -1;

	switch (io->kind) {
	case IO_READ:
		if (buffer >= 0)
			io_uring_prep_read_fixed(sqe, fd, at, (unsigned)bytes, offset, buffer);
		else
			io_uring_prep_read(sqe, fd, at, (unsigned)bytes, offset);
		break;
	case IO_WRITE:
		if (buffer >= 0)
			io_uring_prep_write_fixed(sqe, fd, at, (unsigned)bytes, offset, buffer);
		else
			io_uring_prep_write(sqe, fd, at, (unsigned)bytes, offset);
		break;
	case IO_FALLOCATE:
		io_uring_prep_fallocate(sqe, fd, 0, 0, io->bytes);
		break;
	}
	if (registered)
		sqe->flags |= IOSQE_FIXED_FILE;
	io_uring_sqe_set_data(sqe, io);
}

static void wake_arm(struct ssd *ssd, struct uring *uring)
{
	if (uring->wake_armed)
		return;
	struct io_uring_sqe *sqe = sqe_get(uring);
	io_uring_prep_read(sqe, ssd->wake_fd, &uring->wake_count, sizeof uring->wake_count, 0);
	io_uring_sqe_set_data(sqe, NULL);
	uring->wake_armed = true;
}

static void uring_turn(struct ssd *ssd)
{
	struct uring *uring = ssd->ring;
	struct io_uring_cqe *cqe;

	wake_arm(ssd, uring);
	int error = io_uring_submit_and_wait(&uring->ring, 1);
	CHECK(error >= 0 || error == -EINTR || error == -EAGAIN || error == -EBUSY);
	while (ssd->turn_bytes < SSD_TURN_BYTES && !io_uring_peek_cqe(&uring->ring, &cqe)) {
		struct ssd__io *io = io_uring_cqe_get_data(cqe);
		int count = cqe->res;
		io_uring_cqe_seen(&uring->ring, cqe);
		if (io) {
			ssd__io_step(ssd, io, count);
		} else {
			uring->wake_armed = false;
			(void)atomic_exchange(&ssd->wake_sent, false);
		}
	}
}

static void uring_file_added(struct ssd *ssd, uint32_t segment)
{
	struct uring *uring = ssd->ring;

	/* A table is filled from its front, so its end is where the first one did not go in. */
	if (segment < uring->files_registered &&
	    io_uring_register_files_update(&uring->ring, segment, &ssd->segments[segment].fd, 1) != 1)
		uring->files_registered = segment;
}

const struct ssd__engine ssd__uring = {
	.name = "io_uring",
	.init = uring_init,
	.fini = uring_fini,
	.submit = uring_submit,
	.turn = uring_turn,
	.file_added = uring_file_added,
};
