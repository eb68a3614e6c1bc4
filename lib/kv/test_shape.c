#include "base/test_util.h"

#include <errno.h>

#include "kv/shape.h"

/* SmolLM2-135M: 30 layers, 3 KV heads of 64, f16. */
static struct kv_shape demo(void)
{
	return (struct kv_shape){ .groups = { { 30, 3, 64, 2, 0 } },
				  .group_count = 1,
				  .block_tokens = 64 };
}

static void test_demo(void **state)
{
	struct kv_shape shape = demo();
	assert_int_equal(kv_shape_check(&shape), 0);
	assert_int_equal(kv_shape_layer_count(&shape), 30);
	assert_int_equal(kv_shape_token_bytes(&shape), 30 * 2 * 3 * 64 * 2);
	assert_int_equal(kv_shape_slice_bytes(&shape, 0), 64 * 2 * 3 * 64 * 2); /* 12 whole pages */
	assert_int_equal(kv_shape_slice_offset(&shape, 29), 29 * 49152);
	assert_int_equal(kv_shape_block_bytes(&shape), 30 * 49152);
}

/* Two groups and slices that need padding: every layer is one range, back to back. */
static void test_groups(void **state)
{
	struct kv_shape shape = {
		.groups = { { 2, 1, 20, 2, 0 }, { 3, 2, 48, 2, 512 } },
		.group_count = 2,
		.block_tokens = 48,
	};
	uint64_t offset = 0;
	assert_int_equal(kv_shape_check(&shape), 0);
	for (uint32_t layer = 0; layer < kv_shape_layer_count(&shape); layer++) {
		assert_int_equal(kv_shape_slice_offset(&shape, layer), offset);
		assert_int_equal(kv_shape_slice_bytes(&shape, layer), layer < 2 ? 4096 : 20480);
		assert_int_equal(kv_shape_slice_bytes(&shape, layer) % KV_SLICE_ALIGN, 0);
		offset += kv_shape_slice_bytes(&shape, layer);
	}
	assert_int_equal(kv_shape_block_bytes(&shape), offset);
}

static void test_bounds(void **state)
{
	struct kv_shape shape = demo();
	shape.block_tokens = 24;
	assert_int_equal(kv_shape_check(&shape), -EINVAL);
	shape.block_tokens = 272;
	assert_int_equal(kv_shape_check(&shape), -EINVAL);
	shape = demo();
	shape.group_count = KV_GROUPS_MAX + 1;
	assert_int_equal(kv_shape_check(&shape), -EINVAL);
	shape = demo();
	shape.groups[0].head_dim = 0;
	assert_int_equal(kv_shape_check(&shape), -EINVAL);
	shape = demo();
	shape.groups[0].head_count = 1024;
	shape.groups[0].head_dim = 8192; /* a slice past 64 MiB */
	assert_int_equal(kv_shape_check(&shape), -EINVAL);
	assert_int_equal(kv_blocks_for(0, 64), 0);
	assert_int_equal(kv_blocks_for(1, 64), 1);
	assert_int_equal(kv_blocks_for(64, 64), 1);
	assert_int_equal(kv_blocks_for(65, 64), 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_demo),
		cmocka_unit_test(test_groups),
		cmocka_unit_test(test_bounds),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
