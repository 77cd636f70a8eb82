/*
 * restart NAME ROUNDS WAY: from the death of the daemon to the next attach of NAME
 *
 * The daemon has to run under something that starts it again. Each round kills it, attaches at once, and
 * looks whether another daemon has answered and whether the bytes are the same file in memory as before.
 * WAY: "connected" has a connection and a lease from before the kill, as a reader has; "anew" connects
 * first. A line holds the nanoseconds to the attach. The server is the one of $WEIGHTD_SOCKET.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weightd.h>

#include "tests/bench/connection.h"
#include "tests/bench/stopwatch.h"

static struct weightd_buffer *attach(struct weightd *w, const char *name)
{
	struct weightd_buffer *b;

	if (weightd_attach(w, name, NULL, &b) < 0)
		stopwatch_fail("%s", weightd_error(w));
	return b;
}

static struct weightd_server ask(struct weightd *w)
{
	struct weightd_server server = {.size = sizeof(server)};

	if (weightd_ping(w, &server) < 0)
		stopwatch_fail("%s", weightd_error(w));
	return server;
}

/* The file that is mapped there: new memory is another one. */
static uint64_t inode_at(const void *address)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	uintptr_t start, end;
	uint64_t inode;
	char line[512];

	if (!maps)
		stopwatch_fail("no /proc/self/maps: %s", strerror(errno));
	while (fgets(line, sizeof(line), maps))
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %" SCNu64, &start, &end,
			   &inode) == 3 &&
		    start <= (uintptr_t)address && (uintptr_t)address < end) {
			(void)fclose(maps);
			return inode;
		}
	stopwatch_fail("nothing is mapped where the buffer is");
}

static void check(struct weightd *w, const struct weightd_server *before,
		  const struct weightd_buffer *old, const struct weightd_buffer *new)
{
	struct weightd_server after = ask(w);

	if (after.instance == before->instance || after.pid == before->pid)
		stopwatch_fail("the daemon that was killed has answered");
	if (inode_at(weightd_buffer_data(old, NULL)) != inode_at(weightd_buffer_data(new, NULL)))
		stopwatch_fail("the bytes are not where they were");
	if (weightd_buffer_version(old) != weightd_buffer_version(new) ||
	    memcmp(weightd_buffer_digest(old), weightd_buffer_digest(new), WEIGHTD_DIGEST_SIZE))
		stopwatch_fail("the version is not the one that was published");
}

/* `w` has `old` attached all the time. */
static uint64_t measure(struct weightd *w, const struct weightd_buffer *old, const char *name,
			bool is_anew)
{
	struct weightd_server before = ask(w);
	struct weightd *asking = w;
	struct weightd_buffer *b;
	uint64_t started, attached;

	started = stopwatch_ns();
	if (kill((pid_t)before.pid, SIGKILL) < 0)
		stopwatch_fail("cannot kill the daemon: %s", strerror(errno));
	if (is_anew)
		asking = connect_anew();
	b = attach(asking, name);
	attached = stopwatch_ns();
	check(asking, &before, old, b);
	weightd_detach(b);
	if (is_anew)
		weightd_close(asking);
	return attached - started;
}

int main(int argc, char **argv)
{
	struct weightd_buffer *old;
	struct weightd *w;
	uint64_t n_rounds;
	bool is_anew;

	if (argc != 4 || (strcmp(argv[3], "connected") != 0 && strcmp(argv[3], "anew") != 0))
		stopwatch_fail("wants NAME ROUNDS connected|anew");
	n_rounds = stopwatch_number(argv[2]);
	is_anew = !strcmp(argv[3], "anew");
	w = connect_anew();
	old = attach(w, argv[1]);
	for (uint64_t i = 0; i < n_rounds; i++)
		(void)printf("%" PRIu64 "\n", measure(w, old, argv[1], is_anew));
	weightd_detach(old);
	weightd_close(w);
	return 0;
}
