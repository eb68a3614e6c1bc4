#include "arena.h"

#include <errno.h>
#include <stdlib.h>

void *proto_arena_take(struct proto_arena *arena, size_t bytes)
{
	size_t at = (arena->used + 15) & ~(size_t)15;
	if (at > arena->bytes || bytes > arena->bytes - at)
		return NULL;
	arena->used = at + bytes;
	return arena->memory + at;
}

static void *arena_alloc(void *context, size_t bytes)
{
	return proto_arena_take(context, bytes);
}

static void arena_free(void *context, void *pointer)
{
}

int proto_arena_init(struct proto_arena *arena, size_t bytes)
{
	arena->memory = malloc(bytes);
	if (!arena->memory)
		return -ENOMEM;
	arena->allocator = (ProtobufCAllocator){ arena_alloc, arena_free, arena };
	arena->bytes = bytes;
	arena->used = 0;
	return 0;
}

void proto_arena_fini(struct proto_arena *arena)
{
	free(arena->memory);
	arena->memory = NULL;
}

void *proto_arena_unpack(struct proto_arena *arena, const ProtobufCMessageDescriptor *descriptor,
			 const uint8_t *body, size_t bytes)
{
	arena->used = 0;
	return protobuf_c_message_unpack(descriptor, &arena->allocator, bytes, body);
}
