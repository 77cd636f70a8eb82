/*
 * tool_flip ROUNDS READERS: the cost of a commit for the server's loop
 *
 * A buffer of two versions, and 62 more in its history, changes from the one to the other and back,
 * while READERS processes sleep on its head page. A line has the nanoseconds of buffer_save()
 * (its last store is the commit) and of buffer_flip(), which makes it visible and has a thread
 * wake the sleepers. For tests/bench, which uses weightd.h only; here since this looks inside.
 */
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/num.h"
#include "ipc/head.h"
#include "server/backend/backend.h"
#include "server/buffers/buffer.h"
#include "server/buffers/buffer_commit.h"
#include "server/buffers/version.h"
#include "server/memory/layout_table.h"
#include "server/memory/slot.h"
#include "server/state/server.h"

#define READERS_MAX 64

static struct server server;
static struct layout_table table;

_Noreturn static void fail(const char *what)
{
	(void)fprintf(stderr, "tool_flip: %s\n", what);
	exit(1);
}

static struct buffer *make_buffer(void)
{
	const struct access access = {.mode = 0640};
	struct buffer *b;

	list_init(&server.buffers);
	list_init(&server.removed);
	list_init(&server.untallied);
	quota_init(&server.quota);
	server.config.keep = 2;
	if (buffer_new(&server, "bench/flip", "host", &backend_host, &access, &b) != 0)
		fail("no buffer");
	return b;
}

static struct version *add_version(struct buffer *b)
{
	struct version *v = version_blank();
	struct slot *s = calloc(1, sizeof(*s));

	if (!v || !s)
		fail("out of memory");
	s->id = server_next_id(&server);
	v->number = b->next_version++;
	v->slot = s;
	v->table = &table;
	version_add(v, b);
	b->current = v->number;
	buffer_save(b);
	return v;
}

/* As many as a manifest remembers: the longest record to write. */
static void make_history(struct buffer *b)
{
	for (unsigned i = 0; i < MANIFEST_VERSIONS; i++) {
		struct version *v = add_version(b);

		list_remove(&v->link);
		b->n_versions--;
	}
}

static pid_t start_reader(const struct buffer *b)
{
	pid_t pid = fork();

	if (pid < 0)
		fail("no more processes");
	for (uint64_t seen = head_current(b->head); pid == 0;)
		seen = head_wait(b->head, seen, -1);
	return pid;
}

static char state_of(pid_t pid)
{
	char path[40], text[256];
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	f = fopen(path, "re");
	if (!f || !fgets(text, sizeof(text), f) || !strrchr(text, ')'))
		fail("a reader is gone");
	(void)fclose(f);
	return strrchr(text, ')')[2];
}

static void await_sleep(const pid_t *pids, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		while (state_of(pids[i]) != 'S')
			(void)usleep(100); /* no event shows that a process sleeps */
}

static void measure(struct buffer *b, struct version *v)
{
	uint64_t started, saved, flipped;

	b->current = v->number;
	b->state = HEAD_READY;
	started = num_now_ns();
	buffer_save(b);
	saved = num_now_ns();
	buffer_flip(b);
	flipped = num_now_ns();
	/* The loop's part of the end of the waking job. */
	if (poll(&(struct pollfd){.fd = server.wake_worker.event_fd, .events = POLLIN}, 1, 10000) !=
	    1)
		fail("the waker does not wake");
	server.wake_worker.source.fn(&server.wake_worker.source, EPOLLIN);
	(void)printf("%" PRIu64 " %" PRIu64 "\n", saved - started, flipped - saved);
}

int main(int argc, char **argv)
{
	unsigned n_rounds = argc == 3 ? (unsigned)atoi(argv[1]) : 0;
	unsigned n_readers = argc == 3 ? (unsigned)atoi(argv[2]) : 0;
	struct version *versions[2];
	pid_t pids[READERS_MAX];
	struct buffer *b;

	if (n_rounds == 0 || n_readers > READERS_MAX)
		fail("wants ROUNDS READERS");
	b = make_buffer();
	make_history(b);
	versions[0] = add_version(b);
	versions[1] = add_version(b);
	for (unsigned i = 0; i < n_readers; i++)
		pids[i] = start_reader(b);
	if (loop_init(&server.loop) < 0 || worker_init(&server.wake_worker, &server.loop) < 0)
		fail("no thread");
	for (unsigned i = 0; i < n_rounds; i++) {
		await_sleep(pids, n_readers);
		measure(b, versions[i % 2]);
	}
	for (unsigned i = 0; i < n_readers; i++) {
		(void)kill(pids[i], SIGKILL);
		(void)waitpid(pids[i], NULL, 0);
	}
	return 0; /* with all it made: the process ends */
}
