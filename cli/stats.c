#include "cli/stats.h"

#include <stdio.h>

void stats_print(const json_t *stats)
{
	json_dumpf(stats, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
	putchar('\n');
}

void trace_print(const json_t *trace)
{
	stats_print(trace);
}
