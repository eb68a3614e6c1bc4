/* Bounded ring of pointers, one producer thread and one consumer thread, no lock. After a push
 * the sender does not look at the thing again. Pair it with a wake-up (uv_async_send coalesces,
 * so the consumer drains the ring whole). */
#ifndef BATON_BASE_RING_H
#define BATON_BASE_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ring {
	void **slots;
	uint32_t mask;
	_Alignas(64) _Atomic uint32_t head; /* consumer's */
	_Alignas(64) _Atomic uint32_t tail; /* producer's */
};

/* @capacity: a power of two. Return: 0 or -ENOMEM. */
int ring_init(struct ring *ring, uint32_t capacity);
void ring_fini(struct ring *ring);
bool ring_push(struct ring *ring, void *item); /* false: full */
void *ring_pop(struct ring *ring);             /* NULL: empty */
uint32_t ring_count(const struct ring *ring);

#endif
