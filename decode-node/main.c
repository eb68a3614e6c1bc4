#include "node/node.h"
#include "roles.h"

int main(int argc, char **argv)
{
	return node_main(argc, argv, "decode-node", NODE_ROLE_DECODE, node_makers, NODE_MAKER_COUNT);
}
