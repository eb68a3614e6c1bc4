/* The clients, and the oracle that knows what each of them has to get. */
#include "sim/private.h"

#include "kv/key.h"

static const uint32_t prefix_lengths[] = { 0, 40, 70, 100 };

static void fill_prompt(struct sim *sim, struct sim_client *client)
{
	uint32_t prefix = (uint32_t)sim_random(sim, ARRAY_COUNT(prefix_lengths));
	uint32_t own = 1 + (uint32_t)sim_random(sim, 40);
	uint64_t state = prefix + 1;

	client->prompt_count = prefix_lengths[prefix] + own;
	client->prompt = malloc(client->prompt_count * sizeof *client->prompt);
	CHECK(client->prompt);
	for (uint32_t i = 0; i < prefix_lengths[prefix]; i++)
		client->prompt[i] = 1 + (uint32_t)(rand_next(&state) % (SIM_VOCAB - 1));
	for (uint32_t i = prefix_lengths[prefix]; i < client->prompt_count; i++)
		client->prompt[i] = 1 + (uint32_t)sim_random(sim, SIM_VOCAB - 1);
}

static void oracle_feed(struct sim_client_choice *choice, uint32_t token)
{
	for (uint32_t layer = 0; layer < SIM_LAYERS; layer++)
		choice->cells[layer] = sim_cell(choice->cells[layer], token, layer);
}

static void client_make(struct sim *sim, struct sim_client *client, uint64_t id)
{
	uint8_t format[32] = { 's', 'i', 'm' };

	client->sim = sim;
	client->id = id;
	snprintf(client->name, sizeof client->name, "cmpl-%u", (unsigned)id);
	fill_prompt(sim, client);
	client->choice_count = sim_chance(sim, 300) ? 2 + (uint32_t)sim_random(sim, 2) : 1;
	client->max_tokens = sim_chance(sim, 100) ? 1 : 2 + (uint32_t)sim_random(sim, 48);
	client->min_tokens = sim_chance(sim, 200) ? (uint32_t)sim_random(sim, client->max_tokens) : 0;
	client->ignore_eos = sim_chance(sim, 200);
	client->seed = rand_next(&sim->random);
	kv_key_root(format, "", "", &client->root);
	if ((sim->config.faults & SIM_FAULT_CANCEL) && sim_chance(sim, 120))
		client->cancel_ns = 1 + sim_random(sim, 2 * NS_PER_S);
	for (uint32_t c = 0; c < client->choice_count; c++) {
		struct sim_client_choice *choice = &client->choices[c];
		choice->kept = calloc(client->max_tokens, sizeof *choice->kept);
		CHECK(choice->kept);
		for (uint32_t i = 0; i < client->prompt_count; i++)
			oracle_feed(choice, client->prompt[i]);
		if (sim_chance(sim, 100))
			choice->stop_after = 1 + (uint32_t)sim_random(sim, client->max_tokens);
	}
}

struct sim_client *sim_client_find(struct sim *sim, uint64_t id)
{
	return id >= 1 && id <= sim->client_count ? &sim->clients[id - 1] : NULL;
}

static void client_over(struct sim *sim, struct sim_client *client)
{
	for (uint32_t c = 0; c < client->choice_count; c++)
		if (!client->choices[c].done && !client->cancelled && !client->failed)
			sim_fail(sim, "%s ended, its choice %u has not", client->name, c);
}

/* ---- what the client does ---- */

static void run_cancel(struct sim *sim, void *argument, bool alive)
{
	struct sim_client *client = argument;

	if (!alive || client->ended || sim->failed)
		return;
	client->cancelled = true;
	sim->result.cancelled++;
	sim_trace(sim, "%s is cancelled", client->name);
	sim_conductor_step(sim, &(struct conductor_event){ .kind = EVENT_CANCELLED,
							   .request = client->id });
}

static void run_submit(struct sim *sim, void *argument, bool alive)
{
	struct sim_client *client = argument;
	struct conductor_submit submit = {
		.name = client->name,
		.prompt_count = client->prompt_count,
		.choice_count = client->choice_count,
		.max_tokens = client->max_tokens,
		.arrival_ns = sim->now_ns,
	};
	struct conductor_event event = { .kind = EVENT_SUBMITTED,
					 .request = client->id,
					 .submit = &submit };

	if (!alive || sim->failed)
		return;
	client->submitted = true;
	sim_trace(sim, "%s arrives: %u prompt tokens, %u choices", client->name, client->prompt_count,
		  client->choice_count);
	sim_conductor_step(sim, &event);
	if (event.result < 0)
		sim_fail(sim, "%s was not taken", client->name);
	if (client->cancel_ns)
		sim_post(sim, &sim->conductor_process, client->cancel_ns, run_cancel, client);
}

struct stop {
	struct sim_client *client;
	uint32_t choice;
};

static void run_stop(struct sim *sim, void *argument, bool alive)
{
	struct stop stop = *(struct stop *)argument;

	free(argument);
	if (!alive || sim->failed || stop.client->ended)
		return;
	sim_conductor_step(sim, &(struct conductor_event){ .kind = EVENT_CHOICE_STOPPED,
							   .request = stop.client->id,
							   .choice = stop.choice });
}

static void maybe_stop(struct sim *sim, struct sim_client *client, uint32_t index)
{
	struct sim_client_choice *choice = &client->choices[index];

	if (!choice->stop_after || choice->count < choice->stop_after || choice->done)
		return;
	choice->done = choice->stopped = true;
	struct stop *stop = malloc(sizeof *stop);
	CHECK(stop);
	*stop = (struct stop){ client, index };
	sim_post(sim, &sim->conductor_process, sim_random(sim, 2 * NS_PER_MS), run_stop, stop);
}

/* ---- what it gets ---- */

/* V2: the next token of this choice, whatever happened to whom. */
static bool token_right(struct sim *sim, struct sim_client *client, uint32_t index,
			uint32_t position, uint32_t token)
{
	struct sim_client_choice *choice = &client->choices[index];
	bool may_end = position >= client->min_tokens && !client->ignore_eos;
	uint32_t expected = sim_token(choice->cells, client->seed, index, position, may_end);

	if (token != expected) {
		sim_fail(sim, "%s, choice %u: token %u at position %u, a run without faults has %u",
			 client->name, index, token, position, expected);
		return false;
	}
	oracle_feed(choice, token);
	return true;
}

static void finish_check(struct sim *sim, struct sim_client *client,
			 const struct conductor_action *action)
{
	struct sim_client_choice *choice = &client->choices[action->choice];
	uint32_t last = choice->count ? choice->kept[choice->count - 1] : 1;
	bool ended = last == 0 && !client->ignore_eos;
	enum conductor_finish right = ended			      ? CONDUCTOR_STOP :
				      choice->count == client->max_tokens ? CONDUCTOR_LENGTH :
									    CONDUCTOR_GOES_ON;

	if (action->finish != right)
		sim_fail(sim, "%s, choice %u: finish %d after %u tokens, it should be %d",
			 client->name, action->choice, (int)action->finish, choice->count, (int)right);
}

void sim_client_tokens(struct sim *sim, const struct conductor_action *action)
{
	struct sim_client *client = sim_client_find(sim, action->request);
	struct sim_client_choice *choice = &client->choices[action->choice];

	if (client->ended || client->cancelled) {
		sim_fail(sim, "%s gets tokens after its end", client->name);
		return;
	}
	if (choice->stopped)
		return; /* the stop is on its way */
	if (choice->done || action->position != choice->count) {
		sim_fail(sim, "%s, choice %u: tokens at %u after %u", client->name, action->choice,
			 action->position, choice->count);
		return;
	}
	for (uint32_t i = 0; i < action->count; i++) {
		uint32_t position = action->position + i;
		if (!token_right(sim, client, action->choice, position, choice->kept[position]))
			return;
	}
	choice->count += action->count;
	sim->result.tokens += action->count;
	sim_trace(sim, "%s/%u has %u tokens", client->name, action->choice, choice->count);
	finish_check(sim, client, action);
	if (action->finish)
		choice->done = true;
	maybe_stop(sim, client, action->choice);
}

void sim_client_failed(struct sim *sim, const struct conductor_action *action)
{
	struct sim_client *client = sim_client_find(sim, action->request);

	sim_trace(sim, "%s fails: %s", client->name, action->text);
	client->failed = true;
	sim->result.failed++;
}

void sim_client_ended(struct sim *sim, uint64_t id)
{
	struct sim_client *client = sim_client_find(sim, id);

	if (client->ended) {
		sim_fail(sim, "%s ends twice", client->name);
		return;
	}
	client->ended = true;
	if (!client->failed && !client->cancelled)
		sim->result.finished++;
	client_over(sim, client);
	sim_trace(sim, "%s is over", client->name);
}

bool sim_clients_done(const struct sim *sim)
{
	for (uint32_t i = 0; i < sim->client_count; i++)
		if (!sim->clients[i].ended)
			return false;
	return true;
}

void sim_clients_start(struct sim *sim)
{
	sim->client_count = sim->config.request_count;
	sim->clients = calloc(sim->client_count, sizeof *sim->clients);
	CHECK(sim->clients);
	for (uint32_t i = 0; i < sim->client_count; i++) {
		client_make(sim, &sim->clients[i], i + 1);
		sim_post(sim, &sim->conductor_process,
			 NS_PER_S / 2 + sim_random(sim, sim->config.storm_ns), run_submit,
			 &sim->clients[i]);
	}
}

void sim_clients_free(struct sim *sim)
{
	for (uint32_t i = 0; i < sim->client_count; i++) {
		free(sim->clients[i].prompt);
		for (uint32_t c = 0; c < sim->clients[i].choice_count; c++)
			free(sim->clients[i].choices[c].kept);
	}
	free(sim->clients);
}
