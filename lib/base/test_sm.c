#include "base/test_util.h"

#include "base/sm.h"

enum { IDLE, BUSY, DONE, LAST = 31 };

static const struct sm_state states[] = {
	[IDLE] = { "idle", SM_TO(BUSY) | SM_TO(DONE) },
	[BUSY] = { "busy", SM_TO(DONE) | SM_TO(LAST) },
	[DONE] = { "done", 0 },
	[LAST] = { "last", SM_TO(IDLE) },
};

static void test_every_move(void **state)
{
	static const uint8_t all[] = { IDLE, BUSY, DONE, LAST };

	for (size_t from = 0; from < sizeof all; from++) {
		for (size_t to = 0; to < sizeof all; to++) {
			uint8_t now = all[from];
			if (states[all[from]].moves & SM_TO(all[to])) {
				sm_move(states, &now, all[to]);
				assert_int_equal(now, all[to]);
			} else {
				assert_dies(sm_move(states, &now, all[to]));
			}
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_every_move) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
