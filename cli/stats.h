/* The conductor's JSON answers as text for people. */
#ifndef BATON_CLI_STATS_H
#define BATON_CLI_STATS_H

#include <jansson.h>

void stats_print(const json_t *stats);
void trace_print(const json_t *trace);

#endif
