/* The line that people grep, every few seconds while there is work, in vLLM's words. */
#ifndef BATON_CONDUCTOR_REPORT_H
#define BATON_CONDUCTOR_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/metrics.h"

struct report {
	double prompt, generation, cached; /* tokens at the last line */
	uint64_t last_ns;
	bool idle; /* the last line said that nothing goes on */
};

/* Sum over all series of a family in an exposition text. */
double report_sum(const char *exposition, const char *name);
/* The next line into @out, or nothing when nothing happened since the last one. */
void report_line(struct report *report, struct metrics *metrics, uint64_t now_ns, struct buf *out);

#endif
