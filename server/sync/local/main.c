/*
 * weightd-sync-local: the part of weightd-sync that knows weightd. Each process does one errand (errand.h) for the
 * agent at the other end of descriptor 3, and calls of libweightd, which block, never hold the agent up. When the
 * agent hangs up nothing is wanted any more, whatever is under way: the process ends, and weightd, which sees its
 * connection end, drops what was not published.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/num.h"
#include "server/base/headroom.h"
#include "server/sync/local/errand.h"
#include "server/sync/local/planner.h"

static const struct role {
	const char *name;
	int (*take)(struct errand *e, const struct talk *t, struct fault *f);
} roles[] = {
	{"source", source_take},
	{"sink", sink_take},
	{"watch", watch_take},
	{"planner", planner_take},
};

static void *end_with_agent(void *unused)
{
	struct pollfd p = {.fd = TALK_FD, .events = POLLRDHUP};

	(void)unused;
	while (poll(&p, 1, -1) < 0 && errno == EINTR)
		;
	_exit(0);
}

static bool has_agent(void)
{
	int type = 0;
	socklen_t size = sizeof(type);

	return getsockopt(TALK_FD, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

/* What it had is gone before the agent hears of it. */
static int fail(struct errand *e, const struct fault *f)
{
	struct fault ignored;

	errand_end(e);
	return errand_say(json_pack("{s:s, s:s, s:s%}", "op", "failed", "code", f->code, "why",
				    f->why, strlen(f->why)),
			  NULL, 0, &ignored);
}

static int serve(const struct role *role)
{
	struct errand e = {.staging = STAGING_NONE};
	int r = 0;

	headroom_init(HEADROOM_RESERVE_DEFAULT);
	while (r == 0) {
		struct fault f = {0};
		struct talk t;

		r = talk_receive(TALK_FD, 0, &t);
		if (r == -EBADMSG)
			r = fault_set(&f, r,
				      "weightd-sync said to weightd-sync-local what is no message");
		else if (r == 0)
			r = role->take(&e, &t, &f);
		if (r < 0 && f.code)
			r = fail(&e, &f);
		talk_deinit(&t);
	}
	errand_end(&e);
	return r == -EPIPE ? 0 : 1;
}

int main(int argc, char **argv)
{
	pthread_t thread;

	for (size_t i = 0; argc == 2 && i < ARRAY_LEN(roles); i++)
		if (!strcmp(argv[1], roles[i].name) && has_agent()) {
			int r = pthread_create(&thread, NULL, end_with_agent, NULL);

			return r == 0 ? serve(&roles[i]) : 1;
		}
	(void)fprintf(stderr,
		      "weightd-sync-local: is started by weightd-sync, as 'source', 'sink', 'watch' or "
		      "'planner', with a socket to it as descriptor 3\n");
	return 2;
}
