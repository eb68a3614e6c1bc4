/* Micro-benchmarks, run by `baton bench NAME ...`. Each takes its own arguments, prints a table and,
 * with --json FILE, the same numbers for machines. Return: the exit status. */
#ifndef BATON_BENCH_BENCH_H
#define BATON_BENCH_BENCH_H

int bench_engine_main(int argc, char **argv);
int bench_xfer_main(int argc, char **argv);
int bench_ssd_main(int argc, char **argv);

#endif
