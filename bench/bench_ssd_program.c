/* The benchmark as a program of its own, for work on the SSD tier. */
#include "bench/bench.h"

int main(int argc, char **argv)
{
	return bench_ssd_main(argc, argv);
}
