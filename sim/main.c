/* baton-sim: runs seeds, says what they did, prints the first failure and how to see it again. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "sim/sim.h"

static const struct option options[] = {
	{ "seed", required_argument, NULL, 's' },     { "seeds", required_argument, NULL, 'n' },
	{ "requests", required_argument, NULL, 'r' }, { "blocks", required_argument, NULL, 'b' },
	{ "faults", required_argument, NULL, 'f' },   { "storm", required_argument, NULL, 't' },
	{ "plant", required_argument, NULL, 'p' },    { "trace", no_argument, NULL, 'v' },
	{ "help", no_argument, NULL, 'h' },	      { NULL, 0, NULL, 0 },
};

static const char help[] =
	"baton-sim: one conductor, three prefill and three decode nodes in virtual time, with faults\n"
	"  --seed N      first seed (1)\n"
	"  --seeds N     how many seeds (1)\n"
	"  --requests N  requests of a run (drawn from the seed)\n"
	"  --blocks N    KV blocks of a node (drawn from the seed)\n"
	"  --faults N    bits: 1 crash, 2 freeze, 4 break, 8 stall, 16 data, 32 drain, 64 cancel\n"
	"  --storm S     seconds of requests and faults (8)\n"
	"  --plant NAME  double-release, early-revoke or repeat: a mistake to be found\n"
	"  --trace       print what happens\n";

static const char *const plants[SIM_PLANT_COUNT] = {
	[SIM_PLANT_NONE] = "none",
	[SIM_PLANT_DOUBLE_RELEASE] = "double-release",
	[SIM_PLANT_EARLY_REVOKE] = "early-revoke",
	[SIM_PLANT_REPEAT] = "repeat",
};

struct wishes {
	uint64_t seed, seeds;
	long requests, blocks, faults, storm;
	enum sim_plant plant;
	bool trace;
};

static int parse(int argc, char **argv, struct wishes *wishes)
{
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 's':
			wishes->seed = strtoull(optarg, NULL, 0);
			break;
		case 'n':
			wishes->seeds = strtoull(optarg, NULL, 0);
			break;
		case 'r':
			wishes->requests = strtol(optarg, NULL, 0);
			break;
		case 'b':
			wishes->blocks = strtol(optarg, NULL, 0);
			break;
		case 'f':
			wishes->faults = strtol(optarg, NULL, 0);
			break;
		case 't':
			wishes->storm = strtol(optarg, NULL, 0);
			break;
		case 'p':
			for (int i = 0; i < SIM_PLANT_COUNT; i++)
				if (!strcmp(optarg, plants[i]))
					wishes->plant = (enum sim_plant)i;
			break;
		case 'v':
			wishes->trace = true;
			break;
		case 'h':
			fputs(help, stdout);
			return 1;
		default:
			return -1;
		}
	}
	return 0;
}

static void config_fill(const struct wishes *wishes, uint64_t seed, struct sim_config *config)
{
	sim_config_init(config, seed);
	if (wishes->requests > 0)
		config->request_count = (uint32_t)wishes->requests;
	if (wishes->blocks > 0)
		config->blocks = (uint32_t)wishes->blocks;
	if (wishes->faults >= 0)
		config->faults = (uint32_t)wishes->faults & SIM_FAULT_ALL;
	if (wishes->storm > 0)
		config->storm_ns = (uint64_t)wishes->storm * NS_PER_S;
	config->plant = wishes->plant;
	config->trace = wishes->trace ? stdout : NULL;
}

static void add(struct sim_result *sum, const struct sim_result *one)
{
	sum->events += one->events;
	sum->end_ns += one->end_ns;
	sum->finished += one->finished;
	sum->failed += one->failed;
	sum->cancelled += one->cancelled;
	sum->tokens += one->tokens;
	sum->resumes += one->resumes;
	sum->preemptions += one->preemptions;
	sum->refusals += one->refusals;
	sum->fenced += one->fenced;
	sum->frames_refused += one->frames_refused;
	sum->slices_damaged += one->slices_damaged;
	sum->crashes += one->crashes;
	sum->freezes += one->freezes;
	sum->breaks += one->breaks;
}

int main(int argc, char **argv)
{
	struct wishes wishes = { .seed = 1, .seeds = 1, .faults = -1 };
	struct sim_result sum = { .end_ns = 0 }, one;
	int parsed = parse(argc, argv, &wishes);

	if (parsed)
		return parsed < 0 ? 2 : 0;
	for (uint64_t i = 0; i < wishes.seeds; i++) {
		struct sim_config config;
		config_fill(&wishes, wishes.seed + i, &config);
		if (sim_run(&config, &one) < 0) {
			printf("FAILED %s\n", one.failure);
			printf("again: baton-sim --seed %" PRIu64 " --trace\n", wishes.seed + i);
			return 1;
		}
		add(&sum, &one);
	}
	printf("%" PRIu64 " seeds, %.0f virtual seconds, %" PRIu64 " events: %u requests finished, "
	       "%u failed, %u cancelled, %" PRIu64 " tokens\n",
	       wishes.seeds, (double)sum.end_ns / NS_PER_S, sum.events, sum.finished, sum.failed,
	       sum.cancelled, sum.tokens);
	printf("%" PRIu64 " crashes, %" PRIu64 " freezes, %" PRIu64 " broken connections, %" PRIu64
	       " fenced, %" PRIu64 " resumes (%" PRIu64 " preemptions), %" PRIu64 " refusals, %" PRIu64
	       " frames refused, %" PRIu64 " slices damaged\n",
	       sum.crashes, sum.freezes, sum.breaks, sum.fenced, sum.resumes, sum.preemptions,
	       sum.refusals, sum.frames_refused, sum.slices_damaged);
	if (wishes.seeds == 1)
		printf("trace %016" PRIx64 "\n", one.trace_hash);
	return 0;
}
