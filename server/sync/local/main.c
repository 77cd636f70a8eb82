/*
 * weightd-sync-local: the only part of weightd-sync that uses weightd. Each process does one task
 * (task.h) for the agent at the other end of descriptor 3: so the blocking calls of libweightd
 * never delay the agent. When the agent hangs up, the process ends, even in the middle of a call.
 * weightd sees its connection close, and drops everything unpublished.
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
#include "server/sync/local/planner.h"
#include "server/sync/local/task.h"

static const struct role {
	const char *name;
	int (*take)(struct task *e, const struct json_packet *t, struct fault *f);
} roles[] = {
	{"source", source_handle},
	{"sink", sink_handle},
	{"watch", watch_handle},
	{"planner", planner_handle},
};

static void *end_with_agent(void *unused)
{
	struct pollfd p = {.fd = JSON_PACKET_FD, .events = POLLRDHUP};

	(void)unused;
	while (poll(&p, 1, -1) < 0 && errno == EINTR)
		;
	_exit(0);
}

static bool has_agent(void)
{
	int type = 0;
	socklen_t size = sizeof(type);

	return getsockopt(JSON_PACKET_FD, SOL_SOCKET, SO_TYPE, &type, &size) == 0 &&
	       type == SOCK_SEQPACKET;
}

/* Releases its resources before it reports the failure. */
static int task_fail(struct task *e, const struct fault *f)
{
	struct fault ignored;

	task_end(e);
	return task_send(json_pack("{s:s, s:s, s:s%}", "op", "failed", "code", f->code, "why",
				   f->why, strlen(f->why)),
			 NULL, 0, &ignored);
}

static int role_serve(const struct role *role)
{
	struct task e = {.staging = STAGING_NONE};
	int r = 0;

	headroom_init(HEADROOM_RESERVE_DEFAULT);
	while (r == 0) {
		struct fault f = {0};
		struct json_packet t;

		r = json_packet_receive(JSON_PACKET_FD, 0, &t);
		if (r == -EBADMSG)
			r = fault_set(
				&f, r,
				"weightd-sync sent weightd-sync-local something that is no message");
		else if (r == 0)
			r = role->take(&e, &t, &f);
		if (r < 0 && f.code)
			r = task_fail(&e, &f);
		json_packet_deinit(&t);
	}
	task_end(&e);
	return r == -EPIPE ? 0 : 1;
}

int main(int argc, char **argv)
{
	pthread_t thread;

	for (size_t i = 0; argc == 2 && i < ARRAY_LEN(roles); i++)
		if (!strcmp(argv[1], roles[i].name) && has_agent()) {
			int r = pthread_create(&thread, NULL, end_with_agent, NULL);

			return r == 0 ? role_serve(&roles[i]) : 1;
		}
	(void)fprintf(stderr,
		      "weightd-sync-local: is started by weightd-sync, as 'source', 'sink', 'watch' or "
		      "'planner', with a socket to it as descriptor 3\n");
	return 2;
}
