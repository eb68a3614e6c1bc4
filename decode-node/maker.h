/* How lib/node builds this role's core; both daemons link both, so --role works in either. */
#ifndef BATON_DECODE_MAKER_H
#define BATON_DECODE_MAKER_H

#include "node/node.h"

extern const struct node_role_maker decode_maker;

#endif
