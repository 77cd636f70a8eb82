/*
 * Clients that connect and leave, until standard input ends.
 *
 *	visitors NAME N
 *
 * Each of N threads connects, attaches buffer NAME, compares version and bytes with what they were when the
 * program started, and leaves, some ten times a second: hundreds without a pause take all processors from the
 * tests beside them. For each line on standard input one is printed, once every thread has made a whole visit
 * that began after it: visits, visits that failed, connections refused, and connections without an answer in
 * time, since the start.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weightd.h"

#define RESTART_TIMEOUT_MS 30000
#define PAUSE_MS 100

enum visit {
	VISIT_DONE,
	VISIT_FAILED,
	VISIT_REFUSED, /* there was no server to visit */
	VISIT_UNANSWERED,
	N_VISITS,
};

static struct {
	const char *name;
	uint64_t version;
	uint64_t size;
	void *bytes;
} wanted;

static struct {
	pthread_mutex_t lock; /* protects all members */
	pthread_cond_t done; /* a thread has caught up with `asked` */
	bool end;
	unsigned asked; /* lines read */
	unsigned behind; /* threads that have not made a visit since the last one */
	unsigned long n[N_VISITS];
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

static const char *look(struct weightd *w, struct weightd_buffer **ret)
{
	const void *bytes;
	uint64_t size;

	if (weightd_attach(w, wanted.name, NULL, ret) < 0)
		return weightd_error(w);
	bytes = weightd_buffer_data(*ret, &size);
	if (weightd_buffer_version(*ret) != wanted.version)
		return "another version";
	if (size != wanted.size || memcmp(bytes, wanted.bytes, size) != 0)
		return "other bytes";
	return NULL;
}

static enum visit visit(void)
{
	enum visit ret = VISIT_DONE;
	struct weightd_buffer *b = NULL;
	const char *wrong;
	struct weightd *w;
	int r;

	if (weightd_new(&w) < 0)
		return VISIT_FAILED;
	weightd_set_restart_timeout(w, RESTART_TIMEOUT_MS);
	r = weightd_connect(w, NULL);
	if (r < 0) {
		fprintf(stderr, "not connected: %s\n", weightd_error(w));
		ret = r == -ETIMEDOUT ? VISIT_UNANSWERED : VISIT_REFUSED;
	} else if ((wrong = look(w, &b))) {
		fprintf(stderr, "%s\n", wrong);
		ret = VISIT_FAILED;
	}
	weightd_detach(b);
	weightd_close(w);
	return ret;
}

static bool is_made(enum visit v)
{
	return v == VISIT_DONE || v == VISIT_FAILED;
}

static void *come_and_go(void *unused)
{
	unsigned seen = 0;

	(void)pthread_mutex_lock(&state.lock);
	while (!state.end) {
		unsigned asked = state.asked;
		enum visit v;

		(void)pthread_mutex_unlock(&state.lock);
		v = visit();
		if (is_made(v))
			(void)poll(NULL, 0, PAUSE_MS);
		else
			(void)sched_yield();
		(void)pthread_mutex_lock(&state.lock);
		state.n[v]++;
		if (is_made(v) && seen != asked) {
			seen = asked;
			if (asked == state.asked && --state.behind == 0)
				(void)pthread_cond_signal(&state.done);
		}
	}
	(void)pthread_mutex_unlock(&state.lock);
	return unused;
}

static void answer_lines(unsigned n)
{
	char line[16];

	while (fgets(line, sizeof(line), stdin)) {
		(void)pthread_mutex_lock(&state.lock);
		state.asked++;
		state.behind = n;
		while (state.behind > 0)
			(void)pthread_cond_wait(&state.done, &state.lock);
		printf("%lu %lu %lu %lu\n", state.n[VISIT_DONE] + state.n[VISIT_FAILED],
		       state.n[VISIT_FAILED], state.n[VISIT_REFUSED], state.n[VISIT_UNANSWERED]);
		(void)pthread_mutex_unlock(&state.lock);
		(void)fflush(stdout);
	}
}

static int remember(const char *name)
{
	struct weightd_buffer *b;
	const void *bytes;
	struct weightd *w;

	if (weightd_new(&w) < 0)
		return 1;
	if (weightd_connect(w, NULL) < 0 || weightd_attach(w, name, NULL, &b) < 0) {
		fprintf(stderr, "%s\n", weightd_error(w));
		return 1;
	}
	bytes = weightd_buffer_data(b, &wanted.size);
	wanted.name = name;
	wanted.version = weightd_buffer_version(b);
	wanted.bytes = malloc(wanted.size);
	if (!wanted.bytes)
		return 1;
	memcpy(wanted.bytes, bytes, wanted.size);
	weightd_detach(b);
	weightd_close(w);
	return 0;
}

int main(int argc, char **argv)
{
	unsigned n = argc == 3 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
	pthread_t *threads = calloc(n, sizeof(*threads));

	if (n == 0 || !threads || remember(argv[1]) != 0)
		return 1;
	for (unsigned i = 0; i < n; i++)
		if (pthread_create(&threads[i], NULL, come_and_go, NULL) != 0)
			return 1;
	answer_lines(n);
	(void)pthread_mutex_lock(&state.lock);
	state.end = true;
	(void)pthread_mutex_unlock(&state.lock);
	for (unsigned i = 0; i < n; i++)
		(void)pthread_join(threads[i], NULL);
	free(threads);
	free(wanted.bytes);
	return 0;
}
