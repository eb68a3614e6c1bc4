/*
 * Tokens per second of the engine alone: prompts of 64, 512 and 2,048 tokens in chunks of 512; one
 * sequence decoding after 0, 512 and 2,048 tokens; 1, 4, 16 and 32 together at context 512, each
 * with its own KV. Every run visits all cells, so that a drifting machine touches them alike; the
 * medians and the range over the runs are printed.
 */
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "bench/bench.h"
#include "engine/engine.h"

#define CHUNK_TOKENS 512u
#define BLOCK_TOKENS 64u
#define SEQS_MAX 32u
#define CONTEXT 512u
#define RUNS_MAX 100
#define DECODE_STEPS 32u

static const struct cell {
	const char *name;
	uint32_t prompt; /* tokens of a prefill; 0: a decode */
	uint32_t depth, seqs;
} cells[] = {
	{ "prefill 64", 64, 0, 1 },	   { "prefill 512", 512, 0, 1 },
	{ "prefill 2048", 2048, 0, 1 },	   { "decode at 0", 0, 0, 1 },
	{ "decode at 512", 0, 512, 1 },	   { "decode at 2048", 0, 2048, 1 },
	{ "decode 4 at 512", 0, 512, 4 },  { "decode 16 at 512", 0, 512, 16 },
	{ "decode 32 at 512", 0, 512, 32 },
};

struct bench {
	const char *model_path, *json_path, *only;
	uint32_t threads, runs;
	bool cpu_time; /* rates per second of CPU time of the calling thread: for busy machines */
	enum engine_isa isa;
	struct model *model;
	const struct model_config *config;
	struct kv_shape shape;
	uint8_t *arena;
	uint64_t block_bytes;
	struct engine *engine;
	kv_block_id *tables[SEQS_MAX]; /* sequence 0 is long enough for every cell */
	double rates[ARRAY_COUNT(cells)][RUNS_MAX];
};

static uint32_t some_token(const struct bench *bench, uint32_t i)
{
	return (i * 2654435761u >> 7) % bench->config->vocab_count;
}

static int feed(struct bench *bench, uint32_t seq, uint32_t position, uint32_t count)
{
	uint32_t tokens[CHUNK_TOKENS];
	for (uint32_t at = 0; at < count; at += CHUNK_TOKENS) {
		uint32_t step = MIN(CHUNK_TOKENS, count - at);
		struct sample_params params = { .top_p = 1 };
		struct sample_request request = { .params = &params };
		struct sample_result result;
		struct engine_rows rows = { .blocks = bench->tables[seq], .position = position + at,
					    .tokens = tokens, .token_count = step, .samples = &request,
					    .ret_samples = &result, .sample_count = at + step == count };
		struct engine_batch batch = { .rows = &rows, .rows_count = 1,
					      .layer_end = bench->config->layer_count };
		for (uint32_t i = 0; i < step; i++)
			tokens[i] = some_token(bench, position + at + i);
		int error = engine_run(bench->engine, &batch);
		if (error)
			return error;
	}
	return 0;
}

static int decode(struct bench *bench, uint32_t seqs, uint32_t depth, uint32_t steps)
{
	static const struct sample_params params = { .top_p = 1 };
	struct sample_request request = { .params = &params };
	struct sample_result results[SEQS_MAX];
	struct engine_rows rows[SEQS_MAX];
	uint32_t tokens[SEQS_MAX];
	for (uint32_t s = 0; s < seqs; s++)
		tokens[s] = some_token(bench, s);
	for (uint32_t step = 0; step < steps; step++) {
		for (uint32_t s = 0; s < seqs; s++)
			rows[s] = (struct engine_rows){ .blocks = bench->tables[s], .position = depth + step,
							.tokens = &tokens[s], .token_count = 1,
							.samples = &request, .ret_samples = &results[s],
							.sample_count = 1 };
		struct engine_batch batch = { .rows = rows, .rows_count = seqs,
					      .layer_end = bench->config->layer_count };
		int error = engine_run(bench->engine, &batch);
		if (error)
			return error;
		for (uint32_t s = 0; s < seqs; s++)
			tokens[s] = results[s].token;
	}
	return 0;
}

/* Gives the other sequences a copy of sequence 0's first @depth tokens. */
static void copy_context(struct bench *bench, uint32_t seqs, uint32_t depth)
{
	for (uint32_t s = 1; s < seqs; s++)
		for (uint32_t b = 0; b < kv_blocks_for(depth, BLOCK_TOKENS); b++)
			memcpy(bench->arena + bench->tables[s][b].v * bench->block_bytes,
			       bench->arena + bench->tables[0][b].v * bench->block_bytes, bench->block_bytes);
}

static uint64_t bench_now_ns(const struct bench *bench)
{
	return bench->cpu_time ? clock_thread_cpu_ns() : clock_now_ns();
}

static int run_cell(struct bench *bench, const struct cell *cell, double *ret_rate)
{
	uint32_t tokens = cell->prompt ? cell->prompt : DECODE_STEPS * cell->seqs;
	int error = 0;
	if (!cell->prompt && cell->depth) {
		error = feed(bench, 0, 0, cell->depth);
		copy_context(bench, cell->seqs, cell->depth);
	}
	if (!cell->prompt && !error)
		error = decode(bench, cell->seqs, cell->depth, 2); /* warm up */
	uint64_t start = bench_now_ns(bench);
	if (!error)
		error = cell->prompt ? feed(bench, 0, 0, cell->prompt) :
				       decode(bench, cell->seqs, cell->depth, DECODE_STEPS);
	*ret_rate = tokens / ((double)(bench_now_ns(bench) - start) / 1e9);
	return error;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static int report(struct bench *bench)
{
	json_t *root = json_object(), *list = json_object();
	int status = 0;
	printf("%s, %s\n%-18s %10s %21s\n", engine_describe(bench->engine), bench->config->name, "tokens/s",
	       "median", "range");
	for (size_t c = 0; c < ARRAY_COUNT(cells); c++) {
		double *rates = bench->rates[c];
		if (rates[0] == 0)
			continue;
		json_t *runs = json_array();
		for (uint32_t r = 0; r < bench->runs; r++)
			json_array_append_new(runs, json_real(rates[r]));
		json_object_set_new(list, cells[c].name, runs);
		qsort(rates, bench->runs, sizeof *rates, by_value);
		double median = (rates[(bench->runs - 1) / 2] + rates[bench->runs / 2]) / 2;
		printf("%-18s %10.1f %10.1f-%.1f\n", cells[c].name, median, rates[0], rates[bench->runs - 1]);
	}
	json_object_set_new(root, "engine", json_string(engine_describe(bench->engine)));
	json_object_set_new(root, "model", json_string(bench->config->name));
	json_object_set_new(root, "threads", json_integer(bench->threads));
	json_object_set_new(root, "tokens_per_s", list);
	if (bench->json_path && json_dump_file(root, bench->json_path, JSON_INDENT(2)) != 0) {
		fprintf(stderr, "baton bench engine: cannot write %s\n", bench->json_path);
		status = 1;
	}
	json_decref(root);
	return status;
}

static int bench_open(struct bench *bench)
{
	char error[256];
	uint32_t per_seq = (CONTEXT + 2 * DECODE_STEPS) / BLOCK_TOKENS + 1;
	uint32_t first = (2048 + 2 * DECODE_STEPS) / BLOCK_TOKENS + 1, next = 0;
	if (model_open(bench->model_path, 0, &bench->model, error, sizeof error) != 0) {
		fprintf(stderr, "baton bench engine: %s\n", error);
		return -EINVAL;
	}
	bench->config = model_config(bench->model);
	model_kv_shape(bench->model, BLOCK_TOKENS, &bench->shape);
	bench->block_bytes = kv_shape_block_bytes(&bench->shape);
	uint32_t block_count = first + per_seq * (SEQS_MAX - 1);
	bench->arena = aligned_alloc(4096, bench->block_bytes * block_count);
	if (!bench->arena)
		return -ENOMEM;
	memset(bench->arena, 0, bench->block_bytes * block_count);
	for (uint32_t s = 0; s < SEQS_MAX; s++) {
		uint32_t count = s ? per_seq : first;
		bench->tables[s] = malloc(count * sizeof(kv_block_id));
		if (!bench->tables[s])
			return -ENOMEM;
		for (uint32_t b = 0; b < count; b++)
			bench->tables[s][b].v = next++;
	}
	struct engine_config config = { .kind = ENGINE_CPU, .model = bench->model, .shape = bench->shape,
					.kv_base = bench->arena, .block_count = block_count,
					.thread_count = bench->threads, .batch_tokens_max = CHUNK_TOKENS,
					.batch_seqs_max = SEQS_MAX, .isa = bench->isa };
	int result = engine_open(&config, &bench->engine, error, sizeof error);
	if (result)
		fprintf(stderr, "baton bench engine: %s\n", error);
	return result;
}

static void bench_close(struct bench *bench)
{
	engine_close(bench->engine);
	model_close(bench->model);
	free(bench->arena);
	for (uint32_t s = 0; s < SEQS_MAX; s++)
		free(bench->tables[s]);
}

static int parse_isa(const char *name, enum engine_isa *ret_isa)
{
	static const char *const names[] = { "auto", "plain", "avx2", "avx512", "vnni" };
	for (size_t i = 0; i < ARRAY_COUNT(names); i++)
		if (!strcmp(name, names[i])) {
			*ret_isa = (enum engine_isa)i;
			return 0;
		}
	return -EINVAL;
}

static int parse(struct bench *bench, int argc, char **argv)
{
	static const struct option options[] = {
		{ "model", required_argument, NULL, 'm' }, { "threads", required_argument, NULL, 't' },
		{ "isa", required_argument, NULL, 'i' },   { "runs", required_argument, NULL, 'r' },
		{ "only", required_argument, NULL, 'o' },  { "json", required_argument, NULL, 'j' },
		{ "cpu-time", no_argument, NULL, 'c' },
		{ 0 },
	};
	int option;
	optind = 1;
	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'm':
			bench->model_path = optarg;
			break;
		case 't':
			bench->threads = (uint32_t)strtoul(optarg, NULL, 10);
			break;
		case 'i':
			if (parse_isa(optarg, &bench->isa) < 0) {
				fprintf(stderr, "baton bench engine: --isa is one of auto, plain, avx2, "
						"avx512, vnni\n");
				return -EINVAL;
			}
			break;
		case 'r':
			bench->runs = (uint32_t)strtoul(optarg, NULL, 10);
			break;
		case 'o':
			bench->only = optarg;
			break;
		case 'j':
			bench->json_path = optarg;
			break;
		case 'c':
			bench->cpu_time = true;
			break;
		default:
			return -EINVAL;
		}
	}
	if (bench->runs < 1 || bench->runs > RUNS_MAX) {
		fprintf(stderr, "baton bench engine: --runs lies in 1..%d\n", RUNS_MAX);
		return -EINVAL;
	}
	return 0;
}

int bench_engine_main(int argc, char **argv)
{
	static struct bench bench;
	char path[1024];
	const char *home = getenv("HOME");
	memset(&bench, 0, sizeof bench);
	snprintf(path, sizeof path, "%s/.cache/baton/SmolLM2-135M-Instruct.Q4_1.gguf", home ? home : "");
	bench.model_path = path;
	bench.runs = 5;
	if (parse(&bench, argc, argv) < 0)
		return 2;
	int status = 1;
	if (bench_open(&bench) != 0)
		goto out;
	for (uint32_t run = 0; run < bench.runs; run++)
		for (size_t c = 0; c < ARRAY_COUNT(cells); c++)
			if (!bench.only || strstr(cells[c].name, bench.only))
				if (run_cell(&bench, &cells[c], &bench.rates[c][run]) != 0)
					goto out;
	status = report(&bench);
out:
	bench_close(&bench);
	return status;
}
