/*
 * Walks every cell of docs/request-states.md: brings a request into the state, lets the event
 * happen, and compares what the core does with the row. A cell without a row fails, and so does
 * a row without a cell. `test_states --print` prints the rows as the core has them.
 */
#include "conductor/core/test_util.h"

#include <errno.h>
#include <stdlib.h>

#define P0 0
#define D0 2

struct named_step {
	const char *name;
	void (*run)(struct world *world);
};

/* ---- states ---- */

static void state_sent(struct world *world)
{
	submit(world, 1, 100, 1, 8);
}

static void state_prefilled(struct world *world)
{
	state_sent(world);
	tokens(world, P0, 1, 1, 0, 0, 1, CONDUCTOR_GOES_ON);
}

static void state_decoding(struct world *world)
{
	state_prefilled(world);
	tokens(world, D0, 1, 1, 0, 1, 1, CONDUCTOR_GOES_ON);
}

/* d's first token overtook p's. */
static void state_held(struct world *world)
{
	state_sent(world);
	tokens(world, D0, 1, 1, 0, 1, 1, CONDUCTOR_GOES_ON);
}

/* The only decode node has no room: it is asked again at the next tick. */
static void state_refused(struct world *world)
{
	report(world, 3, ROLE_DECODE, 3, 0, 0, 0);
	state_sent(world);
	returned(world, P0, 1, 1, CONDUCTOR_CHOICE_ALL, CAUSE_REFUSED);
}

/* There is no decode node that takes work. */
static void state_waiting(struct world *world)
{
	report(world, 3, ROLE_DECODE, 3, 0, 0, 0);
	state_sent(world);
	report(world, D0, ROLE_DECODE, 3, 0, 0, 0);
	returned(world, D0, 1, 1, CONDUCTOR_CHOICE_ALL, CAUSE_DRAINED);
}

static void state_over(struct world *world)
{
	state_decoding(world);
	tokens(world, D0, 1, 1, 0, 2, 1, CONDUCTOR_STOP);
}

static const struct named_step states[] = {
	{ "sent", state_sent },		{ "prefilled", state_prefilled },
	{ "held", state_held },		{ "decoding", state_decoding },
	{ "refused", state_refused },	{ "waiting", state_waiting },
	{ "over", state_over },
};

/* ---- events ---- */

static uint32_t d_next(struct world *world)
{
	const char *state = conductor_dispatch_state(world->core, 1, 1);

	return state && !strcmp(state, "decoding") ? 2 : 1;
}

static void event_first(struct world *world)
{
	tokens(world, P0, 1, 1, 0, 0, 1, CONDUCTOR_GOES_ON);
}

static void event_first_ends(struct world *world)
{
	tokens(world, P0, 1, 1, 0, 0, 1, CONDUCTOR_STOP);
}

static void event_token(struct world *world)
{
	tokens(world, D0, 1, 1, 0, d_next(world), 1, CONDUCTOR_GOES_ON);
}

static void event_token_ends(struct world *world)
{
	tokens(world, D0, 1, 1, 0, d_next(world), 1, CONDUCTOR_LENGTH);
}

static void event_token_gap(struct world *world)
{
	tokens(world, D0, 1, 1, 0, d_next(world) + 1, 1, CONDUCTOR_GOES_ON);
}

static void event_token_stranger(struct world *world)
{
	tokens(world, 3, 1, 1, 0, d_next(world), 1, CONDUCTOR_GOES_ON);
}

static void event_token_epoch(struct world *world)
{
	tokens(world, D0, 1, 9, 0, 1, 1, CONDUCTOR_GOES_ON);
}

static void event_refused(struct world *world)
{
	returned(world, P0, 1, 1, CONDUCTOR_CHOICE_ALL, CAUSE_REFUSED);
}

static void event_returned_p(struct world *world)
{
	returned(world, P0, 1, 1, CONDUCTOR_CHOICE_ALL, CAUSE_PEER_LOST);
}

static void event_preempted(struct world *world)
{
	returned(world, D0, 1, 1, 0, CAUSE_PREEMPTED);
}

static void event_drained(struct world *world)
{
	returned(world, D0, 1, 1, CONDUCTOR_CHOICE_ALL, CAUSE_DRAINED);
}

static void event_stopped(struct world *world)
{
	world_step(world, (struct conductor_event){ .kind = EVENT_CHOICE_STOPPED, .request = 1 });
}

static void event_cancelled(struct world *world)
{
	cancel(world, 1);
}

static void event_p_lost(struct world *world)
{
	lost(world, P0);
}

static void event_d_lost(struct world *world)
{
	lost(world, D0);
}

static void event_p_lease(struct world *world)
{
	pass(world, 3200, 2 + 4 + 8);
}

static void event_d_lease(struct world *world)
{
	pass(world, 3200, 1 + 2 + 8);
}

static void event_p_again(struct world *world)
{
	join(world, 4, "p0", ROLE_PREFILL, 500);
}

static void event_d_again(struct world *world)
{
	join(world, 4, "d0", ROLE_DECODE, 500);
}

static void event_drain_d(struct world *world)
{
	world_step(world, (struct conductor_event){ .kind = EVENT_COMMAND,
						    .node = world->nodes[D0],
						    .command = COMMAND_DRAIN });
}

static void event_report(struct world *world)
{
	report(world, P0, ROLE_PREFILL, 2, 1, 0, 0);
}

static void event_measured(struct world *world)
{
	struct conductor_measured measured = { .prefill_us = 1000 };

	world_step(world, (struct conductor_event){ .kind = EVENT_MEASURED,
						    .node = world->nodes[P0],
						    .ref = { INCARNATION, 1, 1 },
						    .measured = &measured });
}

static void event_submitted_again(struct world *world)
{
	submit(world, 1, 100, 1, 8);
}

static void event_tick(struct world *world)
{
	world->now_ns += 50 * NS_PER_MS;
	world_step(world, (struct conductor_event){ .kind = EVENT_TICK });
}

static void event_resume_wait(struct world *world)
{
	pass(world, 10200, 15);
}

static const struct named_step events[] = {
	{ "first token from p", event_first },
	{ "first token from p, the last one", event_first_ends },
	{ "next token from d", event_token },
	{ "last token from d", event_token_ends },
	{ "token from d past a gap", event_token_gap },
	{ "token from another node", event_token_stranger },
	{ "token of another epoch", event_token_epoch },
	{ "returned by p: d refused", event_refused },
	{ "returned by p: lost d", event_returned_p },
	{ "returned by d: preempted", event_preempted },
	{ "returned by d: drained", event_drained },
	{ "stop string matched", event_stopped },
	{ "client gone", event_cancelled },
	{ "connection of p lost", event_p_lost },
	{ "connection of d lost", event_d_lost },
	{ "lease of p over", event_p_lease },
	{ "lease of d over", event_d_lease },
	{ "newer p joins", event_p_again },
	{ "newer d joins", event_d_again },
	{ "drain command for d", event_drain_d },
	{ "report of p", event_report },
	{ "measurements of p", event_measured },
	{ "submitted again", event_submitted_again },
	{ "tick", event_tick },
	{ "10 s pass", event_resume_wait },
};

/* ---- outcome in words ---- */

struct words {
	const char *line, *word;
};

/* Lines of world_action() to the words of the table; the first prefix that fits. */
static const struct words vocabulary[] = {
	{ "keep ", "keep" },
	{ "deliver ", "deliver" },
	{ "release r1.1 p0 ", "release p" },
	{ "release r1.1 d0 ", "release d" },
	{ "release ", "release sender" },
	{ "prefill ", "place again" },
	{ "fail ", "fail" },
	{ "end ", "end" },
	{ "command ", "command" },
	{ "admit ", "admit" },
	{ "close ", "close old" },
	{ "fence ", "fence" },
};

static void outcome(struct world *world, char *text, size_t bytes)
{
	char *line = world->lines;
	const char *last = "";

	text[0] = '\0';
	if (world->result == -ESTALE)
		strcat(text, "refuse");
	else if (world->result == -EPROTO)
		strcat(text, "refuse");
	else if (world->result < 0)
		strcat(text, "error");
	while (*line) {
		const char *word = "?";
		for (size_t i = 0; i < sizeof vocabulary / sizeof vocabulary[0]; i++) {
			if (strncmp(line, vocabulary[i].line, strlen(vocabulary[i].line)))
				continue;
			word = vocabulary[i].word;
			break;
		}
		if (strcmp(word, last)) {
			if (text[0])
				strncat(text, ", ", bytes - strlen(text) - 1);
			strncat(text, word, bytes - strlen(text) - 1);
		}
		last = word;
		line = strchr(line, '\n') + 1;
	}
	if (!text[0])
		strcpy(text, "-");
}

static const char *state_after(struct world *world, char *text)
{
	struct conductor_trace_view view;

	assert_int_equal(conductor_trace_find(world->core, "cmpl-1", &view), 0);
	for (uint32_t epoch = view.dispatches; epoch > 0; epoch--) {
		const char *state = conductor_dispatch_state(world->core, 1, epoch);
		if (!state)
			continue;
		sprintf(text, epoch == 1 ? "%s" : "%s, epoch %u", state, epoch);
		return text;
	}
	return view.total_us || !strcmp(view.state, "finished") || !strcmp(view.state, "failed") ||
			       !strcmp(view.state, "cancelled") ?
		       "over" :
		       "waiting";
}

static void cell(const struct named_step *state, const struct named_step *event, char *row,
		 size_t bytes)
{
	struct world world;
	char what[512], after[64];

	world_2p2d(&world, "least-loaded");
	state->run(&world);
	quiet(&world);
	world.result = 0;
	event->run(&world);
	outcome(&world, what, sizeof what);
	snprintf(row, bytes, "| %s | %s | %s | %s |", state->name, event->name, what,
		 state_after(&world, after));
	/* Whatever happened, it can still be ended, and then nothing is left. */
	cancel(&world, 1);
	struct conductor_counters counters;
	conductor_counters(world.core, &counters);
	assert_int_equal(counters.requests_open, 0);
	assert_int_equal(counters.dispatches_live, 0);
	world_close(&world);
}

static char *doc_read(void)
{
	FILE *file = fopen(REQUEST_STATES_DOC, "r");
	char *text;

	assert_non_null(file);
	text = calloc(1, 1 << 18);
	assert_true(fread(text, 1, (1 << 18) - 1, file) > 0);
	fclose(file);
	return text;
}

static void every_cell_is_listed(void **unused)
{
	char *doc = doc_read(), row[1024];
	uint32_t rows = 0, missing = 0;

	(void)unused;
	for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
		for (size_t j = 0; j < sizeof events / sizeof events[0]; j++) {
			cell(&states[i], &events[j], row, sizeof row);
			strcat(row, "\n");
			if (strstr(doc, row))
				continue;
			print_error("not in docs/request-states.md: %s", row);
			missing++;
		}
	}
	assert_int_equal(missing, 0);
	for (const char *line = doc; (line = strstr(line, "\n| ")); line++)
		rows++;
	/* The table's head is a line of that form too. */
	assert_int_equal(rows, sizeof states / sizeof states[0] * (sizeof events / sizeof events[0]) +
				       REQUEST_STATES_OTHER_ROWS);
	free(doc);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(every_cell_is_listed) };
	char row[1024];

	if (argc < 2 || strcmp(argv[1], "--print"))
		return cmocka_run_group_tests(tests, NULL, NULL);
	for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
		for (size_t j = 0; j < sizeof events / sizeof events[0]; j++) {
			cell(&states[i], &events[j], row, sizeof row);
			puts(row);
		}
	}
	return 0;
}
