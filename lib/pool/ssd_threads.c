/* I/O by a pool of threads, for where io_uring is refused (containers' seccomp, old kernels). */
#include "pool/ssd_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/check.h"

#define THREADS_DEFAULT 16u

/* The count or -errno of one transfer. */
static int64_t transfer(const struct ssd__io *io)
{
	uint8_t *at = ssd__io_step_at(io);
	size_t bytes = ssd__io_step_bytes(io);
	off_t offset = (off_t)(io->offset + io->done);
	ssize_t count = -1;

	switch (io->kind) {
	case IO_READ:
		count = pread(io->fd, at, bytes, offset);
		break;
	case IO_WRITE:
		count = pwrite(io->fd, at, bytes, offset);
		break;
	case IO_FALLOCATE:
		count = fallocate(io->fd, 0, 0, (off_t)io->bytes);
		break;
	}
	return count < 0 ? -errno : count;
}

static void *worker(void *argument)
{
	struct ssd__pool *pool = argument;
	const uint64_t one = 1;

	(void)prctl(PR_SET_NAME, "ssd-io");
	pthread_mutex_lock(&pool->lock);
	for (;;) {
		while (list_empty(&pool->queue) && !pool->stop)
			pthread_cond_wait(&pool->ready, &pool->lock);
		if (list_empty(&pool->queue))
			break;
		struct ssd__io *io = list_entry(pool->queue.next, struct ssd__io, link);
		list_remove(&io->link);
		pthread_mutex_unlock(&pool->lock);
		int64_t count = transfer(io);
		pthread_mutex_lock(&pool->lock);
		io->count = count;
		list_push_back(&pool->done, &io->link);
		if (!pool->done_signalled) {
			pool->done_signalled = true;
			CHECK(write(pool->ssd->wake_fd, &one, sizeof one) == sizeof one);
		}
	}
	pthread_mutex_unlock(&pool->lock);
	return NULL;
}

static int threads_init(struct ssd *ssd)
{
	struct ssd__pool *pool = &ssd->pool;
	uint32_t wanted = ssd->config.thread_count ? ssd->config.thread_count : THREADS_DEFAULT;

	CHECK(!pthread_mutex_init(&pool->lock, NULL));
	CHECK(!pthread_cond_init(&pool->ready, NULL));
	list_init(&pool->queue);
	list_init(&pool->done);
	pool->ssd = ssd;
	wanted = MIN(MIN(wanted, ssd->depth), SSD_THREADS_MAX);
	while (pool->thread_count < wanted &&
	       !pthread_create(&pool->threads[pool->thread_count], NULL, worker, pool))
		pool->thread_count++;
	return 0;
}

static void threads_fini(struct ssd *ssd)
{
	struct ssd__pool *pool = &ssd->pool;

	pthread_mutex_lock(&pool->lock);
	pool->stop = true;
	pthread_cond_broadcast(&pool->ready);
	pthread_mutex_unlock(&pool->lock);
	for (uint32_t i = 0; i < pool->thread_count; i++)
		pthread_join(pool->threads[i], NULL);
	pthread_mutex_destroy(&pool->lock);
	pthread_cond_destroy(&pool->ready);
}

static void threads_submit(struct ssd *ssd, struct ssd__io *io)
{
	struct ssd__pool *pool = &ssd->pool;

	pthread_mutex_lock(&pool->lock);
	list_push_back(&pool->queue, &io->link);
	if (pool->thread_count)
		pthread_cond_signal(&pool->ready);
	pthread_mutex_unlock(&pool->lock);
}

/* No thread could be had: one transfer by this one. Return: false when there is nothing to do. */
static bool transfer_here(struct ssd *ssd)
{
	struct ssd__pool *pool = &ssd->pool;

	if (pool->thread_count || list_empty(&pool->queue))
		return false;
	struct ssd__io *io = list_entry(pool->queue.next, struct ssd__io, link);
	list_remove(&io->link);
	ssd__io_step(ssd, io, transfer(io));
	return true;
}

static struct ssd__io *done_next(struct ssd__pool *pool)
{
	struct ssd__io *io = NULL;

	pthread_mutex_lock(&pool->lock);
	if (!list_empty(&pool->done)) {
		io = list_entry(pool->done.next, struct ssd__io, link);
		list_remove(&io->link);
	} else {
		pool->done_signalled = false;
	}
	pthread_mutex_unlock(&pool->lock);
	return io;
}

static void threads_turn(struct ssd *ssd)
{
	struct ssd__pool *pool = &ssd->pool;
	struct ssd__io *io;
	uint64_t count;

	if (transfer_here(ssd))
		return;
	io = done_next(pool);
	if (!io) {
		ssize_t bytes = read(ssd->wake_fd, &count, sizeof count);
		CHECK(bytes == sizeof count || errno == EINTR);
		(void)atomic_exchange(&ssd->wake_sent, false);
		io = done_next(pool);
	}
	while (io) {
		ssd__io_step(ssd, io, io->count);
		/* What is left is signalled still, and found at once by the next turn. */
		io = ssd->turn_bytes < SSD_TURN_BYTES ? done_next(pool) : NULL;
	}
}

static void threads_file_added(struct ssd *ssd, uint32_t segment)
{
}

const struct ssd__engine ssd__threads = {
	.name = "threads",
	.init = threads_init,
	.fini = threads_fini,
	.submit = threads_submit,
	.turn = threads_turn,
	.file_added = threads_file_added,
};
