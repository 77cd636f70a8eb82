/*
 * coldstart WEIGHTD FOLDER ROUNDS: from spawning the daemon to its first answer
 *
 * Each round starts a daemon with a socket in FOLDER, which has to be empty, connects as soon as the
 * socket is there, pings, and ends the daemon. A line holds the nanoseconds to the answer.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weightd.h>

#include "tests/bench/stopwatch.h"

#define START_MS 10000

extern char **environ;

static pid_t spawn(char *program, char *socket)
{
	char at[] = "--socket", say[] = "--log-level", little[] = "error"; /* argv is not const */
	char *argv[] = {program, at, socket, say, little, NULL};
	pid_t pid;
	int r = posix_spawn(&pid, program, NULL, NULL, argv, environ);

	if (r)
		stopwatch_fail("cannot start %s: %s", program, strerror(r));
	return pid;
}

static void end(pid_t pid)
{
	int status;

	(void)kill(pid, SIGTERM);
	if (waitpid(pid, &status, 0) < 0 || status)
		stopwatch_fail("the daemon did not end with 0");
}

/* Until something appears in the folder, however much of it appeared already. */
static void await_file(int folder_fd)
{
	struct pollfd p = {.fd = folder_fd, .events = POLLIN};
	char events[4096];

	if (poll(&p, 1, START_MS) != 1 || read(folder_fd, events, sizeof(events)) < 0)
		stopwatch_fail("the daemon makes no socket");
}

static uint64_t measure(char *program, char *socket, int folder_fd)
{
	struct weightd_server server = {.size = sizeof(server)};
	uint64_t started = stopwatch_ns(), answered;
	pid_t pid = spawn(program, socket);
	struct weightd *w;
	int r = weightd_new(&w);

	if (r < 0)
		stopwatch_fail("no connection: %s", strerror(-r));
	while ((r = weightd_connect(w, socket)) < 0) {
		if (r == -ENOENT)
			await_file(folder_fd);
		else if (r == -ECONNREFUSED)
			(void)sched_yield(); /* bound, and about to listen */
		else
			stopwatch_fail("%s", weightd_error(w));
	}
	if (weightd_ping(w, &server) < 0)
		stopwatch_fail("%s", weightd_error(w));
	answered = stopwatch_ns();
	weightd_close(w);
	end(pid);
	return answered - started;
}

int main(int argc, char **argv)
{
	char socket[108];
	uint64_t n_rounds;
	int folder_fd;

	if (argc != 4)
		stopwatch_fail("wants WEIGHTD FOLDER ROUNDS");
	n_rounds = stopwatch_number(argv[3]);
	if (snprintf(socket, sizeof(socket), "%s/s", argv[2]) >= (int)sizeof(socket))
		stopwatch_fail("%s is too long for a socket", argv[2]);
	folder_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	if (folder_fd < 0 || inotify_add_watch(folder_fd, argv[2], IN_CREATE | IN_MOVED_TO) < 0)
		stopwatch_fail("cannot watch %s: %s", argv[2], strerror(errno));
	for (uint64_t i = 0; i < n_rounds; i++)
		(void)printf("%" PRIu64 "\n", measure(argv[1], socket, folder_fd));
	return 0;
}
