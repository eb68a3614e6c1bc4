#include "model/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

struct memory_chunk {
	struct memory_chunk *next;
	size_t used, capacity;
	_Alignas(16) char bytes[];
};

void memory_init(struct memory *memory, size_t chunk_bytes, size_t bytes_max)
{
	*memory = (struct memory){ .chunk_bytes = chunk_bytes, .bytes_max = bytes_max };
}

void memory_fini(struct memory *memory)
{
	for (struct memory_chunk *chunk = memory->chunks, *next; chunk; chunk = next) {
		next = chunk->next;
		free(chunk);
	}
	memory->chunks = NULL;
}

static struct memory_chunk *add_chunk(struct memory *memory, size_t need)
{
	size_t capacity = MAX(need, memory->chunk_bytes);
	if (memory->bytes_max && capacity > memory->bytes_max - memory->bytes)
		return NULL;
	struct memory_chunk *chunk = calloc(1, sizeof(*chunk) + capacity);
	if (!chunk)
		return NULL;
	memory->bytes += capacity;
	chunk->capacity = capacity;
	/* A large piece gets a chunk of its own behind the one that still has room. */
	if (memory->chunks && capacity > memory->chunk_bytes) {
		chunk->next = memory->chunks->next;
		memory->chunks->next = chunk;
	} else {
		chunk->next = memory->chunks;
		memory->chunks = chunk;
	}
	return chunk;
}

void *memory_alloc(struct memory *memory, size_t count, size_t bytes)
{
	size_t need;
	if (__builtin_mul_overflow(count, bytes, &need) || need > SIZE_MAX / 4)
		return NULL;
	need = ALIGN_UP(MAX(need, (size_t)1), (size_t)16);
	struct memory_chunk *chunk = memory->chunks;
	if (!chunk || chunk->capacity - chunk->used < need)
		chunk = add_chunk(memory, need);
	if (!chunk)
		return NULL;
	void *piece = chunk->bytes + chunk->used;
	chunk->used += need;
	return piece;
}

char *memory_copy(struct memory *memory, const void *data, size_t bytes)
{
	char *copy = memory_alloc(memory, bytes + 1, 1);
	if (copy && bytes)
		memcpy(copy, data, bytes);
	return copy;
}
