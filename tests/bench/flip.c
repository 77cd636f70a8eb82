/*
 * flip NAME BYTES ROUNDS READERS HOW WHAT: what readers notice of a new version
 *
 * READERS processes have the buffer attached and wait for the next version: HOW is "futex", on the
 * head page in weightd_buffer_wait(), or "event", for the server's answer to weightd_wait(). Each
 * round publishes one. A reader that wakes records the time, and takes the new version: WHAT is
 * "refresh", beside the old, or "swap", at the same address; then reads one byte of every 2 MiB. A
 * line is one reader's: its nanoseconds from the call of publish and from the beginning of the
 * server's commit to its awakening, of refresh or swap, and of the reading. The lines of a round
 * follow each other.
 *
 * flip - 0 ROUNDS READERS floor: the time to wake that many processes from one futex, by another
 * process that was itself asked to. A line has the nanoseconds from the system call to the
 * awakening of one.
 *
 * The server is the one of $WEIGHTD_SOCKET; the buffer must not exist, and is removed in the end.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <weightd.h>

#include "tests/bench/connection.h"
#include "tests/bench/slab.h"
#include "tests/bench/stopwatch.h"

#define READERS_MAX 64
#define WAIT_MS 60000
#define SPIN_NS 50000u /* as libclient has it */

/* Shared by the processes; a reader writes its own entry, and then a byte to the parent. */
struct shared {
	_Atomic uint32_t futex;
	uint64_t started_ns; /* begin of the waking */
	struct {
		uint64_t woken_ns; /* CLOCK_MONOTONIC */
		uint64_t woken_real_ns; /* CLOCK_REALTIME */
		uint64_t moved_ns; /* refresh or swap */
		uint64_t read_ns;
	} readers[READERS_MAX];
};

struct task {
	const char *name;
	uint64_t n_bytes, n_rounds, n_readers;
	bool by_event, by_swap;
	struct shared *shared;
	int go[2], done[2]; /* pipes from and to the parent */
	pid_t pids[READERS_MAX];
};

static volatile uint8_t sink;

static uint64_t real_ns(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_REALTIME, &ts); /* cannot fail for this clock */
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

/* --- Taking turns ------------------------------------------------------------------------------ */

static void tell(int fd)
{
	if (write(fd, "", 1) != 1)
		stopwatch_fail("nobody listens any more");
}

static void hear(int fd, uint64_t n)
{
	char byte;

	while (n-- > 0)
		if (read(fd, &byte, 1) != 1)
			stopwatch_fail("nobody speaks any more");
}

static char state_of(pid_t pid)
{
	char path[40], text[256], state = 0;
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	f = fopen(path, "re");
	if (!f || !fgets(text, sizeof(text), f) || !strrchr(text, ')'))
		stopwatch_fail("a reader is gone");
	state = strrchr(text, ')')[2];
	(void)fclose(f);
	return state;
}

/* Until all of them wait, after they announced it: a process that is awake is not woken. */
static void await_sleep(const struct task *t)
{
	for (uint64_t i = 0; i < t->n_readers; i++)
		while (state_of(t->pids[i]) != 'S')
			(void)usleep(100); /* no event shows that a process sleeps */
}

static void start(struct task *t, void (*run)(const struct task *, uint64_t))
{
	if (pipe(t->go) < 0 || pipe(t->done) < 0)
		stopwatch_fail("no pipes: %s", strerror(errno));
	(void)fflush(stdout);
	for (uint64_t i = 0; i < t->n_readers; i++) {
		t->pids[i] = fork();
		if (t->pids[i] < 0)
			stopwatch_fail("no more processes: %s", strerror(errno));
		if (t->pids[i] == 0) {
			(void)close(t->done[0]);
			(void)close(t->go[1]);
			run(t, i);
			exit(0);
		}
	}
	(void)close(t->done[1]);
}

static void finish(const struct task *t)
{
	int status;

	for (uint64_t i = 0; i < t->n_readers; i++)
		if (waitpid(t->pids[i], &status, 0) < 0 || status)
			stopwatch_fail("a reader failed");
}

/* --- Readers ----------------------------------------------------------------------------------- */

static uint8_t touch(const struct weightd_buffer *b)
{
	uint64_t size;
	const volatile uint8_t *data = weightd_buffer_data(b, &size);
	uint8_t sum = 0;

	for (uint64_t at = 0; at < size; at += SLAB_HUGE)
		sum ^= data[at];
	return sum;
}

static void await_version(const struct task *t, struct weightd *w, struct weightd_buffer *b)
{
	uint64_t version = weightd_buffer_version(b);
	int r = t->by_event ? weightd_wait(w, t->name, NULL, version + 1, WAIT_MS, NULL)
			    : weightd_buffer_wait(b, version, WAIT_MS, NULL);

	if (r < 0)
		stopwatch_fail("no new version: %s", strerror(-r));
}

static struct weightd_buffer *move(const struct task *t, uint64_t i, struct weightd *w,
				   struct weightd_buffer *b)
{
	struct weightd_buffer *new = b;
	uint64_t started = stopwatch_ns(), moved;
	int r = t->by_swap ? weightd_buffer_swap(b) : weightd_buffer_refresh(b, &new);

	moved = stopwatch_ns();
	if (r != 1)
		stopwatch_fail("no new version to go to: %s", r ? weightd_error(w) : "");
	sink = touch(new);
	t->shared->readers[i].moved_ns = moved - started;
	t->shared->readers[i].read_ns = stopwatch_ns() - moved;
	if (new != b)
		weightd_detach(b);
	return new;
}

static void read_versions(const struct task *t, uint64_t i)
{
	struct weightd *w = connect_anew();
	struct weightd_buffer *b;

	if (weightd_attach(w, t->name, NULL, &b) < 0)
		stopwatch_fail("%s", weightd_error(w));
	sink = touch(b);
	tell(t->done[1]);
	for (uint64_t round = 0; round < t->n_rounds; round++) {
		await_version(t, w, b);
		t->shared->readers[i].woken_real_ns = real_ns();
		t->shared->readers[i].woken_ns = stopwatch_ns();
		tell(t->done[1]);
		hear(t->go[0], 1); /* all are awake: no awakening waits for another's work */
		b = move(t, i, w, b);
		tell(t->done[1]);
	}
	weightd_detach(b);
	weightd_close(w);
}

static void wait_bare(const struct task *t, uint64_t i)
{
	_Atomic uint32_t *futex = &t->shared->futex;

	tell(t->done[1]);
	for (uint64_t round = 0; round < t->n_rounds; round++) {
		while (atomic_load(futex) == round)
			(void)syscall(SYS_futex, futex, FUTEX_WAIT, (uint32_t)round, NULL, NULL, 0);
		t->shared->readers[i].woken_ns = stopwatch_ns();
		tell(t->done[1]);
	}
}

/* --- The writer -------------------------------------------------------------------------------- */

static struct weightd_writer *fill(struct weightd *w, const struct task *t,
				   const struct weightd_layout *layout, uint64_t number)
{
	const struct weightd_create_options options = {.size = sizeof(options), .keep = 1};
	struct weightd_writer *wr;
	uint64_t size;

	if (weightd_create(w, t->name, layout, &options, &wr) < 0)
		stopwatch_fail("%s", weightd_error(w));
	*(uint64_t *)weightd_writer_data(wr, &size) = number;
	for (uint64_t leaf = 0; leaf * WEIGHTD_LEAF_SIZE < size; leaf++)
		weightd_writer_digest_leaf(wr, leaf); /* as a loader does while it fills */
	return wr;
}

static void publish(struct weightd *w, struct weightd_writer *wr)
{
	if (weightd_writer_publish(wr, NULL) < 0)
		stopwatch_fail("%s", weightd_error(w));
}

/* When the server began to commit the current version, CLOCK_REALTIME. */
static uint64_t committed_ns(struct weightd *w, const char *name)
{
	struct weightd_list *l;
	uint64_t ns;

	if (weightd_list(w, name, &l) < 0 || weightd_list_count(l) != 1)
		stopwatch_fail("'%s' is gone", name);
	ns = weightd_list_buffer(l, 0)->published_ns;
	weightd_list_free(l);
	return ns;
}

static void measure(struct task *t, struct weightd *w, const struct weightd_layout *layout,
		    uint64_t round)
{
	struct weightd_writer *wr = fill(w, t, layout, round);
	uint64_t called, committed;

	await_sleep(t);
	called = stopwatch_ns();
	publish(w, wr);
	hear(t->done[0], t->n_readers);
	committed = committed_ns(w, t->name);
	weightd_writer_free(wr);
	for (uint64_t i = 0; i < t->n_readers; i++)
		tell(t->go[1]);
	hear(t->done[0], t->n_readers);
	for (uint64_t i = 0; i < t->n_readers; i++)
		(void)printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
			     t->shared->readers[i].woken_ns - called,
			     t->shared->readers[i].woken_real_ns - committed,
			     t->shared->readers[i].moved_ns, t->shared->readers[i].read_ns);
}

static void write_versions(struct task *t)
{
	struct weightd *w;
	struct weightd_layout *layout;
	struct weightd_writer *wr;

	if (weightd_layout_new(0, &layout) < 0 ||
	    weightd_layout_add(layout, "w", WEIGHTD_U8, 1, &t->n_bytes, WEIGHTD_PARAM, NULL) < 0)
		stopwatch_fail("no layout of %" PRIu64 " bytes", t->n_bytes);
	w = connect_anew();
	wr = fill(w, t, layout, 0);
	publish(w, wr);
	weightd_writer_free(wr);
	start(t, read_versions);
	hear(t->done[0], t->n_readers);
	for (uint64_t round = 1; round <= t->n_rounds; round++)
		measure(t, w, layout, round);
	finish(t);
	if (weightd_drop(w, t->name, NULL, 0) < 0)
		stopwatch_fail("%s", weightd_error(w));
	weightd_close(w);
	weightd_layout_free(layout);
}

/* In the place of the server: a process of its own, asked by another. */
_Noreturn static void wake_when_told(const struct task *t)
{
	(void)close(t->go[1]);
	for (;;) {
		hear(t->go[0], 1);
		t->shared->started_ns = stopwatch_ns();
		atomic_fetch_add(&t->shared->futex, 1);
		(void)syscall(SYS_futex, &t->shared->futex, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	}
}

/* As a client of the server does that waits for its answer: a processor does not go idle meanwhile. */
static void spin(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	for (uint64_t end = stopwatch_ns() + SPIN_NS; stopwatch_ns() < end;) {
		if (poll(&p, 1, 0) > 0)
			return;
		(void)sched_yield();
	}
}

static pid_t fork_waker(const struct task *t)
{
	pid_t pid = fork();

	if (pid < 0)
		stopwatch_fail("no more processes: %s", strerror(errno));
	if (pid == 0)
		wake_when_told(t);
	return pid;
}

static void wake_bare(struct task *t)
{
	pid_t waker;

	start(t, wait_bare);
	waker = fork_waker(t);
	hear(t->done[0], t->n_readers);
	for (uint64_t round = 0; round < t->n_rounds; round++) {
		await_sleep(t);
		tell(t->go[1]);
		spin(t->done[0]);
		hear(t->done[0], t->n_readers);
		for (uint64_t i = 0; i < t->n_readers; i++)
			(void)printf("%" PRIu64 "\n",
				     t->shared->readers[i].woken_ns - t->shared->started_ns);
	}
	finish(t);
	(void)kill(waker, SIGKILL);
	(void)waitpid(waker, NULL, 0);
}

int main(int argc, char **argv)
{
	struct task t = {0};
	bool is_floor = argc == 6 && !strcmp(argv[5], "floor");

	if (!is_floor && argc != 7)
		stopwatch_fail("wants NAME BYTES ROUNDS READERS futex|event refresh|swap, or floor");
	t.name = argv[1];
	t.n_bytes = stopwatch_number(argv[2]);
	t.n_rounds = stopwatch_number(argv[3]);
	t.n_readers = stopwatch_number(argv[4]);
	if (t.n_readers == 0 || t.n_readers > READERS_MAX)
		stopwatch_fail("1 to %d readers", READERS_MAX);
	t.shared = mmap(NULL, sizeof(*t.shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			-1, 0);
	if (t.shared == MAP_FAILED)
		stopwatch_fail("no memory to share: %s", strerror(errno));
	if (is_floor) {
		wake_bare(&t);
		return 0;
	}
	t.by_event = !strcmp(argv[5], "event");
	t.by_swap = !strcmp(argv[6], "swap");
	write_versions(&t);
	return 0;
}
