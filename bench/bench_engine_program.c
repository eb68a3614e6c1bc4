/* The benchmark as a program of its own, for work on the kernels. */
#include "bench/bench.h"

int main(int argc, char **argv)
{
	return bench_engine_main(argc, argv);
}
