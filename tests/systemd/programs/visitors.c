/*
 * Clients that come and go, without a pause, until standard input ends.
 *
 *	visitors NAME N
 *
 * Each of N threads connects, attaches buffer NAME, compares version and bytes with what they were when the
 * program started, and leaves, again and again. For each line on standard input one is printed, once every
 * thread has made a whole visit that began after it: visits, visits that failed, and connections refused,
 * since the start.
 */
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weightd.h"

#define RESTART_TIMEOUT_MS 30000

static struct {
	const char *name;
	uint64_t version;
	uint64_t size;
	void *bytes;
} wanted;

static struct {
	pthread_mutex_t lock; /* of all of this */
	pthread_cond_t done; /* a thread has caught up with `asked` */
	bool end;
	unsigned asked; /* lines read */
	unsigned behind; /* threads that have not made a visit since the last one */
	unsigned long visits, failed, refused;
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

/* 1: done; 0: it failed; -1: there was nobody to visit. */
static int visit(void)
{
	struct weightd_buffer *b = NULL;
	const char *wrong;
	struct weightd *w;
	int r = 1;

	if (weightd_new(&w) < 0)
		return 0;
	weightd_set_restart_timeout(w, RESTART_TIMEOUT_MS);
	if (weightd_connect(w, NULL) < 0) {
		fprintf(stderr, "not connected: %s\n", weightd_error(w));
		r = -1;
	} else if ((wrong = look(w, &b))) {
		fprintf(stderr, "%s\n", wrong);
		r = 0;
	}
	weightd_detach(b);
	weightd_close(w);
	return r;
}

static void *come_and_go(void *unused)
{
	unsigned seen = 0;

	(void)pthread_mutex_lock(&state.lock);
	while (!state.end) {
		unsigned asked = state.asked;
		int r;

		(void)pthread_mutex_unlock(&state.lock);
		r = visit();
		if (r < 0)
			(void)sched_yield();
		(void)pthread_mutex_lock(&state.lock);
		state.visits += r >= 0;
		state.failed += r == 0;
		state.refused += r < 0;
		if (r >= 0 && seen != asked) {
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
		printf("%lu %lu %lu\n", state.visits, state.failed, state.refused);
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
