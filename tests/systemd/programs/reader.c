/*
 * A process that computes: it has attached a version and reads it a thousand times a second, until standard input ends.
 *
 *	reader NAME VERSION
 *
 * For each line on standard input it asks the server for its name and prints how often it has read all bytes,
 * and how often they were not what they had been. It prints such a line when it is ready, too.
 */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weightd.h"

#define RESTART_TIMEOUT_MS 30000
/* Without a pause, it takes a whole processor from the tests beside it, whatever its niceness. */
#define PAUSE_MS 1

static struct {
	const void *bytes;
	void *copy;
	uint64_t size;
	pthread_mutex_t lock; /* protects the members below */
	pthread_cond_t done;
	unsigned long passes, different;
} reading = {.lock = PTHREAD_MUTEX_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

static _Atomic int end; /* one thread sets it, the other looks */

static void *read_on(void *unused)
{
	while (!atomic_load(&end)) {
		int differs = memcmp(reading.bytes, reading.copy, reading.size) != 0;

		(void)pthread_mutex_lock(&reading.lock);
		reading.passes++;
		reading.different += differs;
		(void)pthread_cond_signal(&reading.done);
		(void)pthread_mutex_unlock(&reading.lock);
		(void)poll(NULL, 0, PAUSE_MS);
	}
	return unused;
}

/* After two more passes: the second one began after the question. */
static void report(void)
{
	unsigned long passes;

	(void)pthread_mutex_lock(&reading.lock);
	passes = reading.passes;
	while (reading.passes < passes + 2)
		(void)pthread_cond_wait(&reading.done, &reading.lock);
	printf("%lu %lu\n", reading.passes, reading.different);
	(void)pthread_mutex_unlock(&reading.lock);
	(void)fflush(stdout);
}

static int fail(const struct weightd *w, const char *what)
{
	fprintf(stderr, "%s: %s\n", what, weightd_error(w));
	return 1;
}

static int answer_lines(struct weightd *w)
{
	char line[16];

	report();
	while (fgets(line, sizeof(line), stdin)) {
		struct weightd_server server = {.size = sizeof(server)};

		if (weightd_ping(w, &server) < 0)
			return fail(w, "ping");
		report();
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct weightd_attach_options o = {.size = sizeof(o)};
	struct weightd_buffer *b;
	pthread_t thread;
	struct weightd *w;
	int r;

	if (argc != 3 || weightd_new(&w) < 0)
		return 1;
	o.version = strtoull(argv[2], NULL, 10);
	weightd_set_restart_timeout(w, RESTART_TIMEOUT_MS);
	if (weightd_connect(w, NULL) < 0 || weightd_attach(w, argv[1], &o, &b) < 0)
		return fail(w, "attach");
	reading.bytes = weightd_buffer_data(b, &reading.size);
	reading.copy = malloc(reading.size);
	if (!reading.copy)
		return 1;
	memcpy(reading.copy, reading.bytes, reading.size);
	if (pthread_create(&thread, NULL, read_on, NULL) != 0)
		return 1;
	r = answer_lines(w);
	atomic_store(&end, 1);
	(void)pthread_join(thread, NULL);
	weightd_detach(b);
	weightd_close(w);
	free(reading.copy);
	return r;
}
