/* A bounded arena for unpacking frames: one message at a time, freed whole by the next. */
#ifndef BATON_PROTO_ARENA_H
#define BATON_PROTO_ARENA_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

struct proto_arena {
	ProtobufCAllocator allocator;
	uint8_t *memory;
	size_t bytes, used;
};

int proto_arena_init(struct proto_arena *arena, size_t bytes); /* 0 or -ENOMEM */
void proto_arena_fini(struct proto_arena *arena);
/* Empties the arena, then unpacks into it. NULL: malformed, or larger than the arena. */
void *proto_arena_unpack(struct proto_arena *arena, const ProtobufCMessageDescriptor *descriptor,
			 const uint8_t *body, size_t bytes);
/* More from the same arena, until the next unpack; NULL when full. */
void *proto_arena_take(struct proto_arena *arena, size_t bytes);

#endif
