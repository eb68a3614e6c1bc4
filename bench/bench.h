/* Benchmarks behind `baton bench ...`. Each takes the arguments after its own name and returns
 * the exit status. */
#ifndef BATON_BENCH_BENCH_H
#define BATON_BENCH_BENCH_H

/* [--model FILE] [--threads N] [--isa NAME] [--runs N] [--only TEXT] [--json FILE]
 * [--cpu-time] */
int bench_engine_main(int argc, char **argv);

#endif
