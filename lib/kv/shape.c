#include "kv/shape.h"

#include <errno.h>
#include <stddef.h>

#include "base/check.h"

static const struct kv_group *group_of(const struct kv_shape *shape, uint32_t layer)
{
	for (uint32_t g = 0; g < shape->group_count; g++) {
		if (layer < shape->groups[g].layer_count)
			return &shape->groups[g];
		layer -= shape->groups[g].layer_count;
	}
	CHECK(!"a layer of this shape");
	return NULL;
}

/* K and V of one token in one layer. */
static uint64_t group_token_bytes(const struct kv_group *group)
{
	return 2ull * group->head_count * group->head_dim * group->element_bytes;
}

static uint64_t group_slice_bytes(const struct kv_group *group, uint32_t block_tokens)
{
	return ALIGN_UP(group_token_bytes(group) * block_tokens, KV_SLICE_ALIGN);
}

uint32_t kv_shape_layer_count(const struct kv_shape *shape)
{
	uint32_t count = 0;
	for (uint32_t g = 0; g < shape->group_count; g++)
		count += shape->groups[g].layer_count;
	return count;
}

uint32_t kv_shape_slice_bytes(const struct kv_shape *shape, uint32_t layer)
{
	return (uint32_t)group_slice_bytes(group_of(shape, layer), shape->block_tokens);
}

uint64_t kv_shape_slice_offset(const struct kv_shape *shape, uint32_t layer)
{
	uint64_t offset = 0;
	for (uint32_t g = 0; g < shape->group_count; g++) {
		const struct kv_group *group = &shape->groups[g];
		uint32_t before = MIN(layer, group->layer_count);
		offset += before * group_slice_bytes(group, shape->block_tokens);
		layer -= before;
	}
	CHECK(layer == 0);
	return offset;
}

uint64_t kv_shape_block_bytes(const struct kv_shape *shape)
{
	return kv_shape_slice_offset(shape, kv_shape_layer_count(shape));
}

uint32_t kv_shape_token_bytes(const struct kv_shape *shape)
{
	uint64_t bytes = 0;
	for (uint32_t g = 0; g < shape->group_count; g++)
		bytes += shape->groups[g].layer_count * group_token_bytes(&shape->groups[g]);
	return (uint32_t)bytes;
}

/* The bounds keep every product above inside its type: a slice is at most 64 MiB (what lib/xfer
 * moves as one piece), all layers together at most 4 GiB per block. */
int kv_shape_check(const struct kv_shape *shape)
{
	if (shape->group_count < 1 || shape->group_count > KV_GROUPS_MAX)
		return -EINVAL;
	if (shape->block_tokens < 16 || shape->block_tokens > 256 || shape->block_tokens % 16)
		return -EINVAL;
	uint64_t token_bytes = 0;
	for (uint32_t g = 0; g < shape->group_count; g++) {
		const struct kv_group *group = &shape->groups[g];
		if (group->layer_count < 1 || group->layer_count > 1024)
			return -EINVAL;
		if (group->head_count < 1 || group->head_count > 1024)
			return -EINVAL;
		if (group->head_dim < 1 || group->head_dim > 8192)
			return -EINVAL;
		if (group->element_bytes != 1 && group->element_bytes != 2 &&
		    group->element_bytes != 4)
			return -EINVAL;
		if (group_slice_bytes(group, shape->block_tokens) > 64ull << 20)
			return -EINVAL;
		token_bytes += group->layer_count * group_token_bytes(group);
	}
	if (token_bytes * shape->block_tokens > UINT32_MAX)
		return -EINVAL;
	return 0;
}
