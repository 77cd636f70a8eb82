/*
 * weightd-sync-gloo
 *
 * Carries the bytes of one epoch over Gloo, or averages tensors over it, and ends with it: weightd-sync starts
 * it, tells it over descriptor 3 what to do, and may kill it at any time. Its threads wait inside Gloo, which
 * nothing interrupts: so when its agent hangs up, it ends without a word to them.
 */
#include <unistd.h>

#include "server/sync/gloo/engine.h"

int main(void)
{
	static struct engine e;

	_exit(engine_init(&e) < 0 || loop_run(&e.engine_loop.loop) < 0);
}
