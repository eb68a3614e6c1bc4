#include "base/test_util.h"

#include <string.h>

#include "base/check.h"
#include "node/role.h"

static void test_stops(void **state)
{
	const uint32_t eos[] = { 0, 2 };
	struct node_sampling sampling = { .max_tokens = 10, .stop_ids = { 7 }, .stop_id_count = 1 };
	struct node_stops stops;

	node_stops_make(&stops, &sampling, eos, 2);
	assert_int_equal(stops.count, 3);
	assert_int_equal(node_token_finish(&stops, &sampling, 7, 0, 9), NODE_FINISH_STOP);
	assert_int_equal(node_token_finish(&stops, &sampling, 2, 0, 9), NODE_FINISH_STOP);
	assert_int_equal(node_token_finish(&stops, &sampling, 5, 0, 9), NODE_FINISH_NONE);
	assert_int_equal(node_token_finish(&stops, &sampling, 5, 9, 9), NODE_FINISH_LENGTH);
	assert_int_equal(node_token_finish(&stops, &sampling, 5, 3, 0), NODE_FINISH_LENGTH);
	/* A stop at the last place is a stop. */
	assert_int_equal(node_token_finish(&stops, &sampling, 7, 9, 0), NODE_FINISH_STOP);

	/* Ignored ends of generation neither end nor are banned; the client's own stops do. */
	sampling.ignore_eos = true;
	node_stops_make(&stops, &sampling, eos, 2);
	assert_int_equal(stops.count, 1);
	assert_int_equal(node_token_finish(&stops, &sampling, 2, 0, 9), NODE_FINISH_NONE);
	assert_int_equal(node_token_finish(&stops, &sampling, 7, 0, 9), NODE_FINISH_STOP);
}

static void test_most_stops_fit(void **state)
{
	uint32_t eos[NODE_EOS_MAX] = { 0 };
	struct node_sampling sampling = { .max_tokens = 1, .stop_id_count = NODE_STOP_IDS_MAX };
	struct node_stops stops;

	node_stops_make(&stops, &sampling, eos, NODE_EOS_MAX);
	assert_int_equal(stops.count, NODE_STOPS_MAX);
}

static void test_handles(void **state)
{
	node_handle p = node_handle_make(NODE_ROLE_PREFILL, 5, 1),
		    d = node_handle_make(NODE_ROLE_DECODE, 5, 1);

	assert_true(p.v != 0 && d.v != 0 && p.v != d.v);
	assert_int_equal(node_handle_index(p), 5);
	assert_int_equal(node_handle_index(d), 5);
	assert_true(node_handle_make(NODE_ROLE_PREFILL, 5, 2).v != p.v);
}

static void test_actions_are_bounded(void **state)
{
	struct node_actions actions;
	struct node_ref ref = { 1, 2, 3 };

	assert_int_equal(node_actions_init(&actions, 1, 1), 0);
	for (uint32_t i = 0; i < actions.capacity; i++)
		assert_int_equal(
			node_actions_add(&actions, NODE_DO_FORGET, &ref, (node_handle){ 1 })
				->ref.request,
			2);
	assert_dies(node_actions_add(&actions, NODE_DO_FORGET, &ref, (node_handle){ 1 }));
	node_actions_clear(&actions);
	assert_int_equal(actions.count, 0);
	node_actions_fini(&actions);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stops),
		cmocka_unit_test(test_most_stops_fit),
		cmocka_unit_test(test_handles),
		cmocka_unit_test(test_actions_are_bounded),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
