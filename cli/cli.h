/* Subcommands of `baton`; each returns the exit status. argv[0] is the subcommand's name. */
#ifndef BATON_CLI_CLI_H
#define BATON_CLI_CLI_H

int cli_up(int argc, char **argv);
int cli_chat(int argc, char **argv);
int cli_stats(int argc, char **argv);
int cli_trace(int argc, char **argv);
int cli_drain(int argc, char **argv);
int cli_keys(int argc, char **argv);
int cli_bench(int argc, char **argv);

#endif
