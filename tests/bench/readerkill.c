/*
 * readerkill NAME BYTES ROUNDS: from the death of a reader until its memory is free
 *
 * Each round publishes a buffer and starts a process that attaches it and reads every page. That is
 * killed, and the server asked until it counts no reader. Then once more with a reader of a buffer
 * that was removed, with memory that only the reader holds: until the server has returned its
 * bytes. A line has the nanoseconds of both and the bytes that became free with the second. The
 * server is the one of $WEIGHTD_SOCKET, and must be idle otherwise.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weightd.h>

#include "tests/bench/connection.h"
#include "tests/bench/slab.h"
#include "tests/bench/stopwatch.h"

#define LIMIT_NS 30000000000u

/* --- The reader -------------------------------------------------------------------------------- */

static uint8_t touch(const void *data, uint64_t size)
{
	uint8_t sum = 0;

	for (uint64_t at = 0; at < size; at += SLAB_PAGE)
		sum ^= ((const volatile uint8_t *)data)[at];
	return sum;
}

_Noreturn static void read_and_stay(const char *name, int to)
{
	struct weightd *w = connect_anew();
	struct weightd_buffer *b;
	const void *data;
	uint64_t size;
	uint8_t sum;

	if (weightd_attach(w, name, NULL, &b) < 0)
		stopwatch_fail("%s", weightd_error(w));
	data = weightd_buffer_data(b, &size);
	sum = touch(data, size);
	if (write(to, &sum, 1) != 1)
		stopwatch_fail("nobody waits for the reader");
	for (;;)
		(void)pause();
}

/* Returns when it has read all pages. */
static pid_t start_reader(const char *name)
{
	int ends[2];
	char byte;
	pid_t pid;

	if (pipe(ends) < 0)
		stopwatch_fail("no pipe: %s", strerror(errno));
	pid = fork();
	if (pid < 0)
		stopwatch_fail("no second process: %s", strerror(errno));
	if (pid == 0)
		read_and_stay(name, ends[1]);
	(void)close(ends[1]);
	if (read(ends[0], &byte, 1) != 1)
		stopwatch_fail("the reader failed");
	(void)close(ends[0]);
	return pid;
}

/* --- Replies of the server ---------------------------------------------------------------------- */

static uint64_t count_readers(struct weightd *w, const char *name)
{
	struct weightd_list *l;
	uint64_t n;

	if (weightd_list(w, name, &l) < 0)
		stopwatch_fail("%s", weightd_error(w));
	if (weightd_list_count(l) != 1)
		stopwatch_fail("'%s' is gone", name);
	n = weightd_list_buffer(l, 0)->n_readers;
	weightd_list_free(l);
	return n;
}

static uint64_t count_bytes(struct weightd *w, const char *name)
{
	struct weightd_stat stat = {.size = sizeof(stat)};

	(void)name;
	if (weightd_stat(w, &stat) < 0)
		stopwatch_fail("%s", weightd_error(w));
	return stat.slot_bytes;
}

static uint64_t kill_and_wait(struct weightd *w, const char *name, pid_t pid,
			      uint64_t (*count)(struct weightd *, const char *))
{
	uint64_t started = stopwatch_ns(), ended;

	if (kill(pid, SIGKILL) < 0)
		stopwatch_fail("cannot kill the reader: %s", strerror(errno));
	do {
		uint64_t left = count(w, name);

		ended = stopwatch_ns();
		if (left == 0)
			break;
		if (ended - started > LIMIT_NS)
			stopwatch_fail("%" PRIu64 " are left for ever", left);
	} while (true);
	if (waitpid(pid, NULL, 0) != pid)
		stopwatch_fail("lost the reader: %s", strerror(errno));
	return ended - started;
}

/* --- Rounds ------------------------------------------------------------------------------------ */

static void publish(struct weightd *w, const char *name, uint64_t n_bytes)
{
	struct weightd_layout *l;
	struct weightd_writer *wr;

	if (weightd_layout_new(0, &l) < 0 ||
	    weightd_layout_add(l, "w", WEIGHTD_U8, 1, &n_bytes, WEIGHTD_PARAM, NULL) < 0)
		stopwatch_fail("no layout of %" PRIu64 " bytes", n_bytes);
	if (weightd_create(w, name, l, NULL, &wr) < 0 || weightd_writer_publish(wr, NULL) < 0)
		stopwatch_fail("%s", weightd_error(w));
	weightd_writer_free(wr);
	weightd_layout_free(l);
}

static void measure(struct weightd *w, const char *name, uint64_t n_bytes)
{
	uint64_t lease_ns, memory_ns, held;
	pid_t pid;

	publish(w, name, n_bytes);
	pid = start_reader(name);
	if (count_readers(w, name) != 1)
		stopwatch_fail("the reader has no lease");
	lease_ns = kill_and_wait(w, name, pid, count_readers);

	pid = start_reader(name);
	if (weightd_drop(w, name, NULL, 0) < 0)
		stopwatch_fail("%s", weightd_error(w));
	held = count_bytes(w, name);
	if (held < n_bytes)
		stopwatch_fail("the reader holds %" PRIu64 " bytes", held);
	memory_ns = kill_and_wait(w, name, pid, count_bytes);
	(void)printf("%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", lease_ns, memory_ns, held);
}

int main(int argc, char **argv)
{
	uint64_t n_bytes, n_rounds;
	struct weightd *w;

	if (argc != 4)
		stopwatch_fail("wants NAME BYTES ROUNDS");
	n_bytes = stopwatch_number(argv[2]);
	n_rounds = stopwatch_number(argv[3]);
	w = connect_anew();
	for (uint64_t i = 0; i < n_rounds; i++)
		measure(w, argv[1], n_bytes);
	weightd_close(w);
	return 0;
}
