/* What goes wrong, when: all of it drawn from the seed, and healed when the storm is over. */
#include "sim/private.h"

static void run_start(struct sim *sim, void *argument, bool alive)
{
	struct sim_node *node = argument;

	(void)alive;
	if (!node->process.alive && !sim->failed)
		sim_node_start(sim, node);
}

static struct sim_node *any_node(struct sim *sim)
{
	return &sim->nodes[sim_random(sim, sim->node_count)];
}

static void crash(struct sim *sim)
{
	struct sim_node *node = any_node(sim);

	if (!node->process.alive)
		return;
	sim->result.crashes++;
	sim_node_crash(sim, node);
	sim_post(sim, NULL, NS_PER_MS + sim_random(sim, 4 * NS_PER_S), run_start, node);
}

static void freeze(struct sim *sim)
{
	struct sim_process *process =
		sim_chance(sim, 100) ? &sim->conductor_process : &any_node(sim)->process;
	uint64_t long_ns = sim_chance(sim, 400) ? 7 * NS_PER_S : NS_PER_S;

	if (!process->alive || process->frozen_ns > sim->now_ns)
		return;
	sim->result.freezes++;
	process->frozen_ns = MIN(sim->now_ns + sim_random(sim, long_ns), sim->storm_end_ns);
	sim_trace(sim, "%s stands still until %llu ms", process->name,
		  (unsigned long long)(process->frozen_ns / NS_PER_MS));
}

static struct sim_conn *any_conn(struct sim *sim)
{
	uint32_t count = 0;

	list_for_each(link, &sim->conns)
		count++;
	if (!count)
		return NULL;
	uint64_t at = sim_random(sim, count);
	list_for_each(link, &sim->conns)
		if (!at--)
			return list_entry(link, struct sim_conn, link);
	return NULL;
}

static void break_one(struct sim *sim)
{
	struct sim_conn *conn = any_conn(sim);

	if (!conn)
		return;
	sim->result.breaks++;
	sim_trace(sim, "the connection %s - %s breaks", conn->ends[0]->name, conn->ends[1]->name);
	sim_break(sim, conn);
}

static void stall(struct sim *sim)
{
	struct sim_conn *conn = any_conn(sim);

	if (!conn)
		return;
	conn->stall_ns = sim->now_ns + sim_random(sim, 2 * NS_PER_S);
	sim_trace(sim, "the connection %s - %s is slow", conn->ends[0]->name, conn->ends[1]->name);
}

static void run_undrain(struct sim *sim, void *argument, bool alive)
{
	struct sim_node *node = argument;

	if (alive && !sim->failed)
		sim_conductor_command(sim, node->name, COMMAND_UNDRAIN);
}

static void drain(struct sim *sim)
{
	struct sim_node *node = any_node(sim);

	sim_trace(sim, "%s is to drain", node->name);
	if (sim->conductor_process.frozen_ns > sim->now_ns)
		return;
	sim_conductor_command(sim, node->name, COMMAND_DRAIN);
	sim_post(sim, &sim->conductor_process, sim_random(sim, 4 * NS_PER_S), run_undrain, node);
}

static const struct {
	enum sim_fault fault;
	uint32_t permille; /* each 100 ms */
	void (*happen)(struct sim *sim);
} table[] = {
	{ SIM_FAULT_CRASH, 30, crash }, { SIM_FAULT_FREEZE, 40, freeze },
	{ SIM_FAULT_BREAK, 60, break_one }, { SIM_FAULT_STALL, 60, stall },
	{ SIM_FAULT_DRAIN, 25, drain },
};

static void run_weather(struct sim *sim, void *argument, bool alive)
{
	(void)argument;
	(void)alive;
	if (!sim->storm || sim->failed)
		return;
	for (size_t i = 0; i < ARRAY_COUNT(table); i++)
		if ((sim->config.faults & table[i].fault) && sim_chance(sim, table[i].permille))
			table[i].happen(sim);
	sim_post(sim, NULL, 100 * NS_PER_MS, run_weather, NULL);
}

void sim_faults_start(struct sim *sim)
{
	sim->storm = true;
	sim_post(sim, NULL, NS_PER_S, run_weather, NULL);
}

/* Who is dead lives again, who drains works; nobody stands still longer than the storm. */
void sim_faults_heal(struct sim *sim)
{
	sim->storm = false;
	sim_trace(sim, "the faults heal");
	for (uint32_t i = 0; i < sim->node_count; i++) {
		struct sim_node *node = &sim->nodes[i];
		if (!node->process.alive)
			sim_node_start(sim, node);
		sim_post(sim, &sim->conductor_process, NS_PER_S, run_undrain, node);
	}
	list_for_each(link, &sim->conns)
		list_entry(link, struct sim_conn, link)->stall_ns = 0;
}
