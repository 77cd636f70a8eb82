/*
 * weightd-sync-tcp
 *
 * Carries the bytes of one epoch over TCP, and ends with it. weightd-sync starts it, sends its
 * orders over descriptor 3, and may kill it at any time. It trusts no peer of a link.
 */
#include "server/sync/tcp/engine.h"

int main(void)
{
	static struct engine e;

	if (engine_init(&e) < 0 || loop_run(&e.engine_loop.loop) < 0)
		return 1;
	engine_deinit(&e);
	return 0;
}
