/*
 * weightd-sync-tcp
 *
 * Carries the bytes of one epoch over TCP, and ends with it: weightd-sync starts it, tells it over descriptor 3
 * what to do, and may kill it at any time. It never trusts who is at the other end of a link.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "server/base/log.h"
#include "server/sync/tcp/engine.h"

int main(void)
{
	static struct engine e;
	int r;

	log_set_name("weightd-sync-tcp");
	log_init(LOG_LEVEL_INFO);
	(void)signal(SIGPIPE, SIG_IGN); /* sendfile() has no flag against it */
	r = engine_init(&e);
	if (r < 0)
		log_error("weightd-sync starts this program, with a socket as descriptor 3: %s",
			  strerror(-r));
	else
		r = loop_run(&e.loop);
	if (r < 0)
		return 1;
	engine_deinit(&e);
	return 0;
}
