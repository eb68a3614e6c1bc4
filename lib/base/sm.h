/* Anything with a life is a table of states and allowed moves; sm_move() CHECKs and traces each.
 * Source: raft's (dqlite's) sm.h.
 *
 *     enum { IDLE, BUSY, DONE };
 *     static const struct sm_state states[] = {
 *             [IDLE] = { "idle", SM_TO(BUSY) | SM_TO(DONE) },
 *             [BUSY] = { "busy", SM_TO(DONE) },
 *             [DONE] = { "done", 0 },
 *     };
 */
#ifndef BATON_BASE_SM_H
#define BATON_BASE_SM_H

#include <stdint.h>

#include "base/check.h"

#define SM_TO(state) (UINT32_C(1) << (state))

struct sm_state {
	const char *name;
	uint32_t moves; /* SM_TO() of each state that may follow */
};

static inline void sm_move(const struct sm_state states[], uint8_t *state, uint8_t target)
{
	CHECK(states[*state].moves & SM_TO(target));
	*state = target;
}

#endif
