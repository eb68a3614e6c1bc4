/*
 * Frame: u32 length of the body, u16 type, u16 zero, all little-endian; then the body, one
 * protobuf message of proto/baton.proto. A body is at most FRAME_BODY_BYTES_MAX.
 *
 * Version rules: Hello carries a range of versions and feature bits; version N talks to N-1;
 * unknown fields pass; an unknown frame type is counted and skipped.
 */
#ifndef BATON_PROTO_FRAME_H
#define BATON_PROTO_FRAME_H

#include <stdint.h>

#define FRAME_HEADER_BYTES 8
#define FRAME_BODY_BYTES_MAX (4u << 20)
#define FRAME_VERSION_MIN 1
#define FRAME_VERSION_MAX 1

/* type, value, message, from -> to */
#define FRAME_LIST(F)                                                                            \
	F(HELLO, 1, Hello)                 /* node -> conductor, node -> node */                 \
	F(WELCOME, 2, Welcome)             /* the answer */                                      \
	F(REPORT, 3, Report)               /* node -> conductor: heartbeat and load */           \
	F(PREFILL, 4, Prefill)             /* conductor -> p: one dispatch */                    \
	F(RESERVE, 5, Reserve)             /* p -> d */                                          \
	F(RESERVE_ANSWER, 6, ReserveAnswer) /* d -> p */                                         \
	F(FIRST_TOKENS, 7, FirstTokens)    /* p -> d */                                          \
	F(TOKENS, 8, Tokens)               /* p or d -> conductor */                             \
	F(RETURNED, 9, Returned)           /* p or d -> conductor: dispatch or choice handed back */ \
	F(RELEASE, 10, Release)            /* conductor -> p, d; p -> d */                       \
	F(COMMAND, 11, Command)            /* conductor -> node: drain, role */                  \
	F(ACK, 12, Ack)                    /* conductor -> node: heartbeat answered, lease renewed */

enum frame_type {
#define FRAME_ENUM(name, value, message) FRAME_##name = (value),
	FRAME_LIST(FRAME_ENUM)
#undef FRAME_ENUM
};

#endif
