#include "node/node.h"
#include "roles.h"

int main(int argc, char **argv)
{
	return node_main(argc, argv, "prefill-node", NODE_ROLE_PREFILL, node_makers, NODE_MAKER_COUNT);
}
