/* How lib/node builds this role's core; both daemons link both, so --role works in either. */
#ifndef BATON_PREFILL_MAKER_H
#define BATON_PREFILL_MAKER_H

#include "node/node.h"

extern const struct node_role_maker prefill_maker;

#endif
