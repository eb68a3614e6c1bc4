/*
 * Random life of a small cluster: prefill, decode and coupled nodes, a conductor that dispatches,
 * resumes, releases, drains and loses them. Every token is compared with what the model says of
 * the text so far, every invariant walked after every step; at the end nothing may be left.
 *
 * Replay one seed: test_pair SEED. `--plant` breaks the quarantine rule, which must be noticed.
 */
#include <signal.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "tests/cores/world.h"

#define REQUESTS 40
#define CHOICES 4
#define CONDUCTORS 2

struct choice {
	uint32_t output[WORLD_MODEL_LEN], count;
	/* d's tokens may overtake p's first one; they wait for their position. */
	struct node_token held[WORLD_MODEL_LEN];
	bool is_held[WORLD_MODEL_LEN];
	enum node_finish finish;
	bool over;
	uint32_t epoch; /* of the dispatch that has it */
	uint64_t p, d;  /* incarnations of that dispatch */
	uint32_t p_node, d_node;
	uint32_t count_at_dispatch;
};

struct request {
	uint64_t conductor;
	uint32_t prompt[WORLD_MODEL_LEN], prompt_count;
	uint32_t choice_count, epochs;
	struct node_sampling sampling;
	int32_t priority;
	bool started, over;
	struct choice choices[CHOICES];
};

struct test {
	struct world world;
	struct request requests[REQUESTS];
	uint64_t dispatches, returned[16], tokens, finished, released;
	bool healing; /* no more faults: everything has to finish */
};

static void dispatch(struct test *t, uint32_t index, uint32_t first, uint32_t count);

static uint32_t pick_node(struct test *t, enum node_role role)
{
	for (;;) {
		uint32_t i = world_random(&t->world, WORLD_NODES);
		if (t->world.nodes[i].role & role)
			return i;
	}
}

static uint32_t context_left(const struct request *r, uint32_t output)
{
	uint32_t held = r->prompt_count + output;
	return held < WORLD_MODEL_LEN ? WORLD_MODEL_LEN - held : 0;
}

static void stops_of(const struct request *r, struct node_stops *stops)
{
	uint32_t eos = WORLD_EOS;
	node_stops_make(stops, &r->sampling, &eos, 1);
}

static uint32_t expected_token(const struct request *r, const struct choice *c, uint32_t choice)
{
	uint32_t text[WORLD_MODEL_LEN];
	struct node_stops stops;

	stops_of(r, &stops);
	memcpy(text, r->prompt, r->prompt_count * sizeof *text);
	memcpy(text + r->prompt_count, c->output, c->count * sizeof *text);
	bool early = c->count < r->sampling.min_tokens;
	return world_token(text, r->prompt_count + c->count, r->sampling.seed, choice, c->count,
			   stops.ids, early ? stops.count : 0);
}

static void on_token(struct test *t, struct request *r, const struct node_token *token)
{
	struct choice *c = &r->choices[token->choice];
	struct node_stops stops;

	CHECK(!c->over);
	CHECK(token->token == expected_token(r, c, token->choice));
	c->output[c->count++] = token->token;
	stops_of(r, &stops);
	enum node_finish finish = node_token_finish(&stops, &r->sampling, token->token,
						    token->position, context_left(r, c->count));
	CHECK(finish == token->finish);
	t->tokens++;
	if (finish != NODE_FINISH_NONE) {
		c->over = true;
		t->finished++;
	}
}

static void on_token_somewhere(struct test *t, struct request *r, const struct node_token *token)
{
	struct choice *c = &r->choices[token->choice];

	CHECK(token->position < WORLD_MODEL_LEN);
	CHECK(token->position >= c->count && !c->is_held[token->position]); /* none is repeated */
	c->held[token->position] = *token;
	c->is_held[token->position] = true;
	while (!c->over && c->count < WORLD_MODEL_LEN && c->is_held[c->count])
		on_token(t, r, &c->held[c->count]);
}

static void release_sides(struct test *t, uint32_t index, const struct choice *c, bool one,
			  uint32_t choice)
{
	struct node_ref ref = { t->requests[index].conductor, index + 1, c->epoch };
	if (t->world.nodes[c->p_node].incarnation == c->p)
		world_send_release(&t->world, c->p_node, &ref, one, choice);
	if (c->d_node != c->p_node && t->world.nodes[c->d_node].incarnation == c->d)
		world_send_release(&t->world, c->d_node, &ref, one, choice);
}

static void on_action(void *context, uint32_t node, const struct node_action *action)
{
	struct test *t = context;
	uint32_t index = (uint32_t)action->ref.request - 1;
	struct request *r = &t->requests[index];

	CHECK(index < REQUESTS);
	if (r->over || r->conductor != action->ref.conductor)
		return;
	if (action->kind == NODE_DO_TOKENS) {
		for (uint32_t i = 0; i < action->tokens.count; i++) {
			const struct node_token *token = &action->tokens.v[i];
			struct choice *c = &r->choices[token->choice];
			if (!c->over && c->epoch == action->ref.epoch)
				on_token_somewhere(t, r, token);
		}
		return;
	}
	t->returned[action->returned.reason]++;
	bool told = false;
	for (uint32_t i = 0; i < r->choice_count; i++) {
		struct choice *c = &r->choices[i];
		if (c->over || c->epoch != action->ref.epoch ||
		    (action->returned.one_choice && action->returned.choice != i))
			continue;
		/* The other side of the placement may not know. */
		if (!action->returned.one_choice && !told) {
			release_sides(t, index, c, false, 0);
			told = true;
		}
		dispatch(t, index, i, 1);
	}
}

static void dispatch(struct test *t, uint32_t index, uint32_t first, uint32_t count)
{
	struct request *r = &t->requests[index];
	struct world *w = &t->world;
	uint32_t text[WORLD_MODEL_LEN], p = pick_node(t, NODE_ROLE_PREFILL);
	uint32_t d = pick_node(t, NODE_ROLE_DECODE);
	struct choice *c = &r->choices[first];
	struct node_event event = { .kind = NODE_PREFILL };
	struct node_request *request = &event.prefill.request;

	if (w->nodes[p].role == NODE_ROLE_BOTH && world_chance(w, 700))
		d = p;
	r->epochs++;
	memcpy(text, r->prompt, r->prompt_count * sizeof *text);
	memcpy(text + r->prompt_count, c->output, c->count * sizeof *text);
	request->ref = (struct node_ref){ r->conductor, index + 1, r->epochs };
	request->sampling = r->sampling;
	request->tokens = text;
	request->prompt_count = r->prompt_count;
	request->token_count = r->prompt_count + c->count;
	request->priority = r->priority;
	for (uint32_t i = 0; i < count; i++) {
		struct choice *with = &r->choices[first + i];
		CHECK(count == 1 || with->count == 0);
		request->choices[request->choice_count++] = first + i;
		with->epoch = r->epochs;
		with->p = w->nodes[p].incarnation;
		with->d = w->nodes[d].incarnation;
		with->p_node = p;
		with->d_node = d;
		with->count_at_dispatch = with->count;
		memset(with->is_held, 0, sizeof with->is_held);
	}
	event.prefill.has_decode = request->token_count + 1 < WORLD_MODEL_LEN &&
				   r->sampling.max_tokens > c->count + 1;
	event.prefill.decode.incarnation = w->nodes[d].incarnation;
	event.prefill.dispatch = ++t->dispatches;
	world_send_prefill(w, p, &event);
}

static void start_request(struct test *t, uint32_t index)
{
	struct world *w = &t->world;
	struct request *r = &t->requests[index];

	/* A few common beginnings, so that prefixes are shared. */
	r->conductor = 1 + world_random(w, CONDUCTORS);
	r->prompt_count = 1 + world_random(w, 40);
	uint64_t family = world_random(w, 3);
	uint32_t common = world_random(w, 30);
	for (uint32_t i = 0; i < r->prompt_count; i++)
		r->prompt[i] = i < common ? (uint32_t)((i * 7 + family * 11) % WORLD_VOCAB)
					  : world_random(w, WORLD_VOCAB);
	r->choice_count = world_chance(w, 300) ? 2 + world_random(w, CHOICES - 1) : 1;
	r->sampling = (struct node_sampling){
		.seed = world_random(w, 1000),
		.max_tokens = 1 + world_random(w, 30),
		.min_tokens = world_random(w, 6),
		.ignore_eos = world_chance(w, 200),
		.stop_ids = { world_random(w, WORLD_VOCAB) },
		.stop_id_count = world_random(w, 2),
	};
	r->priority = (int32_t)world_random(w, 3);
	r->started = true;
	dispatch(t, index, 0, r->choice_count);
}

/* What the conductor does when it hears that a node is gone. */
static void node_lost(struct test *t, uint64_t incarnation)
{
	for (uint32_t index = 0; index < REQUESTS; index++) {
		struct request *r = &t->requests[index];
		for (uint32_t i = 0; i < r->choice_count && !r->over && r->started; i++) {
			struct choice *c = &r->choices[i];
			bool first_came = c->count > c->count_at_dispatch;
			/* A lost p after the first token: d has it all, or gives it back. */
			if (c->over ||
			    !(c->d == incarnation || (c->p == incarnation && !first_came)))
				continue;
			release_sides(t, index, c, true, i);
			dispatch(t, index, i, 1);
		}
	}
}

static void end_request(struct test *t, uint32_t index)
{
	struct request *r = &t->requests[index];
	for (uint32_t i = 0; i < r->choice_count; i++) {
		if (!r->choices[i].over)
			release_sides(t, index, &r->choices[i], false, 0);
	}
	r->over = true;
	t->released++;
}

static void meddle(struct test *t)
{
	struct world *w = &t->world;
	uint32_t index = world_random(w, REQUESTS), node = world_random(w, WORLD_NODES);
	struct request *r = &t->requests[index];

	if (!r->started && world_chance(w, 60))
		start_request(t, index);
	if (r->started && !r->over && world_chance(w, 1))
		end_request(t, index);
	if (r->started && !r->over && world_chance(w, 2)) {
		uint32_t choice = world_random(w, r->choice_count);
		struct choice *c = &r->choices[choice];
		if (!c->over && c->count > 0) { /* a stop string */
			c->over = true;
			release_sides(t, index, c, true, choice);
		}
	}
	if (world_random(w, 3000) == 0) {
		uint64_t lost = w->nodes[node].incarnation;
		world_crash(w, node);
		node_lost(t, lost);
	}
	if (world_random(w, 3000) == 0)
		world_tell(w, node, NODE_DRAIN, world_chance(w, 500) ? 0 : 5 * NS_PER_MS);
	if (world_random(w, 1000) == 0)
		world_tell(w, node, NODE_UNDRAIN, 0);
	if (world_random(w, 20000) == 0) {
		uint64_t conductor = 1 + world_random(w, CONDUCTORS);
		for (uint32_t i = 0; i < REQUESTS; i++) {
			if (t->requests[i].started && t->requests[i].conductor == conductor)
				t->requests[i].over = true;
		}
		/* Its frames stop with it; a request that is heard of later is another one's. */
		for (uint32_t i = 0; i < WORLD_NODES; i++)
			world_tell(w, i, NODE_CONDUCTOR_LOST, conductor);
	}
}

static bool all_over(const struct test *t)
{
	for (uint32_t index = 0; index < REQUESTS; index++) {
		const struct request *r = &t->requests[index];
		if (!r->started)
			return false;
		for (uint32_t i = 0; i < r->choice_count && !r->over; i++) {
			if (!r->choices[i].over)
				return false;
		}
	}
	return true;
}

static void tick(struct test *t)
{
	t->world.now_ns += 20 * NS_PER_MS;
	for (uint32_t i = 0; i < WORLD_NODES; i++)
		world_tell(&t->world, i, NODE_TICK, 0);
}

static void heal(struct test *t)
{
	t->healing = true;
	t->world.faults = (struct world_faults){ 0 };
	for (uint32_t i = 0; i < WORLD_NODES; i++)
		world_tell(&t->world, i, NODE_UNDRAIN, 0);
	for (uint32_t i = 0; i < REQUESTS; i++) {
		if (!t->requests[i].started)
			start_request(t, i);
	}
}

static void run(uint64_t seed, bool plant, uint64_t totals[32])
{
	static struct test test;
	struct test *t = &test;
	const enum node_role roles[WORLD_NODES] = { NODE_ROLE_PREFILL, NODE_ROLE_PREFILL,
						    NODE_ROLE_DECODE, NODE_ROLE_DECODE,
						    NODE_ROLE_BOTH };

	memset(t, 0, sizeof *t);
	world_init(&t->world, seed, roles);
	t->world.context = t;
	t->world.on_action = on_action;
	t->world.faults = (struct world_faults){ 30, 20, 20, 10 };
	t->world.reuse_quarantined = plant;
	for (uint32_t step = 0; step < 20000; step++) {
		meddle(t);
		if (!world_step(&t->world) || step % 400 == 399)
			tick(t);
		world_check(&t->world);
	}
	heal(t);
	uint32_t quiet = 0;
	for (uint32_t step = 0; !all_over(t) || !world_idle(&t->world); step++) {
		CHECK(step < 400000); /* everything must finish */
		if (!world_step(&t->world)) {
			tick(t);
			CHECK(quiet++ < 1000);
		} else if (step % 400 == 399) {
			tick(t);
		}
		world_check(&t->world);
	}
	totals[0] += t->tokens;
	totals[1] += t->finished;
	totals[2] += t->released;
	totals[3] += t->world.late_writes;
	totals[4] += t->world.resends;
	for (uint32_t i = 0; i < WORLD_NODES; i++) {
		const struct world_node *n = &t->world.nodes[i];
		struct node_load load = { 0 };
		if (n->prefill)
			prefill_load(n->prefill, &load);
		if (n->decode)
			decode_load(n->decode, &load);
		totals[5] += n->copies;
		totals[6] += n->preemptions;
		totals[7] += load.prefix_hits;
		totals[8] += n->kv.evictions;
	}
	for (uint32_t i = 1; i <= RETURNED_MODEL; i++)
		totals[8 + i] += t->returned[i];
	world_fini(&t->world);
}

int main(int argc, char **argv)
{
	static const char *const names[] = { "tokens",
					     "finished",
					     "released",
					     "late writes",
					     "resends",
					     "copies",
					     "preemptions",
					     "prefix hits",
					     "evictions",
					     "returned: refused",
					     "returned: preempted",
					     "returned: transfer",
					     "returned: peer lost",
					     "returned: drain",
					     "returned: no room",
					     "returned: timeout" };
	bool plant = argc > 1 && !strcmp(argv[1], "--plant");
	uint64_t totals[32] = { 0 }, first = 1, count = 60;

	if (argc > 1 && !plant) {
		first = strtoull(argv[1], NULL, 0);
		count = 1;
	}
	for (uint64_t seed = first; seed < first + count; seed++) {
		printf("seed %llu\n", (unsigned long long)seed);
		fflush(stdout);
		run(seed, plant, totals);
	}
	for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
		printf("%s: %llu\n", names[i], (unsigned long long)totals[i]);
		fflush(stdout);
		/* A run in which one of these never happened has not tested it. */
		if (count > 1)
			CHECK(totals[i] > 0);
	}
	return 0;
}
