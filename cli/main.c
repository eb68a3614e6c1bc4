/* baton: the operator's tool. */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/settings.h"
#include "bench/bench.h"
#include "cli/cli.h"

static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
} benches[] = {
	{ "engine", bench_engine_main },
	{ "xfer", bench_xfer_main },
};

int cli_bench(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";

	for (size_t i = 0; i < ARRAY_COUNT(benches); i++)
		if (!strcmp(name, benches[i].name))
			return benches[i].run(argc - 1, argv + 1);
	fprintf(stderr, "baton bench: what to measure must follow: engine or xfer\n");
	return 2;
}

static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *help;
} commands[] = {
	{ "up", cli_up, "start and supervise a local cluster until Ctrl-C" },
	{ "chat", cli_chat, "ask a running cluster, answers streamed" },
	{ "stats", cli_stats, "nodes, load, KV use, transfers and latencies as a table" },
	{ "trace", cli_trace, "what happened to a request, when, and why there" },
	{ "drain", cli_drain, "let a node finish or hand over what it has, and leave" },
	{ "keys", cli_keys, "make, list and revoke API keys: baton keys add|ls|revoke" },
	{ "bench", cli_bench, "measure the engine or the transports: baton bench engine|xfer" },
};

static void help(FILE *out)
{
	fprintf(out, "baton %s: prefill and decode apart, KV handed over\n\nUsage: baton COMMAND [OPTIONS]\n\n",
		baton_version);
	for (size_t i = 0; i < ARRAY_COUNT(commands); i++)
		fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].help);
	fprintf(out, "  version  print the version\n  help     this text\n\n"
		     "baton COMMAND --help lists a command's options.\n");
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "help";

	for (size_t i = 0; i < ARRAY_COUNT(commands); i++)
		if (!strcmp(name, commands[i].name))
			return commands[i].run(argc - 1, argv + 1);
	if (!strcmp(name, "version") || !strcmp(name, "--version")) {
		printf("baton %s\n", baton_version);
		return 0;
	}
	if (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h")) {
		help(stdout);
		return 0;
	}
	fprintf(stderr, "baton: there is no command '%s'; baton help lists them\n", name);
	return 2;
}
