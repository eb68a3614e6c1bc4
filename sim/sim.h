/*
 * The cluster in one thread: the real cores of one conductor, prefill and decode nodes, their
 * real codecs, under virtual time, with faults. One seed decides everything; the same seed twice
 * gives the same trace.
 *
 * First a safety half: requests arrive while connections break, nodes crash, freeze and drain,
 * slices are damaged, clients go away. Then faults heal, and everything must finish.
 *
 * Checkers watch from outside (sim_check.c and where things happen):
 *   V1  Each request ends exactly once, and nothing is delivered after its end.
 *   V2  What is delivered is, token by token, what a run without faults would give. A token is a
 *       hash of the KV that its node really holds, so damaged or mixed-up KV gives a wrong one.
 *   V3  Blocks add up: at any time each reference belongs to one sequence; at the end nothing is
 *       used, reserved or quarantined on any node.
 *   V4  No block has two writers: a batch writes only blocks of one sequence, a transfer only
 *       blocks that its grant still owns.
 *   V5  A slice's bytes do not change while it is on its way.
 *   V6  The cores' own invariants (x_check) hold.
 */
#ifndef BATON_SIM_SIM_H
#define BATON_SIM_SIM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Kinds of faults, a bit each. */
enum sim_fault {
	SIM_FAULT_CRASH = 1 << 0,   /* a node dies and is started again */
	SIM_FAULT_FREEZE = 1 << 1,  /* a node or the conductor stands still for a while */
	SIM_FAULT_BREAK = 1 << 2,   /* a control connection breaks, frames under way are lost */
	SIM_FAULT_STALL = 1 << 3,   /* a control connection is slow for a while */
	SIM_FAULT_DATA = 1 << 4,    /* slices are lost or damaged */
	SIM_FAULT_DRAIN = 1 << 5,   /* a node is told to drain and later to work again */
	SIM_FAULT_CANCEL = 1 << 6,  /* clients go away */
	SIM_FAULT_ALL = (1 << 7) - 1,
};

/* Planted mistakes, which the checkers must find. */
enum sim_plant {
	SIM_PLANT_NONE,
	SIM_PLANT_DOUBLE_RELEASE,  /* a node lets go of a block twice */
	SIM_PLANT_EARLY_REVOKE,    /* a revoked transfer is called over while a write is under way */
	SIM_PLANT_REPEAT,          /* a node sends a token again at the next position */
	SIM_PLANT_COUNT,
};

struct sim_config {
	uint64_t seed;
	uint32_t prefill_count, decode_count, both_count;
	uint32_t request_count;
	uint32_t slowness; /* of the engine; 1: half a millisecond a layer and more */
	uint32_t blocks;   /* of 16 tokens, on each node: few of them mean pressure */
	uint32_t faults;   /* enum sim_fault */
	uint64_t storm_ns; /* how long requests and faults come */
	const char *policy;
	enum sim_plant plant;
	FILE *trace;       /* NULL: none */
};

struct sim_result {
	char failure[512]; /* "" when all is well */
	uint64_t trace_hash, events, end_ns;
	uint32_t finished, failed, cancelled;
	uint64_t tokens, resumes, preemptions, refusals, fenced, frames_refused, slices_damaged;
	uint64_t crashes, freezes, breaks, cached_tokens;
};

/* What the seed makes of a default run: sizes, pressure and faults vary with it. */
void sim_config_init(struct sim_config *config, uint64_t seed);
/* Return: 0, or -1 with ret_result->failure. */
int sim_run(const struct sim_config *config, struct sim_result *ret_result);

#endif
