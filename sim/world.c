/* Virtual time, processes that die and freeze, connections that keep order and break. */
#include "sim/private.h"

/* ---- the queue ---- */

static bool before(const struct sim_heap_item *a, const struct sim_heap_item *b)
{
	return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void heap_push(struct sim *sim, struct sim_heap_item item)
{
	if (sim->heap_count == sim->heap_capacity) {
		sim->heap_capacity = MAX(1024, 2 * sim->heap_capacity);
		sim->heap = realloc(sim->heap, sim->heap_capacity * sizeof *sim->heap);
		CHECK(sim->heap);
	}
	uint32_t at = sim->heap_count++;
	while (at && before(&item, &sim->heap[(at - 1) / 2])) {
		sim->heap[at] = sim->heap[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	sim->heap[at] = item;
}

static struct sim_heap_item heap_pop(struct sim *sim)
{
	struct sim_heap_item top = sim->heap[0], last = sim->heap[--sim->heap_count];
	uint32_t at = 0;

	for (;;) {
		uint32_t child = 2 * at + 1;
		if (child >= sim->heap_count)
			break;
		if (child + 1 < sim->heap_count && before(&sim->heap[child + 1], &sim->heap[child]))
			child++;
		if (!before(&sim->heap[child], &last))
			break;
		sim->heap[at] = sim->heap[child];
		at = child;
	}
	sim->heap[at] = last;
	return top;
}

void sim_post(struct sim *sim, struct sim_process *process, uint64_t delay_ns, sim_event_fn run,
	      void *argument)
{
	heap_push(sim, (struct sim_heap_item){
			       .at_ns = sim->now_ns + delay_ns,
			       .order = sim->order++,
			       .process = process,
			       .life = process ? process->life : 0,
			       .run = run,
			       .argument = argument,
		       });
}

bool sim_step(struct sim *sim)
{
	if (!sim->heap_count)
		return false;
	struct sim_heap_item item = heap_pop(sim);
	struct sim_process *process = item.process;
	CHECK(item.at_ns >= sim->now_ns);
	sim->now_ns = item.at_ns;
	bool alive = !process || (process->alive && process->life == item.life);
	if (alive && process && process->frozen_ns > sim->now_ns) {
		/* Its order number brings it back in its old place among the others. */
		item.at_ns = process->frozen_ns;
		heap_push(sim, item);
		return true;
	}
	sim->result.events++;
	item.run(sim, item.argument, alive);
	return true;
}

/* ---- connections ---- */

struct frame {
	struct sim_conn *conn;
	uint32_t to;
	uint16_t type;
	uint32_t bytes;
	uint8_t body[];
};

static const struct sim_conn_ops *ops_of(struct sim *sim, struct sim_conn *conn, uint32_t side)
{
	if (conn->ends[side] == &sim->conductor_process)
		return &sim_conductor_ops;
	return conn->ends[SERVER_SIDE] == &sim->conductor_process ? &sim_node_conductor_ops :
								    &sim_node_peer_ops;
}

static void conn_settle(struct sim_conn *conn)
{
	if (conn->pending || !conn->told[0] || !conn->told[1])
		return;
	list_remove(&conn->link);
	free(conn);
}

static bool end_lives(const struct sim_conn *conn, uint32_t side)
{
	return conn->ends[side]->alive && conn->ends[side]->life == conn->lives[side];
}

/* A little, now and then much more. */
static uint64_t delay(struct sim *sim, struct sim_conn *conn)
{
	uint64_t delay_ns = 50 * NS_PER_US + sim_random(sim, 400 * NS_PER_US);

	if (conn->stall_ns > sim->now_ns)
		delay_ns += conn->stall_ns - sim->now_ns;
	return delay_ns;
}

struct closing {
	struct sim_conn *conn;
	uint32_t side;
};

static void run_close(struct sim *sim, void *argument, bool alive)
{
	struct closing *closing = argument;
	struct sim_conn *conn = closing->conn;
	uint32_t side = closing->side;

	free(closing);
	conn->pending--;
	if (!conn->told[side]) {
		conn->told[side] = conn->closed[side] = true;
		if (alive && conn->context[side])
			ops_of(sim, conn, side)->on_close(sim, conn, conn->context[side]);
	}
	conn_settle(conn);
}

static void post_close(struct sim *sim, struct sim_conn *conn, uint32_t side, uint64_t delay_ns)
{
	struct closing *closing = malloc(sizeof *closing);

	CHECK(closing);
	*closing = (struct closing){ conn, side };
	conn->pending++;
	if (!end_lives(conn, side)) {
		conn->told[side] = conn->closed[side] = true;
		sim_post(sim, NULL, delay_ns, run_close, closing);
	} else {
		sim_post(sim, conn->ends[side], delay_ns, run_close, closing);
	}
}

void sim_close(struct sim *sim, struct sim_conn *conn, uint32_t side)
{
	if (conn->closed[side])
		return;
	conn->closed[side] = true;
	post_close(sim, conn, side, 0);
	/* What was sent before still arrives. */
	uint64_t after_ns = sim->now_ns + delay(sim, conn);
	after_ns = MAX(after_ns, conn->last_ns[!side] + 1);
	post_close(sim, conn, !side, after_ns - sim->now_ns);
}

void sim_break(struct sim *sim, struct sim_conn *conn)
{
	for (uint32_t side = 0; side < 2; side++) {
		if (conn->closed[side])
			continue;
		conn->closed[side] = true;
		post_close(sim, conn, side, sim_random(sim, 20 * NS_PER_MS));
	}
}

static void run_frame(struct sim *sim, void *argument, bool alive)
{
	struct frame *frame = argument;
	struct sim_conn *conn = frame->conn;

	conn->pending--;
	if (alive && !conn->closed[frame->to] && conn->context[frame->to])
		ops_of(sim, conn, frame->to)
			->on_frame(sim, conn, frame->type, frame->body, frame->bytes,
				   conn->context[frame->to]);
	free(frame);
	conn_settle(conn);
}

void sim_send(struct sim *sim, struct sim_conn *conn, uint32_t side, uint16_t type,
	      const struct buf *body)
{
	if (conn->closed[side] || conn->closed[!side])
		return;
	struct frame *frame = malloc(sizeof *frame + body->bytes);
	CHECK(frame && !body->failed);
	*frame = (struct frame){ conn, !side, type, (uint32_t)body->bytes };
	memcpy(frame->body, body->data, body->bytes);
	uint64_t at_ns = MAX(sim->now_ns + delay(sim, conn), conn->last_ns[!side] + 1);
	conn->last_ns[!side] = at_ns;
	conn->pending++;
	uint64_t sum = 0;
	for (size_t i = 0; i < body->bytes; i++)
		sum = sim_mix(sum, (uint8_t)body->data[i]);
	sim_trace(sim, "%s > %s: frame %u, %zu bytes, %016llx", conn->ends[side]->name,
		  conn->ends[!side]->name, type, body->bytes, (unsigned long long)sum);
	sim_post(sim, conn->ends[!side], at_ns - sim->now_ns, run_frame, frame);
}

static void run_ready(struct sim *sim, void *argument, bool alive)
{
	struct sim_conn *conn = argument;

	conn->pending--;
	if (alive && !conn->closed[CLIENT_SIDE])
		ops_of(sim, conn, CLIENT_SIDE)->on_ready(sim, conn, conn->context[CLIENT_SIDE]);
	conn_settle(conn);
}

static struct sim_node *node_of(struct sim *sim, struct sim_process *process)
{
	(void)sim;
	return container_of(process, struct sim_node, process);
}

static void run_accept(struct sim *sim, void *argument, bool alive)
{
	struct sim_conn *conn = argument;

	conn->pending--;
	if (alive && !conn->closed[SERVER_SIDE]) {
		conn->context[SERVER_SIDE] =
			conn->ends[SERVER_SIDE] == &sim->conductor_process ?
				sim_conductor_accept(sim, conn) :
				sim_node_accept(sim, node_of(sim, conn->ends[SERVER_SIDE]), conn);
		conn->pending++;
		sim_post(sim, conn->ends[CLIENT_SIDE], delay(sim, conn), run_ready, conn);
	}
	conn_settle(conn);
}

struct sim_conn *sim_connect(struct sim *sim, struct sim_process *from, struct sim_process *to,
			     void *context)
{
	struct sim_conn *conn = calloc(1, sizeof *conn);

	CHECK(conn);
	conn->ends[CLIENT_SIDE] = from;
	conn->ends[SERVER_SIDE] = to;
	conn->lives[CLIENT_SIDE] = from->life;
	conn->lives[SERVER_SIDE] = to->life;
	conn->context[CLIENT_SIDE] = context;
	list_push_back(&sim->conns, &conn->link);
	if (!to->alive) {
		conn->closed[SERVER_SIDE] = conn->told[SERVER_SIDE] = true;
		conn->closed[CLIENT_SIDE] = true;
		post_close(sim, conn, CLIENT_SIDE, delay(sim, conn));
		return conn;
	}
	conn->pending++;
	sim_post(sim, to, delay(sim, conn), run_accept, conn);
	return conn;
}

void sim_process_crash(struct sim *sim, struct sim_process *process)
{
	process->alive = false;
	process->life++;
	process->frozen_ns = 0;
	list_for_each_safe(link, after, &sim->conns) {
		struct sim_conn *conn = list_entry(link, struct sim_conn, link);
		for (uint32_t side = 0; side < 2; side++) {
			if (conn->ends[side] != process || conn->told[side])
				continue;
			conn->closed[side] = conn->told[side] = true;
			conn->context[side] = NULL;
			if (conn->closed[!side])
				continue;
			/* Half of the time what it had sent still arrives. */
			uint64_t wait_ns = sim_random(sim, 20 * NS_PER_MS);
			if (sim_chance(sim, 500) && conn->last_ns[!side] > sim->now_ns)
				wait_ns += conn->last_ns[!side] - sim->now_ns;
			else
				conn->closed[!side] = true;
			post_close(sim, conn, !side, wait_ns);
		}
	}
}
