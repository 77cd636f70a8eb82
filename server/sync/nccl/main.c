/*
 * weightd-sync-nccl
 *
 * Carries the bytes of one epoch between GPUs over NCCL, and ends with it: weightd-sync starts it, tells it over
 * descriptor 3 what to do, and may kill it at any time. What hangs, hangs in its worker: so when its agent hangs up,
 * it ends without a word to it.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "server/base/log.h"
#include "server/sync/nccl/engine.h"

int main(void)
{
	static struct engine e;
	int r;

	log_set_name("weightd-sync-nccl");
	log_init(LOG_LEVEL_INFO);
	(void)signal(SIGPIPE, SIG_IGN);
	r = engine_init(&e);
	if (r < 0)
		log_error("weightd-sync starts this program, with a socket as descriptor 3: %s",
			  strerror(-r));
	else
		r = loop_run(&e.loop);
	_exit(r < 0 ? 1 : 0);
}
