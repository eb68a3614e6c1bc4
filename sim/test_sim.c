/* Seeds that must pass, one that must repeat itself, and mistakes that must be found. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "sim/sim.h"

#define SEEDS 200

static void seeds_pass(void **state)
{
	struct sim_result sum = { .events = 0 }, one;

	(void)state;
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct sim_config config;
		sim_config_init(&config, seed);
		if (sim_run(&config, &one) < 0) {
			print_error("%s\nagain: baton-sim --seed %llu --trace\n", one.failure,
				    (unsigned long long)seed);
			fail();
		}
		sum.finished += one.finished;
		sum.cancelled += one.cancelled;
		sum.resumes += one.resumes;
		sum.preemptions += one.preemptions;
		sum.refusals += one.refusals;
		sum.fenced += one.fenced;
		sum.frames_refused += one.frames_refused;
		sum.slices_damaged += one.slices_damaged;
		sum.crashes += one.crashes;
		sum.breaks += one.breaks;
	}
	/* The faults were really there. */
	assert_true(sum.finished > 10 * SEEDS);
	assert_true(sum.cancelled > SEEDS / 2);
	assert_true(sum.resumes > SEEDS);
	assert_true(sum.preemptions > 10);
	assert_true(sum.refusals > SEEDS);
	assert_true(sum.fenced > 10);
	assert_true(sum.frames_refused > SEEDS);
	assert_true(sum.slices_damaged > SEEDS);
	assert_true(sum.crashes > SEEDS / 2);
	assert_true(sum.breaks > SEEDS / 2);
}

static void same_seed_same_trace(void **state)
{
	struct sim_result first, again, other;
	struct sim_config config;

	(void)state;
	for (uint64_t seed = 7; seed < 12; seed++) {
		sim_config_init(&config, seed);
		config.faults = SIM_FAULT_ALL;
		assert_int_equal(sim_run(&config, &first), 0);
		assert_int_equal(sim_run(&config, &again), 0);
		assert_true(first.trace_hash == again.trace_hash);
		assert_true(first.events == again.events);
		config.seed += 1000;
		assert_int_equal(sim_run(&config, &other), 0);
		assert_true(first.trace_hash != other.trace_hash);
	}
}

/* Without faults nothing may be lost, resumed or refused for any other cause than pressure. */
static void calm_is_calm(void **state)
{
	struct sim_result result;
	struct sim_config config;

	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		sim_config_init(&config, seed);
		config.faults = 0;
		config.blocks = 400;
		config.slowness = 1;
		assert_int_equal(sim_run(&config, &result), 0);
		assert_int_equal(result.finished, config.request_count);
		assert_int_equal(result.resumes, 0);
		assert_int_equal(result.fenced, 0);
	}
}

/* A checker finds it, or an invariant of the cores stops the process. */
static bool plant_is_found(enum sim_plant plant)
{
	int status;
	pid_t child = fork();

	assert_true(child >= 0);
	if (child == 0) {
		int null = open("/dev/null", O_WRONLY);
		dup2(null, 2);
		for (uint64_t seed = 1; seed <= SEEDS; seed++) {
			struct sim_result result;
			struct sim_config config;
			sim_config_init(&config, seed);
			config.plant = plant;
			if (sim_run(&config, &result) < 0)
				_exit(3);
		}
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return (WIFEXITED(status) && WEXITSTATUS(status) == 3) ||
	       (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void planted_mistakes_are_found(void **state)
{
	(void)state;
	assert_true(plant_is_found(SIM_PLANT_DOUBLE_RELEASE));
	assert_true(plant_is_found(SIM_PLANT_EARLY_REVOKE));
	assert_true(plant_is_found(SIM_PLANT_REPEAT));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(seeds_pass),
		cmocka_unit_test(same_seed_same_trace),
		cmocka_unit_test(calm_is_calm),
		cmocka_unit_test(planted_mistakes_are_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
