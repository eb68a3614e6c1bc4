/* Memory that is taken piece by piece and given back whole, within a bound. */
#ifndef BATON_MODEL_MEMORY_H
#define BATON_MODEL_MEMORY_H

#include <stddef.h>

struct memory_chunk;

struct memory {
	struct memory_chunk *chunks;
	size_t bytes, bytes_max; /* bytes_max 0: no bound */
	size_t chunk_bytes;      /* least size of a chunk */
};

void memory_init(struct memory *memory, size_t chunk_bytes, size_t bytes_max);
void memory_fini(struct memory *memory);
/* Zeroed, aligned to 16; NULL past the bound or without memory. */
void *memory_alloc(struct memory *memory, size_t count, size_t bytes);
/* NUL-terminated copy, or NULL. */
char *memory_copy(struct memory *memory, const void *data, size_t bytes);

#endif
