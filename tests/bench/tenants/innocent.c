/*
 * innocent UID attach NAME SECONDS: connects, attaches to the buffer, detaches, closes, again and again
 * innocent UID publish NAME SECONDS: makes and publishes versions of 1 MB over one connection
 * innocent UID pair SECONDS: sends requests over a socket pair to a process that replies
 *
 * Becomes the user UID first. A line has the nanoseconds of a round and of weightd's processor time in it, or "failed"
 * and the reason. Rounds begin at fixed times, so that the program takes little of the processors. Ends after SECONDS and
 * ROUNDS_MIN rounds, or after PATIENCE_S; a round that still lasts ANSWER_S later has failed.
 */
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <weightd.h>

#include "tests/bench/connection.h"
#include "tests/bench/stopwatch.h"

#define ROUNDS_MIN 20
#define PATIENCE_S 5
#define ANSWER_S 10
#define SIZE 1000000u
#define ATTACH_EVERY_NS 2000000u
#define PUBLISH_EVERY_NS 10000000u

struct innocent {
	const char *name;
	struct weightd *w; /* of a publisher */
	struct weightd_layout *layout;
	int pair_fd;
	clockid_t clock; /* processor time of weightd */
};

struct innocence {
	const char *name;
	uint64_t every_ns;
	void (*prepare)(struct innocent *i);
	const char *(*round)(struct innocent *i); /* NULL, or the reason of a failure */
};

static char reason[512];

static void find_clock(struct innocent *i)
{
	struct weightd_server server = {.size = sizeof(server)};
	struct weightd *w = NULL;

	if (weightd_new(&w) < 0 || weightd_connect(w, NULL) < 0 || weightd_ping(w, &server) < 0 ||
	    clock_getcpuclockid((pid_t)server.pid, &i->clock) != 0)
		stopwatch_fail("cannot find the process of weightd");
	weightd_close(w);
}

static const char *keep_reason(struct weightd *w)
{
	(void)snprintf(reason, sizeof(reason), "%s", weightd_error(w));
	return reason;
}

/* --- Attach ------------------------------------------------------------------------------------- */

static const char *round_attach(struct innocent *i)
{
	const char *why = NULL;
	struct weightd_buffer *b;
	struct weightd *w;

	if (weightd_new(&w) < 0)
		return "out of memory";
	if (weightd_connect(w, NULL) < 0 || weightd_attach(w, i->name, NULL, &b) < 0)
		why = keep_reason(w);
	else
		weightd_detach(b);
	weightd_close(w);
	return why;
}

/* --- Publish ------------------------------------------------------------------------------------ */

static void prepare_publish(struct innocent *i)
{
	const uint64_t size = SIZE;

	find_clock(i);
	if (weightd_layout_new(0, &i->layout) < 0 ||
	    weightd_layout_add(i->layout, "w", WEIGHTD_U8, 1, &size, WEIGHTD_PARAM, NULL) < 0)
		stopwatch_fail("no layout");
}

/* A connection that failed is made again. */
static const char *round_publish(struct innocent *i)
{
	/* All may read it: attacks do. */
	const struct weightd_create_options options = {.size = sizeof(options),
						       .mode = 0644,
						       .keep = 2};
	struct weightd_writer *writer = NULL;
	const char *why = NULL;
	uint64_t size;
	void *data;

	if (!i->w && weightd_new(&i->w) < 0)
		return "out of memory";
	if (weightd_connect(i->w, NULL) < 0 ||
	    weightd_create(i->w, i->name, i->layout, &options, &writer) < 0) {
		why = keep_reason(i->w);
	} else {
		data = weightd_writer_data(writer, &size);
		memset(data, 1, size);
		if (weightd_writer_publish(writer, NULL) < 0)
			why = keep_reason(i->w);
		weightd_writer_free(writer);
	}
	if (why) {
		weightd_close(i->w);
		i->w = NULL;
	}
	return why;
}

/* --- Pair --------------------------------------------------------------------------------------- */

static void prepare_pair(struct innocent *i)
{
	char request[64];
	int ends[2];
	ssize_t n;

	i->clock = CLOCK_PROCESS_CPUTIME_ID; /* there is no weightd */
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
		stopwatch_fail("no pair: %s", strerror(errno));
	i->pair_fd = ends[0];
	switch (fork()) {
	case -1:
		stopwatch_fail("no second process: %s", strerror(errno));
	case 0:
		(void)close(ends[0]);
		while ((n = read(ends[1], request, sizeof(request))) > 0)
			if (write(ends[1], request, (size_t)n) != n)
				break;
		_exit(0);
	default:
		(void)close(ends[1]);
	}
}

static const char *round_pair(struct innocent *i)
{
	char packet[64] = {0};

	if (write(i->pair_fd, packet, sizeof(packet)) != sizeof(packet) ||
	    read(i->pair_fd, packet, sizeof(packet)) != sizeof(packet))
		stopwatch_fail("the other process has ended");
	return NULL;
}

static const struct innocence innocences[] = {
	{"attach", ATTACH_EVERY_NS, find_clock, round_attach},
	{"publish", PUBLISH_EVERY_NS, prepare_publish, round_publish},
	{"pair", ATTACH_EVERY_NS, prepare_pair, round_pair},
};

static uint64_t processor_ns(const struct innocent *i)
{
	struct timespec ts = {0};

	(void)clock_gettime(i->clock, &ts); /* fails once weightd has ended, as the round does */
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static void rest_until(uint64_t ns)
{
	struct timespec at = {.tv_sec = (time_t)(ns / 1000000000),
			      .tv_nsec = (long)(ns % 1000000000)};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
		;
}

/* The round under way has failed: the library waits longer than any bench. */
static void fail_at_alarm(int number)
{
	static const char text[] = "failed no answer\n";

	(void)number;
	_exit(write(STDOUT_FILENO, text, sizeof(text) - 1) < 0);
}

static void measure(const struct innocence *kind, struct innocent *i, uint64_t seconds_ns)
{
	uint64_t began = stopwatch_ns(), now = began, next = began;

	for (uint64_t n = 0;
	     now - began < seconds_ns || (n < ROUNDS_MIN && now - began < PATIENCE_S * 1000000000u);
	     n++) {
		uint64_t before = processor_ns(i);
		const char *why = kind->round(i);
		uint64_t ended = stopwatch_ns();

		if (why)
			(void)printf("failed %s\n", why);
		else
			(void)printf("%" PRIu64 " %" PRIu64 "\n", ended - now,
				     processor_ns(i) - before);
		next = next + kind->every_ns > ended ? next + kind->every_ns : ended;
		rest_until(next);
		now = stopwatch_ns();
	}
}

int main(int argc, char **argv)
{
	struct innocent innocent = {.name = argc > 3 ? argv[3] : NULL};
	const struct innocence *kind = NULL;
	uid_t uid;

	for (size_t i = 0; argc > 3 && i < sizeof(innocences) / sizeof(*innocences); i++)
		if (!strcmp(argv[2], innocences[i].name))
			kind = &innocences[i];
	if (!kind)
		stopwatch_fail("wants UID attach|publish NAME SECONDS, or UID pair SECONDS");
	uid = (uid_t)stopwatch_number(argv[1]);
	if (setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)
		stopwatch_fail("cannot become uid %d: %s", (int)uid, strerror(errno));
	(void)setvbuf(stdout, NULL, _IOLBF, 0);
	(void)signal(SIGALRM, fail_at_alarm);
	(void)alarm(PATIENCE_S + ANSWER_S);
	kind->prepare(&innocent);
	measure(kind, &innocent, (uint64_t)(strtod(argv[argc - 1], NULL) * 1e9));
	weightd_close(innocent.w);
	weightd_layout_free(innocent.layout);
	return 0;
}
