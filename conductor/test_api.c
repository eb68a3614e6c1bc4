/*
 * The client API over real sockets, with a scripted core (test_fake_core.c) in place of nodes.
 * `test_api serve MODEL` leaves it running, for a look with curl or for black-box cases.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "conductor/api_params.h"
#include "conductor/front.h"
#include "conductor/test_client.h"
#include "conductor/test_fake_core.h"
#include "conductor/text.h"

#define TEXT                                                                                     \
	"The old lighthouse stood at the edge of the bay, and every evening its keeper climbed "  \
	"the narrow stairs to light the lamp. Gr\xc3\xbc\xc3\x9f" "e, \xe4\xbd\xa0\xe5\xa5\xbd "  \
	"\xf0\x9f\xa6\x99! \"Ships\" came \\ and went.\n\tNobody knew how long he had been there. "

static struct {
	struct model *model;
	struct chat_template *chat_template;
	struct front_model front_model;
	struct fronts_config config;
	struct bridge bridge;
	struct metrics *metrics;
	struct fake_core *core;
	struct fronts *fronts;
	uint16_t port, admin_port;
} world;

static const char chatml[] =
	"{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}"
	"{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";

static void world_start(const char *path, const char *key, uint32_t requests_max, uint16_t port)
{
	static const char *keys[1];
	char why[256];
	memset(&world, 0, sizeof world);
	if (model_open(path, MODEL_NO_WEIGHTS, &world.model, why, sizeof why)) {
		fprintf(stderr, "%s: %s\n", path, why);
		exit(1);
	}
	const char *source = model_chat_template(world.model);
	CHECK(!chat_template_compile(source ? source : chatml, &world.chat_template, why, sizeof why));
	world.front_model = (struct front_model){
		.names = { "test-model", "alias" },
		.name_count = 2,
		.root = path,
		.model = world.model,
		.chat_template = world.chat_template,
		.max_model_len = model_config(world.model)->context_tokens,
		.created_s = 1700000000,
	};
	keys[0] = key;
	world.config = (struct fronts_config){
		.host = "127.0.0.1",
		.admin_host = "127.0.0.1",
		.port = port,
		.thread_count = 2,
		.api_keys = keys,
		.api_key_count = key ? 1 : 0,
		.requests_max = requests_max,
		.models = &world.front_model,
		.model_count = 1,
	};
	world.metrics = metrics_new();
	CHECK(!bridge_init(&world.bridge, 2, world.metrics));
	atomic_store(&world.bridge.ready, true);
	world.core = fake_core_start(&world.bridge, world.model, TEXT, 1);
	CHECK(!fronts_start(&world.config, &world.bridge, &world.fronts, &world.port,
			    &world.admin_port));
}

static void world_stop(void)
{
	fronts_drain(world.fronts);
	fronts_abort(world.fronts);
	for (int i = 0; i < 200 && (fronts_open(world.fronts) || world.bridge.requests_open); i++)
		usleep(5000);
	CHECK(!fronts_open(world.fronts) && !world.bridge.requests_open);
	CHECK(!fronts_stop(world.fronts));
	fake_core_stop(world.core);
	bridge_fini(&world.bridge);
	metrics_free(world.metrics);
	chat_template_free(world.chat_template);
	model_close(world.model);
}

static int setup(void **state)
{
	world_start(TINY_MODEL, NULL, 100, 0);
	return 0;
}

static int teardown(void **state)
{
	world_stop();
	return 0;
}

static struct answer ask(const char *method, const char *path, const char *extra, const char *body)
{
	int fd = client_dial(world.port);
	client_send(fd, method, path, extra, body);
	return client_receive(fd);
}

static struct answer ask_admin(const char *method, const char *path)
{
	int fd = client_dial(world.admin_port);
	client_send(fd, method, path, NULL, NULL);
	return client_receive(fd);
}

#define CHAT "/v1/chat/completions"
#define COMPLETION "/v1/completions"
#define HELLO "\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]"

/* ---- tests ---- */

static void test_shapes(void **state)
{
	struct answer a = ask("POST", CHAT, "X-Request-Id: abc-1\r\n",
			      "{\"model\":\"alias\"," HELLO ",\"max_tokens\":9,\"seed\":-1,\"user\":\"u\","
			      "\"min_p\":0.5,\"top_k\":-1,\"nobody_knows\":{\"a\":1},\"cache_salt\":\"s\"}");
	assert_int_equal(a.status, 200);
	assert_string_equal(text_at(a.json, "id"), "chatcmpl-abc-1");
	assert_string_equal(text_at(a.json, "object"), "chat.completion");
	assert_string_equal(text_at(a.json, "model"), "test-model");
	assert_string_equal(text_at(a.json, "choices.0.message.role"), "assistant");
	assert_string_equal(text_at(a.json, "choices.0.finish_reason"), "length");
	assert_true(json_is_null(at(a.json, "choices.0.logprobs")));
	assert_int_equal(json_integer_value(at(a.json, "usage.completion_tokens")), 9);
	json_int_t prompt = json_integer_value(at(a.json, "usage.prompt_tokens"));
	assert_int_equal(json_integer_value(at(a.json, "usage.total_tokens")), prompt + 9);
	assert_int_equal(json_integer_value(at(a.json, "usage.prompt_tokens_details.cached_tokens")),
			 prompt / 2);
	assert_non_null(strstr(a.text, "X-Request-Id: abc-1\r\n"));
	answer_free(&a);
	struct request_spec spec = fake_core_last(world.core);
	assert_int_equal(spec.max_tokens, 9);
	assert_true(spec.seed == UINT64_MAX);
	assert_int_equal(spec.top_k, 0);
	assert_true(spec.min_p == 0.5f);
	assert_int_equal(spec.choice_count, 1);

	a = ask("POST", COMPLETION, NULL, "{\"prompt\":\"Hi\",\"max_tokens\":null,\"stop\":null}");
	assert_int_equal(a.status, 200);
	assert_int_equal(strncmp(text_at(a.json, "id"), "cmpl-", 5), 0);
	assert_string_equal(text_at(a.json, "object"), "text_completion");
	assert_int_equal(json_integer_value(at(a.json, "usage.completion_tokens")), 16);
	answer_free(&a);

	/* Without max_tokens chat may use the rest of the context. */
	a = ask("POST", CHAT, NULL, "{" HELLO "}");
	assert_int_equal(json_integer_value(at(a.json, "usage.total_tokens")),
			 world.front_model.max_model_len);
	answer_free(&a);
}

static void test_prompts(void **state)
{
	struct answer a = ask("POST", COMPLETION, NULL,
			      "{\"prompt\":[\"one\",\"a longer one\"],\"n\":2,\"max_tokens\":4,"
			      "\"temperature\":1,\"seed\":3}");
	assert_int_equal(a.status, 200);
	assert_int_equal(json_array_size(at(a.json, "choices")), 4);
	for (int i = 0; i < 4; i++) {
		char path[32];
		snprintf(path, sizeof path, "choices.%d.index", i);
		assert_int_equal(json_integer_value(at(a.json, path)), i);
	}
	assert_int_equal(json_integer_value(at(a.json, "usage.completion_tokens")), 16);
	char *first = strdup(text_at(a.json, "choices.2.text"));
	answer_free(&a);
	a = ask("POST", COMPLETION, NULL,
		"{\"prompt\":\"a longer one\",\"max_tokens\":4,\"temperature\":1,\"seed\":3}");
	assert_string_equal(text_at(a.json, "choices.0.text"), first);
	free(first);
	answer_free(&a);
	a = ask("POST", COMPLETION, NULL, "{\"prompt\":[1,2,3],\"max_tokens\":2}");
	assert_int_equal(json_integer_value(at(a.json, "usage.prompt_tokens")), 3);
	answer_free(&a);
	a = ask("POST", COMPLETION, NULL, "{\"prompt\":[[1,2,3],[4]],\"max_tokens\":2}");
	assert_int_equal(json_integer_value(at(a.json, "usage.prompt_tokens")), 4);
	assert_int_equal(json_array_size(at(a.json, "choices")), 2);
	answer_free(&a);
	/* U+0000 does not cut a prompt short. */
	a = ask("POST", COMPLETION, NULL, "{\"prompt\":\"ab\\u0000cd\",\"max_tokens\":1}");
	assert_int_equal(json_integer_value(at(a.json, "usage.prompt_tokens")), 5);
	answer_free(&a);
	a = ask("POST", CHAT, NULL,
		"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
		"{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"assistant\"},"
		"{\"role\":\"user\",\"content\":\"\"}],\"max_tokens\":1}");
	assert_int_equal(a.status, 200);
	answer_free(&a);
}

#define C(fields) "{" HELLO ",\"max_tokens\":2," fields "}"
#define T(fields) "{\"prompt\":\"Hi\",\"max_tokens\":2," fields "}"

static const struct refusal {
	const char *path, *body;
	int status;
	const char *param; /* NULL: none */
} refusals[] = {
	{ CHAT, "", 400, NULL },
	{ CHAT, "[1]", 400, NULL },
	{ CHAT, "{\"a\":1,\"a\":2}", 400, NULL },
	{ CHAT, "{\"a\":NaN}", 400, NULL },
	{ CHAT, "{\"a\":\"\\ud800\"}", 400, NULL },
	{ CHAT, "{\"a\":\"\xff\"}", 400, NULL },
	{ CHAT, "{\"a\":1} x", 400, NULL },
	{ CHAT, C("\"model\":\"nobody\""), 404, "model" },
	{ CHAT, C("\"model\":5"), 400, "model" },
	{ CHAT, "{\"max_tokens\":2}", 400, "messages" },
	{ CHAT, "{\"messages\":[]}", 400, "messages" },
	{ CHAT, "{\"messages\":[{\"role\":5,\"content\":\"a\"}]}", 400, "messages" },
	{ CHAT, "{\"messages\":[{\"role\":\"user\"}]}", 400, "messages" },
	{ CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", 400,
	  "messages" },
	{ CHAT, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]}", 400, "messages" },
	{ COMPLETION, "{}", 400, "prompt" },
	{ COMPLETION, "{\"prompt\":[]}", 400, "prompt" },
	{ COMPLETION, "{\"prompt\":\"\"}", 400, "prompt" },
	{ COMPLETION, "{\"prompt\":[[]]}", 400, "prompt" },
	{ COMPLETION, "{\"prompt\":[1,\"a\"]}", 400, "prompt" },
	{ COMPLETION, "{\"prompt\":[\"a\",[1]]}", 400, "prompt" },
	{ COMPLETION, "{\"prompt\":[-1]}", 400, "prompt" },
	{ COMPLETION, "{\"prompt\":[320]}", 400, "prompt" },
	{ COMPLETION, "{\"prompt\":[99999999999999999999]}", 400, "prompt" },
	{ CHAT, C("\"temperature\":-0.1"), 400, "temperature" },
	{ CHAT, C("\"temperature\":\"hot\""), 400, "temperature" },
	{ CHAT, C("\"top_p\":1.5"), 400, "top_p" },
	{ CHAT, C("\"min_p\":-1"), 400, "min_p" },
	{ CHAT, C("\"top_k\":-2"), 400, "top_k" },
	{ CHAT, C("\"top_k\":1.5"), 400, "top_k" },
	{ CHAT, C("\"seed\":1.5"), 400, "seed" },
	{ CHAT, C("\"seed\":18446744073709551615"), 400, "seed" },
	{ CHAT, C("\"n\":0"), 400, "n" },
	{ CHAT, C("\"n\":129"), 400, "n" },
	{ CHAT, C("\"stop\":5"), 400, "stop" },
	{ CHAT, C("\"stop\":\"\""), 400, "stop" },
	{ CHAT, C("\"stop\":[\"a\",1]"), 400, "stop" },
	{ CHAT, C("\"stop_token_ids\":[320]"), 400, "stop_token_ids" },
	{ CHAT, C("\"stop_token_ids\":\"x\""), 400, "stop_token_ids" },
	{ CHAT, C("\"ignore_eos\":1"), 400, "ignore_eos" },
	{ CHAT, C("\"min_tokens\":3"), 400, "min_tokens" },
	{ CHAT, C("\"logprobs\":1"), 400, "logprobs" },
	{ CHAT, C("\"logprobs\":true,\"top_logprobs\":21"), 400, "top_logprobs" },
	{ CHAT, C("\"top_logprobs\":2"), 400, "top_logprobs" },
	{ COMPLETION, T("\"logprobs\":true"), 400, "logprobs" },
	{ COMPLETION, T("\"logprobs\":21"), 400, "logprobs" },
	{ CHAT, C("\"stream\":\"yes\""), 400, "stream" },
	{ CHAT, C("\"stream\":true,\"stream_options\":5"), 400, "stream_options" },
	{ CHAT, C("\"stream\":true,\"stream_options\":{\"include_usage\":1}"), 400, "stream_options" },
	{ CHAT, C("\"stream_options\":{\"include_usage\":true}"), 400, "stream_options" },
	{ CHAT, C("\"cache_salt\":\"\""), 400, "cache_salt" },
	{ CHAT, C("\"cache_salt\":\"a\\u0000b\""), 400, "cache_salt" },
	{ CHAT, C("\"priority\":\"high\""), 400, "priority" },
	{ CHAT, C("\"user\":5"), 400, "user" },
	{ CHAT, C("\"chat_template_kwargs\":{\"messages\":[]}"), 400, "chat_template_kwargs" },
	{ COMPLETION, "{\"prompt\":\"Hi\",\"max_tokens\":0}", 400, "max_tokens" },
	{ COMPLETION, "{\"prompt\":\"Hi\",\"max_tokens\":true}", 400, "max_tokens" },
	{ COMPLETION, "{\"prompt\":\"Hi\",\"max_tokens\":9223372036854775807}", 400, "max_tokens" },
	{ COMPLETION, "{\"prompt\":\"Hi\",\"max_tokens\":600}", 400, "max_tokens" },
	{ CHAT, "{" HELLO ",\"max_completion_tokens\":600}", 400, "max_completion_tokens" },
	/* Known, not built, not neutral. */
	{ CHAT, C("\"presence_penalty\":1"), 400, "presence_penalty" },
	{ CHAT, C("\"presence_penalty\":3"), 400, "presence_penalty" },
	{ CHAT, C("\"frequency_penalty\":-0.5"), 400, "frequency_penalty" },
	{ CHAT, C("\"repetition_penalty\":1.1"), 400, "repetition_penalty" },
	{ CHAT, C("\"repetition_penalty\":0"), 400, "repetition_penalty" },
	{ CHAT, C("\"logit_bias\":{\"1\":5}"), 400, "logit_bias" },
	{ CHAT, C("\"logit_bias\":{\"x\":5}"), 400, "logit_bias" },
	{ COMPLETION, T("\"echo\":true"), 400, "echo" },
	{ COMPLETION, T("\"best_of\":2"), 400, "best_of" },
	{ COMPLETION, T("\"suffix\":\"x\""), 400, "suffix" },
	{ COMPLETION, T("\"prompt_logprobs\":1"), 400, "prompt_logprobs" },
	{ COMPLETION, T("\"use_beam_search\":true"), 400, "use_beam_search" },
	{ COMPLETION, T("\"length_penalty\":0.5"), 400, "length_penalty" },
	{ COMPLETION, T("\"bad_words\":[\"a\"]"), 400, "bad_words" },
	{ COMPLETION, T("\"allowed_token_ids\":[1]"), 400, "allowed_token_ids" },
	{ COMPLETION, T("\"guided_json\":{}"), 400, "guided_json" },
	{ COMPLETION, T("\"structured_outputs\":{\"regex\":\"a\"}"), 400, "structured_outputs" },
	{ CHAT, C("\"tools\":[{}]"), 400, "tools" },
	{ CHAT, C("\"tool_choice\":\"required\""), 400, "tool_choice" },
	{ CHAT, C("\"response_format\":{\"type\":\"json_object\"}"), 400, "response_format" },
	{ CHAT, C("\"response_format\":5"), 400, "response_format" },
	{ CHAT, C("\"continue_final_message\":true"), 400, "continue_final_message" },
	{ "/tokenize", "{\"prompt\":5}", 400, "prompt" },
	{ "/tokenize", "{\"prompt\":\"a\",\"add_special_tokens\":1}", 400, "add_special_tokens" },
	{ "/detokenize", "{\"tokens\":[320]}", 400, "tokens" },
	{ "/detokenize", "{}", 400, "tokens" },
};

static void test_refusals(void **state)
{
	struct request_spec before = fake_core_last(world.core);
	for (size_t i = 0; i < ARRAY_COUNT(refusals); i++) {
		const struct refusal *r = &refusals[i];
		struct answer a = ask("POST", r->path, NULL, r->body);
		const char *param = json_string_value(at(a.json, "error.param"));
		bool named = r->param ? param && !strcmp(param, r->param) :
					json_is_null(at(a.json, "error.param"));
		if (a.status != r->status || !named ||
		    json_integer_value(at(a.json, "error.code")) != r->status ||
		    !json_string_length(at(a.json, "error.message")) ||
		    strcmp(text_at(a.json, "error.type"),
			   r->status == 404 ? "NotFoundError" : "BadRequestError"))
			fail_msg("%s: got %s", r->body, a.text);
		answer_free(&a);
	}
	/* None of them reached the core. */
	assert_true(fake_core_last(world.core).id == before.id);
}

/* The manual names every field that is known, so that nobody has to find out by a 400. */
static void test_manual(void **state)
{
	static char manual[65536];
	FILE *file = fopen(API_MANUAL, "r");
	assert_non_null(file);
	manual[fread(manual, 1, sizeof manual - 1, file)] = 0;
	fclose(file);
	for (size_t i = 0; api_field_name(i); i++) {
		char marked[80];
		snprintf(marked, sizeof marked, "`%s`", api_field_name(i));
		if (!strstr(manual, marked))
			fail_msg("docs/api.md does not name %s", marked);
	}
}

static void test_neutral(void **state)
{
	struct answer a = ask(
		"POST", CHAT, NULL,
		C("\"presence_penalty\":0,\"frequency_penalty\":0.0,\"repetition_penalty\":1,"
		  "\"logit_bias\":{},\"tools\":[],\"tool_choice\":\"none\",\"response_format\":"
		  "{\"type\":\"text\"},\"n\":null,\"parallel_tool_calls\":true,\"modalities\":[\"text\"]"));
	assert_int_equal(a.status, 200);
	answer_free(&a);
	a = ask("POST", COMPLETION, NULL,
		T("\"echo\":false,\"best_of\":1,\"suffix\":\"\",\"prompt_logprobs\":null,"
		  "\"bad_words\":[],\"use_beam_search\":false,\"length_penalty\":1.0,\"logprobs\":null"));
	assert_int_equal(a.status, 200);
	answer_free(&a);
}

/* One question both ways: streamed, whole, and every script must give the same text. */
static void both_ways(bool chat, const char *fields)
{
	static const int scripts[] = { FAKE_PLAIN, FAKE_BURST, FAKE_SLOW, FAKE_STRAY };
	char body[1024], *want = NULL, finish_want[16] = "";
	json_int_t tokens_want = 0;
	for (size_t i = 0; i < ARRAY_COUNT(scripts); i++)
		for (int stream = 0; stream < 2; stream++) {
			snprintf(body, sizeof body,
				 "{%s,\"priority\":%d,\"stream\":%s,%s\"temperature\":0,%s}",
				 chat ? HELLO : "\"prompt\":\"Hi\"", scripts[i],
				 stream ? "true" : "false",
				 stream ? "\"stream_options\":{\"include_usage\":true}," : "", fields);
			struct answer a = ask("POST", chat ? CHAT : COMPLETION, NULL, body);
			assert_int_equal(a.status, 200);
			json_t *list = NULL;
			const char *finish;
			char *text;
			json_t *usage;
			if (stream) {
				bool done;
				list = client_events(&a, &done);
				assert_true(done);
				text = client_streamed(list, chat, 0, &finish);
				json_t *last = json_array_get(list, json_array_size(list) - 1);
				assert_int_equal(json_array_size(at(last, "choices")), 0);
				usage = at(last, "usage");
			} else {
				text = strdup(text_at(a.json, chat ? "choices.0.message.content" :
								     "choices.0.text"));
				finish = text_at(a.json, "choices.0.finish_reason");
				usage = at(a.json, "usage");
			}
			assert_non_null(finish);
			json_int_t tokens = json_integer_value(at(usage, "completion_tokens"));
			if (!want) {
				want = strdup(text);
				snprintf(finish_want, sizeof finish_want, "%s", finish);
				tokens_want = tokens;
			}
			assert_string_equal(text, want);
			assert_string_equal(finish, finish_want);
			assert_int_equal(tokens, tokens_want);
			free(text);
			json_decref(list);
			answer_free(&a);
		}
	free(want);
}

static void test_streams(void **state)
{
	both_ways(true, "\"max_tokens\":200");
	both_ways(false, "\"max_tokens\":200");
	both_ways(false, "\"max_tokens\":101"); /* may cut a character */
	both_ways(false, "\"max_tokens\":200,\"stop\":\"lamp\"");
	both_ways(false, "\"max_tokens\":200,\"stop\":[\"zzz\",\"\xe4\xbd\xa0\",\"every\"]");
	both_ways(true, "\"max_tokens\":200,\"stop\":[\"a\"],\"min_tokens\":60");
	both_ways(false, "\"max_tokens\":50,\"stop\":\" eveningx\"");
	both_ways(false, "\"max_tokens\":200,\"stop_token_ids\":[33]");
}

static void test_stops(void **state)
{
	uint32_t before = fake_core_stops(world.core);
	struct answer a = ask("POST", COMPLETION, NULL,
			      "{\"prompt\":\"Hi\",\"max_tokens\":400,\"temperature\":0,\"priority\":4,"
			      "\"stop\":[\"keeper\"]}");
	const char *text = text_at(a.json, "choices.0.text");
	assert_null(strstr(text, "keeper"));
	assert_string_equal(text_at(a.json, "choices.0.finish_reason"), "stop");
	assert_string_equal(text_at(a.json, "choices.0.stop_reason"), "keeper");
	answer_free(&a);
	for (int i = 0; i < 100 && fake_core_stops(world.core) == before; i++)
		usleep(5000);
	assert_int_equal(fake_core_stops(world.core), before + 1);
	a = ask("POST", COMPLETION, NULL,
		"{\"prompt\":\"Hi\",\"max_tokens\":400,\"temperature\":0,\"stop\":[\"keeper\"],"
		"\"include_stop_str_in_output\":true}");
	text = text_at(a.json, "choices.0.text");
	assert_string_equal(text + strlen(text) - 6, "keeper");
	answer_free(&a);
	/* A stop id ends the text before it, counts, and is named when the client asked for it. */
	a = ask("POST", COMPLETION, NULL,
		"{\"prompt\":\"Hi\",\"max_tokens\":400,\"temperature\":0,\"stop_token_ids\":[46],"
		"\"return_token_ids\":true}");
	text = text_at(a.json, "choices.0.text");
	assert_null(strchr(text, '.'));
	assert_string_equal(text_at(a.json, "choices.0.finish_reason"), "stop");
	assert_int_equal(json_integer_value(at(a.json, "choices.0.stop_reason")), 46);
	json_t *ids = at(a.json, "choices.0.token_ids");
	assert_int_equal(json_array_size(ids),
			 json_integer_value(at(a.json, "usage.completion_tokens")));
	assert_int_equal(json_integer_value(json_array_get(ids, json_array_size(ids) - 1)), 46);
	assert_int_equal(json_array_size(at(a.json, "choices.0.prompt_token_ids")), 2);
	answer_free(&a);
}

static void test_logprobs(void **state)
{
	for (int stream = 0; stream < 2; stream++) {
		char body[512];
		bool done;
		snprintf(body, sizeof body,
			 "{" HELLO ",\"max_tokens\":150,\"temperature\":0,\"logprobs\":true,\"top_logprobs\":3,\"stream\":%s}",
			 stream ? "true" : "false");
		struct answer a = ask("POST", CHAT, NULL, body);
		json_t *list = stream ? client_events(&a, &done) : json_pack("[O]", a.json);
		struct buf spelled;
		size_t i, j, b, count = 0;
		json_t *event, *entry, *byte;
		const char *finish = NULL;
		buf_init(&spelled, 0);
		json_array_foreach(list, i, event)
			json_array_foreach(at(event, "choices.0.logprobs.content"), j, entry) {
				count++;
				assert_int_equal(json_array_size(at(entry, "top_logprobs")), 3);
				assert_true(json_is_string(at(entry, "token")));
				assert_true(json_real_value(at(entry, "logprob")) == -0.25);
				json_array_foreach(at(entry, "bytes"), b, byte) {
					char c = (char)json_integer_value(byte);
					buf_append(&spelled, &c, 1);
				}
			}
		assert_int_equal(count, 150);
		char *text = stream ? client_streamed(list, true, 0, &finish) :
				      strdup(text_at(a.json, "choices.0.message.content"));
		/* The bytes spell the text; an unfinished character at the end excepted. */
		size_t whole = spelled.bytes - text_utf8_unfinished(spelled.data, spelled.bytes);
		assert_int_equal(strncmp(text, spelled.data, whole), 0);
		free(text);
		buf_fini(&spelled);
		json_decref(list);
		answer_free(&a);
	}
	struct answer a = ask("POST", COMPLETION, NULL,
			      "{\"prompt\":\"Hi\",\"max_tokens\":20,\"logprobs\":2}");
	json_t *logprobs = at(a.json, "choices.0.logprobs");
	assert_int_equal(json_array_size(at(logprobs, "tokens")), 20);
	assert_int_equal(json_array_size(at(logprobs, "token_logprobs")), 20);
	assert_int_equal(json_array_size(at(logprobs, "top_logprobs")), 20);
	assert_int_equal(json_integer_value(at(logprobs, "text_offset.0")), 0);
	assert_int_equal(json_object_size(at(logprobs, "top_logprobs.0")), 2);
	answer_free(&a);
}

static void wait_cancels(uint32_t want)
{
	for (int i = 0; i < 100 && fake_core_cancels(world.core) != want; i++)
		usleep(10000);
	assert_int_equal(fake_core_cancels(world.core), want);
}

static void test_cancel(void **state)
{
	static const char *const bodies[] = {
		/* queued: nothing has come yet */
		"{\"prompt\":\"Hi\",\"max_tokens\":400,\"priority\":1}",
		"{\"prompt\":\"Hi\",\"max_tokens\":400,\"priority\":1,\"stream\":true}",
		/* in the middle */
		"{\"prompt\":\"Hi\",\"max_tokens\":500,\"priority\":4}",
		"{\"prompt\":\"Hi\",\"max_tokens\":500,\"priority\":4,\"stream\":true}",
	};
	for (size_t i = 0; i < ARRAY_COUNT(bodies); i++) {
		uint32_t before = fake_core_cancels(world.core);
		int fd = client_dial(world.port);
		client_send(fd, "POST", COMPLETION, NULL, bodies[i]);
		usleep(60000);
		close(fd);
		wait_cancels(before + 1);
	}
	/* Three prompts of one request: all of them. */
	uint32_t before = fake_core_cancels(world.core);
	int fd = client_dial(world.port);
	client_send(fd, "POST", COMPLETION, NULL,
		     "{\"prompt\":[\"a\",\"b\",\"c\"],\"max_tokens\":4,\"priority\":1}");
	usleep(60000);
	close(fd);
	wait_cancels(before + 3);
	/* Half-closed: answered all the same. */
	fd = client_dial(world.port);
	client_send(fd, "POST", COMPLETION, NULL,
		     "{\"prompt\":\"Hi\",\"max_tokens\":300,\"priority\":4}");
	shutdown(fd, SHUT_WR);
	struct answer a = client_receive(fd);
	assert_int_equal(a.status, 200);
	answer_free(&a);
	assert_int_equal(fake_core_cancels(world.core), before + 3);
}

static void test_failures(void **state)
{
	struct answer a = ask("POST", COMPLETION, NULL,
			      "{\"prompt\":\"Hi\",\"priority\":2,\"stream\":true}");
	assert_int_equal(a.status, 503);
	assert_non_null(strstr(a.text, "Retry-After: 7\r\n"));
	assert_string_equal(text_at(a.json, "error.type"), "ServiceUnavailableError");
	answer_free(&a);
	a = ask("POST", COMPLETION, NULL, "{\"prompt\":\"Hi\",\"priority\":3}");
	assert_int_equal(a.status, 503);
	answer_free(&a);
	/* After the stream has begun: an error event, then the end without [DONE]. */
	int fd = client_dial(world.port);
	client_send(fd, "POST", COMPLETION, NULL,
		     "{\"prompt\":[\"Hi\",\"Ho\"],\"priority\":3,\"stream\":true}");
	a = client_receive(fd);
	assert_null(strstr(a.body, "[DONE]"));
	assert_non_null(strstr(a.body, "\"error\":{\"message\":\"no node is left\""));
	answer_free(&a);
}

static void test_slow_reader(void **state)
{
	/* Much more than the sockets hold: kept as ids, rendered as the reader takes it. */
	int fd = client_dial(world.port);
	client_send(fd, "POST", COMPLETION, NULL,
		     "{\"prompt\":\"Hi\",\"max_tokens\":500,\"n\":40,\"stream\":true,\"logprobs\":5}");
	usleep(500000);
	struct answer a = client_receive(fd);
	bool done;
	json_t *list = client_events(&a, &done);
	assert_true(done);
	for (int c = 0; c < 40; c++) {
		const char *finish;
		char *text = client_streamed(list, false, c, &finish);
		assert_string_equal(finish, "length");
		assert_true(strlen(text) >= 490);
		free(text);
	}
	json_decref(list);
	answer_free(&a);
}

/* Bodies that are read on another thread. */
static void test_large_bodies(void **state)
{
	struct buf body;
	buf_init(&body, 0);
	buf_append_text(&body, "{\"prompt\":\"");
	for (int i = 0; i < 200000; i++)
		buf_append(&body, "ab ", 3);
	buf_append_text(&body, "\"}");
	struct answer a = ask("POST", COMPLETION, NULL, body.data);
	assert_int_equal(a.status, 400);
	assert_non_null(strstr(text_at(a.json, "error.message"), "512 tokens"));
	assert_string_equal(text_at(a.json, "error.param"), "prompt");
	answer_free(&a);
	a = ask("POST", "/tokenize", NULL, body.data);
	assert_int_equal(a.status, 200);
	assert_int_equal(json_integer_value(at(a.json, "count")),
			 (json_int_t)json_array_size(at(a.json, "tokens")));
	answer_free(&a);
	/* Others are answered meanwhile, and who goes while it lasts is forgotten. */
	int busy[4];
	for (int i = 0; i < 4; i++) {
		busy[i] = client_dial(world.port);
		client_send(busy[i], "POST", i % 2 ? "/tokenize" : COMPLETION, NULL, body.data);
	}
	a = ask("GET", "/health", NULL, NULL);
	assert_int_equal(a.status, 200);
	answer_free(&a);
	for (int i = 0; i < 4; i++)
		close(busy[i]);
	/* Served like a small one when it fits. */
	buf_clear(&body);
	buf_append_text(&body, "{\"prompt\":\"Hi\",\"max_tokens\":3,\"ignored\":\"");
	for (int i = 0; i < 60000; i++)
		buf_append(&body, "x", 1);
	buf_append_text(&body, "\",\"stop\":[\"zq\"]}");
	a = ask("POST", COMPLETION, NULL, body.data);
	assert_int_equal(a.status, 200);
	assert_int_equal(json_integer_value(at(a.json, "usage.completion_tokens")), 3);
	answer_free(&a);
	buf_fini(&body);
}

static void test_endpoints(void **state)
{
	struct answer a = ask("GET", "/v1/models", NULL, NULL);
	assert_string_equal(text_at(a.json, "data.0.id"), "test-model");
	assert_string_equal(text_at(a.json, "data.0.root"), TINY_MODEL);
	assert_int_equal(json_integer_value(at(a.json, "data.0.max_model_len")), 512);
	assert_string_equal(text_at(a.json, "data.1.id"), "alias");
	answer_free(&a);
	a = ask("GET", "/v1/models/test-model", NULL, NULL);
	assert_string_equal(text_at(a.json, "object"), "model");
	answer_free(&a);
	a = ask("GET", "/v1/models/none", NULL, NULL);
	assert_int_equal(a.status, 404);
	answer_free(&a);
	a = ask("POST", "/tokenize", NULL, "{\"prompt\":\"Hi there\",\"return_token_strs\":true}");
	assert_int_equal(json_integer_value(at(a.json, "count")),
			 (json_int_t)json_array_size(at(a.json, "tokens")));
	assert_int_equal(json_array_size(at(a.json, "token_strs")), json_array_size(at(a.json, "tokens")));
	answer_free(&a);
	a = ask("POST", "/tokenize", NULL, "{" HELLO "}");
	assert_true(json_integer_value(at(a.json, "count")) > 3);
	answer_free(&a);
	a = ask("POST", "/detokenize", NULL, "{\"tokens\":[72,105,0]}");
	assert_int_equal(json_string_length(at(a.json, "prompt")), 3);
	answer_free(&a);
	static const struct {
		const char *method, *path;
		int status;
	} cases[] = {
		{ "GET", "/health", 200 },   { "HEAD", "/health", 200 },   { "GET", "/livez", 200 },
		{ "GET", "/readyz", 200 },   { "GET", "/version", 200 },   { "GET", "/metrics", 200 },
		{ "GET", CHAT, 405 },	     { "DELETE", COMPLETION, 405 }, { "GET", "/nothing", 404 },
		{ "OPTIONS", CHAT, 204 },    { "POST", "/health", 405 },   { "GET", "/v1/models/", 404 },
	};
	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		a = ask(cases[i].method, cases[i].path, NULL, NULL);
		if (a.status != cases[i].status)
			fail_msg("%s %s: %d", cases[i].method, cases[i].path, a.status);
		answer_free(&a);
	}
	a = ask("POST", CHAT, "Content-Encoding: gzip\r\n", "{}");
	assert_int_equal(a.status, 415);
	answer_free(&a);
	a = ask("GET", "/v1/models", "Origin: http://x\r\n", NULL);
	assert_non_null(strstr(a.text, "Access-Control-Allow-Origin: *"));
	answer_free(&a);
}

static double metric_of(const char *line)
{
	struct answer a = ask("GET", "/metrics", NULL, NULL);
	char *found = strstr(a.text, line);
	double value = found ? atof(found + strlen(line)) : -1;
	answer_free(&a);
	return value;
}

static void test_metrics(void **state)
{
#define LABELS "{model_name=\"test-model\",engine=\"cluster\"}"
	static const char prompt[] = "vllm:prompt_tokens_total" LABELS " ";
	static const char generated[] = "vllm:generation_tokens_total" LABELS " ";
	static const char ttft[] = "vllm:time_to_first_token_seconds_count" LABELS " ";
	static const char success[] = "vllm:request_success_total{model_name=\"test-model\","
				      "engine=\"cluster\",finished_reason=\"length\"} ";
	double before[] = { metric_of(prompt), metric_of(generated), metric_of(ttft),
			    metric_of(success) };
	struct answer a = ask("POST", COMPLETION, NULL, "{\"prompt\":[1,2,3],\"max_tokens\":6}");
	assert_int_equal(a.status, 200);
	answer_free(&a);
	assert_true(metric_of(prompt) == before[0] + 3);
	assert_true(metric_of(generated) == before[1] + 6);
	assert_true(metric_of(ttft) == before[2] + 1);
	assert_true(metric_of(success) == before[3] + 1);
	assert_true(metric_of("http_requests_total{handler=\"/v1/completions\",method=\"POST\","
			      "status=\"200\"} ") > 0);
}

static void test_admin(void **state)
{
	static const struct {
		const char *method, *path;
		int status;
		const char *want;
	} cases[] = {
		{ "GET", "/stats", 200, "\"nodes\"" },
		{ "GET", "/debug/requests/cmpl-1", 200, "\"trace\":\"cmpl-1\"" },
		{ "GET", "/debug/requests/nobody", 404, "" },
		{ "POST", "/drain?node=p%2d0", 200, "\"drain\":\"p-0\"" },
		{ "POST", "/undrain?x=1&node=p-0", 200, "\"undrain\":\"p-0\"" },
		{ "POST", "/role?node=p-0&role=both", 200, "\"role\":\"p-0 both\"" },
		{ "POST", "/role?node=p-0&role=king", 400, "error" },
		{ "POST", "/drain", 400, "error" },
		{ "GET", "/drain?node=p-0", 405, "error" },
		{ "GET", "/metrics", 200, "vllm:prompt_tokens_total" },
		{ "GET", "/health", 200, "" },
		{ "GET", "/v1/models", 404, "" },
	};
	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct answer a = ask_admin(cases[i].method, cases[i].path);
		if (a.status != cases[i].status || !strstr(a.body, cases[i].want))
			fail_msg("%s %s: %s", cases[i].method, cases[i].path, a.text);
		answer_free(&a);
	}
}

static int change_issue(struct store_table *table, void *context)
{
	static struct api_key keys[] = {
		{ .name = "a", .tenant = "t", .class = API_KEY_ADMIN },
		{ .name = "c", .tenant = "t", .class = API_KEY_CLIENT },
	};
	char (*secrets)[API_KEY_TEXT_BYTES + 1] = context;
	int result = api_key_issue(table, &keys[0], secrets[0]);
	return result ? result : api_key_issue(table, &keys[1], secrets[1]);
}

/* Beyond loopback, which admin_keyed stands for, only some keys open the admin listener. */
static void check_admin_keys(void)
{
	char secrets[2][API_KEY_TEXT_BYTES + 1], headers[2][160];
	struct store *store;
	struct key_source *source;
	CHECK(!store_memory_open(&store));
	CHECK(!store_update(store, change_issue, secrets));
	for (int i = 0; i < 2; i++)
		snprintf(headers[i], sizeof headers[i], "Authorization: Bearer %s\r\n", secrets[i]);
	CHECK(!key_source_open(store, "memory", NS_PER_S, world.metrics, 0, &source));
	world.config.key_source = source;
	const struct {
		bool keyed;
		const char *header;
		int status;
	} cases[] = {
		{ false, NULL, 200 }, { true, NULL, 401 },	 { true, headers[0], 200 },
		{ true, headers[1], 403 }, { true, "Authorization: Bearer sk-secret\r\n", 200 },
	};
	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		world.config.admin_keyed = cases[i].keyed;
		int fd = client_dial(world.admin_port);
		client_send(fd, "GET", "/stats", cases[i].header, NULL);
		struct answer a = client_receive(fd);
		assert_int_equal(a.status, cases[i].status);
		answer_free(&a);
	}
	struct answer a = ask("POST", COMPLETION, headers[1], "{\"prompt\":\"Hi\"}");
	assert_int_equal(a.status, 200);
	answer_free(&a);
	world.config.admin_keyed = false;
	world.config.key_source = NULL;
	key_source_close(source);
}

static void test_gates(void **state)
{
	world_stop();
	world_start(TINY_MODEL, "sk-secret", 2, 0);
	static const char key[] = "Authorization: Bearer sk-secret\r\n";
	struct answer a = ask("POST", COMPLETION, NULL, "{\"prompt\":\"Hi\"}");
	assert_int_equal(a.status, 401);
	assert_non_null(strstr(a.text, "WWW-Authenticate: Bearer\r\n"));
	answer_free(&a);
	a = ask("POST", COMPLETION, "Authorization: Bearer sk-secres\r\n", "{\"prompt\":\"Hi\"}");
	assert_int_equal(a.status, 401);
	answer_free(&a);
	a = ask("GET", "/metrics", NULL, NULL);
	assert_int_equal(a.status, 200);
	answer_free(&a);
	a = ask("OPTIONS", CHAT, NULL, NULL);
	assert_int_equal(a.status, 204);
	answer_free(&a);
	check_admin_keys();
	int held[2];
	for (int i = 0; i < 2; i++) {
		held[i] = client_dial(world.port);
		client_send(held[i], "POST", COMPLETION, key, "{\"prompt\":\"Hi\",\"priority\":1}");
	}
	usleep(100000);
	a = ask("POST", COMPLETION, key, "{\"prompt\":\"Hi\"}");
	assert_int_equal(a.status, 429);
	assert_non_null(strstr(a.text, "Retry-After: 1\r\n"));
	answer_free(&a);
	close(held[0]);
	usleep(500000);
	a = ask("POST", COMPLETION, key, "{\"prompt\":\"Hi\"}");
	assert_int_equal(a.status, 200);
	answer_free(&a);
	atomic_store(&world.bridge.draining, true);
	a = ask("POST", COMPLETION, key, "{\"prompt\":\"Hi\"}");
	assert_int_equal(a.status, 503);
	answer_free(&a);
	a = ask("GET", "/readyz", NULL, NULL);
	assert_int_equal(a.status, 503);
	answer_free(&a);
	a = ask("GET", "/livez", NULL, NULL);
	assert_int_equal(a.status, 200);
	answer_free(&a);
	/* What is open when the time is over gets an answer, and the core is told. */
	fronts_abort(world.fronts);
	a = client_receive(held[1]);
	assert_int_equal(a.status, 503);
	answer_free(&a);
}

static void on_end(int number)
{
}

int main(int argc, char **argv)
{
	signal(SIGPIPE, SIG_IGN);
	log_init("test", LOG_ERROR);
	if (argc > 2 && !strcmp(argv[1], "serve")) {
		world_start(argv[2], NULL, 4096, argc > 3 ? (uint16_t)atoi(argv[3]) : 0);
		printf("ready client=127.0.0.1:%u admin=127.0.0.1:%u\n", world.port, world.admin_port);
		fflush(stdout);
		signal(SIGTERM, on_end);
		pause();
		world_stop();
		return 0;
	}
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shapes),	 cmocka_unit_test(test_prompts),
		cmocka_unit_test(test_refusals), cmocka_unit_test(test_manual),
		cmocka_unit_test(test_neutral),
		cmocka_unit_test(test_streams),	 cmocka_unit_test(test_stops),
		cmocka_unit_test(test_logprobs), cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_failures), cmocka_unit_test(test_slow_reader),
		cmocka_unit_test(test_endpoints), cmocka_unit_test(test_large_bodies), cmocka_unit_test(test_metrics),
		cmocka_unit_test(test_admin),	 cmocka_unit_test(test_gates),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
