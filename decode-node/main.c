/* Either daemon can play either role: a role is a setting, and a flip a change of state. */
#include "decode-node/maker.h"
#include "prefill-node/maker.h"

int main(int argc, char **argv)
{
	const struct node_role_maker makers[] = { decode_maker, prefill_maker };
	return node_main(argc, argv, "decode-node", NODE_ROLE_DECODE, makers, 2);
}
