/*
 * weightd-sync-nccl
 *
 * Carries the bytes of one epoch between GPUs over NCCL, and ends with it: weightd-sync starts it, tells it over
 * descriptor 3 what to do, and may kill it at any time. What hangs, hangs in its worker: so when its agent hangs up,
 * it ends without a word to it.
 */
#include <unistd.h>

#include "server/sync/nccl/engine.h"

int main(void)
{
	static struct engine e;

	_exit(engine_init(&e) < 0 || loop_run(&e.engine_loop.loop) < 0);
}
