#include "base/ring.h"

#include <errno.h>
#include <stdlib.h>

#include "base/check.h"

int ring_init(struct ring *ring, uint32_t capacity)
{
	CHECK(capacity && !(capacity & (capacity - 1)));
	ring->slots = calloc(capacity, sizeof *ring->slots);
	if (!ring->slots)
		return -ENOMEM;
	ring->mask = capacity - 1;
	atomic_init(&ring->head, 0);
	atomic_init(&ring->tail, 0);
	return 0;
}

void ring_fini(struct ring *ring)
{
	free(ring->slots);
	ring->slots = NULL;
}

bool ring_push(struct ring *ring, void *item)
{
	uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
	uint32_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
	if (tail - head > ring->mask)
		return false;
	ring->slots[tail & ring->mask] = item;
	atomic_store_explicit(&ring->tail, tail + 1, memory_order_release);
	return true;
}

void *ring_pop(struct ring *ring)
{
	uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
	uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
	if (head == tail)
		return NULL;
	void *item = ring->slots[head & ring->mask];
	atomic_store_explicit(&ring->head, head + 1, memory_order_release);
	return item;
}

uint32_t ring_count(const struct ring *ring)
{
	return atomic_load_explicit(&ring->tail, memory_order_acquire) -
	       atomic_load_explicit(&ring->head, memory_order_acquire);
}
