/*
 * The pool format of KV (DRAM, SSD, wire): [block][layer][head], and for each head K as
 * [token/16][dim][16] and then V as [token][dim], f16. A layer slice (one layer of one block) is
 * padded to 4 KiB, so a block is contiguous, a layer of a block is one range, and a tensor-
 * parallel rank's part is one range of that. Partly filled blocks travel whole, the rest zeroed.
 */
#ifndef BATON_KV_SHAPE_H
#define BATON_KV_SHAPE_H

#include <stdint.h>

#define KV_GROUPS_MAX 4
#define KV_SLICE_ALIGN 4096
#define KV_BLOCK_NONE UINT32_MAX

typedef struct {
	uint32_t v;
} kv_block_id; /* index into the arena; KV_BLOCK_NONE: none */

struct kv_group {
	uint32_t layer_count;
	uint32_t head_count; /* KV heads; 1 for MLA */
	uint32_t head_dim;
	uint32_t element_bytes; /* 2: f16 */
	uint32_t window;        /* tokens, 0: all */
};

struct kv_shape {
	struct kv_group groups[KV_GROUPS_MAX]; /* layers in order */
	uint32_t group_count;
	uint32_t block_tokens; /* 16..256, a multiple of 16 */
};

uint32_t kv_shape_layer_count(const struct kv_shape *shape);
uint32_t kv_shape_slice_bytes(const struct kv_shape *shape, uint32_t layer);  /* padded */
uint64_t kv_shape_slice_offset(const struct kv_shape *shape, uint32_t layer); /* in the block */
uint64_t kv_shape_block_bytes(const struct kv_shape *shape);
uint32_t kv_shape_token_bytes(const struct kv_shape *shape); /* unpadded, all layers */
/* 0, or -EINVAL when a field is outside what this build can hold. */
int kv_shape_check(const struct kv_shape *shape);

static inline uint32_t kv_blocks_for(uint64_t tokens, uint32_t block_tokens)
{
	return (uint32_t)((tokens + block_tokens - 1) / block_tokens);
}

#endif
