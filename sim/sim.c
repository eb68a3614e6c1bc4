/* One run: a storm, then calm, then rest; and the checkers that look at nodes. */
#include "sim/private.h"

#include <inttypes.h>
#include <stdarg.h>

/* After the storm everything has to be done within this: the longest waits are the resume wait
 * (10 s) and a few landing timeouts (4 s) in a row. */
#define CALM_NS (60 * NS_PER_S)
/* For what is still under way when the last request has ended: timeouts, late slices. */
#define REST_NS (12 * NS_PER_S)

uint64_t sim_random(struct sim *sim, uint64_t bound)
{
	return bound ? rand_next(&sim->random) % bound : 0;
}

bool sim_chance(struct sim *sim, uint32_t permille)
{
	return sim_random(sim, 1000) < permille;
}

void sim_fail(struct sim *sim, const char *format, ...)
{
	va_list args;

	if (sim->failed)
		return;
	sim->failed = true;
	int used = snprintf(sim->result.failure, sizeof sim->result.failure,
			    "seed %" PRIu64 ", %" PRIu64 " ms: ", sim->config.seed,
			    sim->now_ns / NS_PER_MS);
	va_start(args, format);
	vsnprintf(sim->result.failure + used, sizeof sim->result.failure - (size_t)used, format, args);
	va_end(args);
	sim_trace(sim, "FAILURE %s", sim->result.failure);
}

void sim_trace(struct sim *sim, const char *format, ...)
{
	char line[512];
	va_list args;

	va_start(args, format);
	vsnprintf(line, sizeof line, format, args);
	va_end(args);
	uint64_t hash = sim_mix(sim->result.trace_hash, sim->now_ns);
	for (const char *c = line; *c; c++)
		hash = (hash ^ (uint8_t)*c) * UINT64_C(0x100000001b3);
	sim->result.trace_hash = hash;
	if (sim->config.trace)
		fprintf(sim->config.trace, "[%9.3f ms] %s\n", (double)sim->now_ns / NS_PER_MS, line);
}

/* ---- checkers ---- */

/* V3, V6: each reference is a sequence's. */
void sim_check_node(struct sim *sim, struct sim_node *node)
{
	uint32_t refs[512] = { 0 };

	if (!node->process.alive || sim->failed)
		return;
	CHECK(node->kv.pool.block_count <= ARRAY_COUNT(refs));
	if (node->decode)
		decode_count_refs(node->decode, refs);
	if (node->prefill)
		prefill_count_refs(node->prefill, refs);
	for (uint32_t i = 0; i < node->kv.pool.block_count; i++) {
		const struct kv_block *block = &node->kv.pool.blocks[i];
		if (block->state == KV_USED && block->refs == refs[i])
			continue;
		if (block->state != KV_USED && !refs[i])
			continue;
		sim_fail(sim, "%s: block %u has %u references, sequences hold %u", node->name, i,
			 block->state == KV_USED ? block->refs : 0, refs[i]);
		return;
	}
	if (sim->order % 16)
		return;
	kv_node_check(&node->kv);
	if (node->decode)
		decode_check(node->decode);
	if (node->prefill)
		prefill_check(node->prefill);
	conductor_check(sim_conductor_core(sim));
}

/* Nothing is left of any request, anywhere. */
void sim_check_rest(struct sim *sim)
{
	struct conductor_counters counters;

	conductor_check(sim_conductor_core(sim));
	conductor_counters(sim_conductor_core(sim), &counters);
	if (counters.requests_open || counters.dispatches_live)
		sim_fail(sim, "the conductor has %u requests and %u dispatches left",
			 counters.requests_open, counters.dispatches_live);
	for (uint32_t i = 0; i < sim->node_count; i++) {
		struct sim_node *node = &sim->nodes[i];
		const uint32_t *counts = node->kv.pool.counts;
		if (!node->process.alive || !node->welcomed)
			sim_fail(sim, "%s is not back", node->name);
		else if (!kv_node_idle(&node->kv) ||
			 counts[KV_FREE] + counts[KV_CACHED] != node->kv.pool.block_count)
			sim_fail(sim, "%s leaks: %u used, %u reserved, %u quarantined of %u blocks",
				 node->name, counts[KV_USED], counts[KV_RESERVED],
				 counts[KV_QUARANTINED], node->kv.pool.block_count);
		else if ((node->decode && !decode_idle(node->decode)) ||
			 (node->prefill && !prefill_idle(node->prefill)))
			sim_fail(sim, "%s has a dispatch left", node->name);
		else if (!list_empty(&node->expects))
			sim_fail(sim, "%s has a transfer left", node->name);
	}
}

/* ---- a run ---- */

void sim_config_init(struct sim_config *config, uint64_t seed)
{
	uint64_t state = seed;
	uint64_t draw = rand_next(&state);
	static const uint32_t blocks[] = { 16, 24, 48, 200 }, slowness[] = { 1, 4, 12, 25 };

	*config = (struct sim_config){
		.seed = seed,
		.prefill_count = 3,
		.decode_count = 3,
		.both_count = draw % 4 == 0,
		.request_count = 20 + (uint32_t)(draw >> 8) % 80,
		.slowness = slowness[draw >> 32 & 3],
		.blocks = blocks[draw >> 16 & 3],
		.faults = draw >> 20 & 1 ? SIM_FAULT_ALL : (uint32_t)(draw >> 24) & SIM_FAULT_ALL,
		.storm_ns = 8 * NS_PER_S,
		.policy = draw >> 40 & 1 ? "least-loaded" : "round-robin",
	};
}

static void nodes_start(struct sim *sim)
{
	const struct sim_config *config = &sim->config;
	uint32_t counts[] = { config->prefill_count, config->decode_count, config->both_count };
	static const enum node_role roles[] = { NODE_ROLE_PREFILL, NODE_ROLE_DECODE, NODE_ROLE_BOTH };

	for (uint32_t kind = 0; kind < ARRAY_COUNT(counts); kind++) {
		for (uint32_t i = 0; i < counts[kind]; i++) {
			CHECK(sim->node_count < SIM_NODES_MAX);
			struct sim_node *node = &sim->nodes[sim->node_count];
			node->role = roles[kind];
			node->process.index = sim->node_count++;
			snprintf(node->name, sizeof node->name, "%s-%u",
				 conductor_role_name(node->role), i);
			sim_node_start(sim, node);
		}
	}
}

static void run_until(struct sim *sim, uint64_t until_ns, bool (*enough)(const struct sim *))
{
	while (!sim->failed && !(enough && enough(sim)) && sim->heap_count &&
	       sim->heap[0].at_ns <= until_ns)
		(void)sim_step(sim);
	if (!enough && !sim->failed && sim->now_ns < until_ns)
		sim->now_ns = until_ns;
}

static void facts(struct sim *sim)
{
	struct conductor_counters counters;

	conductor_counters(sim_conductor_core(sim), &counters);
	for (uint32_t i = 0; i < CAUSE_COUNT; i++)
		sim->result.resumes += i == CAUSE_REFUSED ? 0 : counters.resumes[i];
	sim->result.preemptions = counters.resumes[CAUSE_PREEMPTED];
	sim->result.frames_refused = counters.frames_refused;
	for (uint32_t i = 0; i < sim->node_count; i++)
		sim->result.slices_damaged += sim->nodes[i].damaged;
	sim->result.end_ns = sim->now_ns;
}

/* Everything dies, and what is still in the queue finds that it did. */
static void teardown(struct sim *sim)
{
	sim->failed = true;
	sim->storm = false;
	for (uint32_t i = 0; i < sim->node_count; i++)
		if (sim->nodes[i].process.alive)
			sim_node_crash(sim, &sim->nodes[i]);
	sim->conductor_process.alive = false;
	sim->conductor_process.life++;
	while (sim_step(sim))
		;
	list_for_each_safe(link, after, &sim->conns)
		free(list_entry(link, struct sim_conn, link));
	sim_conductor_free(sim->conductor);
	sim_clients_free(sim);
	free(sim->heap);
}

/* What the conductor says of a request, into the trace. */
static void history(struct sim *sim, const char *name)
{
	struct conductor_trace_view view;

	if (sim->config.trace && !conductor_trace_find(sim_conductor_core(sim), name, &view))
		fprintf(sim->config.trace, "%s, as the conductor tells it (ms, what):\n%s", name,
			view.lines);
}

static bool done(const struct sim *sim)
{
	return sim_clients_done(sim);
}

int sim_run(const struct sim_config *config, struct sim_result *ret_result)
{
	struct sim *sim = calloc(1, sizeof *sim);

	CHECK(sim);
	sim->config = *config;
	sim->random = config->seed;
	sim->now_ns = NS_PER_S;
	list_init(&sim->conns);
	sim->conductor = sim_conductor_new(sim);
	nodes_start(sim);
	sim_clients_start(sim);
	sim->storm_end_ns = sim->now_ns + NS_PER_S + config->storm_ns;
	sim_faults_start(sim);
	run_until(sim, sim->storm_end_ns, NULL);
	if (!sim->failed)
		sim_faults_heal(sim);
	run_until(sim, sim->now_ns + CALM_NS, done);
	for (uint32_t i = 0; i < sim->client_count && !sim->failed; i++) {
		if (sim->clients[i].ended)
			continue;
		history(sim, sim->clients[i].name);
		sim_fail(sim, "%s has not ended though the faults have healed",
			 sim->clients[i].name);
	}
	run_until(sim, sim->now_ns + REST_NS, NULL);
	if (!sim->failed)
		sim_check_rest(sim);
	facts(sim);
	struct sim_result result = sim->result;
	int error = sim->failed ? -1 : 0;
	teardown(sim);
	*ret_result = result;
	free(sim);
	return error;
}
