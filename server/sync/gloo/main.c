/*
 * weightd-sync-gloo
 *
 * Carries the bytes of one epoch over Gloo, or averages tensors over it, and ends with it.
 * weightd-sync starts it, sends its orders over descriptor 3, and may kill it at any time. Its
 * threads wait inside Gloo, and cannot be interrupted: so when the agent hangs up, the process ends
 * without waiting for them.
 */
#include <unistd.h>

#include "server/sync/gloo/engine.h"

int main(void)
{
	static struct engine e;

	_exit(engine_init(&e) < 0 || loop_run(&e.engine_loop.loop) < 0);
}
