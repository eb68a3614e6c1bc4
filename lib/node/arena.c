#include "node/arena.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"

int arena_open(struct arena *arena, const struct kv_shape *shape, uint64_t bytes_max,
	       uint32_t blocks_min)
{
	uint64_t block_bytes = kv_shape_block_bytes(shape);
	uint64_t count = MIN(bytes_max / block_bytes, (uint64_t)KV_BLOCK_NONE - 1);
	int status;

	if (count < blocks_min)
		return -ENOSPC;
	*arena = (struct arena){ .memfd = -1, .block_bytes = block_bytes,
				 .block_count = (uint32_t)count, .bytes = count * block_bytes };
	arena->memfd = memfd_create("baton-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (arena->memfd < 0)
		return -errno;
	if (ftruncate(arena->memfd, (off_t)arena->bytes) < 0) {
		status = -errno;
		goto close_memfd;
	}
	arena->base = mmap(NULL, arena->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, arena->memfd, 0);
	if (arena->base == MAP_FAILED) {
		status = -errno;
		goto close_memfd;
	}
	/* Huge pages where the kernel gives them for shared memory; refused is fine. */
	(void)madvise(arena->base, arena->bytes, MADV_HUGEPAGE);
	return 0;

close_memfd:
	close(arena->memfd);
	return status;
}

void arena_close(struct arena *arena)
{
	munmap(arena->base, arena->bytes);
	close(arena->memfd);
}
