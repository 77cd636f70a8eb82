/*
 * publish NAME BYTES ROUNDS: the times that a writer waits, and until a waiting reader sees the
 * version
 *
 * Each round makes a version, fills it, digests it leaf by leaf (as a loader does while the bytes
 * are hot) and publishes it, while another process waits for it in weightd_buffer_wait(). A line
 * has the nanoseconds of the digests, of weightd_writer_publish(), and from its call to the
 * reader's awakening. The server is the one of $WEIGHTD_SOCKET; the buffer must not exist, and is
 * removed in the end.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weightd.h>

#include "tests/bench/connection.h"
#include "tests/bench/stopwatch.h"

#define WAIT_MS 30000

struct round {
	uint64_t digest_ns, publish_ns, called_ns; /* the last is a point in time */
};

/* --- The reader -------------------------------------------------------------------------------- */

/* Sends a byte as soon as it is about to wait, then the time at which it woke. */
static void read_versions(const char *name, uint64_t n_rounds, int to)
{
	struct weightd_attach_options options = {.size = sizeof(options), .timeout_ms = WAIT_MS};
	struct weightd *w = connect_anew();
	struct weightd_buffer *b;
	uint64_t version, woken;

	if (weightd_attach(w, name, &options, &b) < 0)
		stopwatch_fail("%s", weightd_error(w));
	version = weightd_buffer_version(b);
	for (uint64_t i = 0; i < n_rounds; i++) {
		int r;

		if (write(to, "", 1) != 1)
			stopwatch_fail("the writer is gone");
		r = weightd_buffer_wait(b, version, WAIT_MS, &version);
		woken = stopwatch_ns();
		if (r < 0)
			stopwatch_fail("no new version: %s", strerror(-r));
		if (write(to, &woken, sizeof(woken)) != sizeof(woken))
			stopwatch_fail("the writer is gone");
	}
	weightd_detach(b);
	weightd_close(w);
}

static void take(int from, void *ret, size_t size)
{
	if (read(from, ret, size) != (ssize_t)size)
		stopwatch_fail("the reader is gone");
}

/* --- The writer -------------------------------------------------------------------------------- */

static struct weightd_layout *make_layout(uint64_t n_bytes)
{
	struct weightd_layout *l;

	if (weightd_layout_new(0, &l) < 0 ||
	    weightd_layout_add(l, "w", WEIGHTD_U8, 1, &n_bytes, WEIGHTD_PARAM, NULL) < 0)
		stopwatch_fail("no layout of %" PRIu64 " bytes", n_bytes);
	return l;
}

static struct weightd_writer *fill(struct weightd *w, const char *name,
				   const struct weightd_layout *layout, int byte)
{
	/* One version: the memory of the last is free when the next but one is made. */
	const struct weightd_create_options options = {.size = sizeof(options), .keep = 1};
	struct weightd_writer *wr;
	uint64_t size;
	void *data;

	if (weightd_create(w, name, layout, &options, &wr) < 0)
		stopwatch_fail("%s", weightd_error(w));
	data = weightd_writer_data(wr, &size);
	memset(data, byte, size);
	return wr;
}

static uint64_t digest(struct weightd_writer *wr)
{
	uint64_t started = stopwatch_ns(), size;

	(void)weightd_writer_data(wr, &size);
	for (uint64_t leaf = 0; leaf * WEIGHTD_LEAF_SIZE < size; leaf++)
		weightd_writer_digest_leaf(wr, leaf);
	return stopwatch_ns() - started;
}

static struct round publish(struct weightd *w, struct weightd_writer *wr)
{
	struct round round = {.digest_ns = digest(wr), .called_ns = stopwatch_ns()};

	if (weightd_writer_publish(wr, NULL) < 0)
		stopwatch_fail("%s", weightd_error(w));
	round.publish_ns = stopwatch_ns() - round.called_ns;
	weightd_writer_free(wr);
	return round;
}

static void write_versions(const char *name, uint64_t n_bytes, uint64_t n_rounds, int from)
{
	struct weightd_layout *layout = make_layout(n_bytes);
	struct weightd *w = connect_anew();

	(void)publish(w, fill(w, name, layout, 1));
	for (uint64_t i = 0; i < n_rounds; i++) {
		struct weightd_writer *wr = fill(w, name, layout, (int)(i % 250) + 2);
		struct round round;
		uint64_t woken;
		char ready;

		take(from, &ready, 1);
		round = publish(w, wr);
		take(from, &woken, sizeof(woken));
		(void)printf("%" PRIu64 " %" PRIu64 " %" PRId64 "\n", round.digest_ns,
			     round.publish_ns, (int64_t)(woken - round.called_ns));
	}
	if (weightd_drop(w, name, NULL, 0) < 0)
		stopwatch_fail("%s", weightd_error(w));
	weightd_close(w);
	weightd_layout_free(layout);
}

int main(int argc, char **argv)
{
	uint64_t n_rounds;
	int ends[2], status;
	pid_t reader;

	if (argc != 4)
		stopwatch_fail("wants NAME BYTES ROUNDS");
	n_rounds = stopwatch_number(argv[3]);
	if (pipe(ends) < 0)
		stopwatch_fail("no pipe: %s", strerror(errno));
	reader = fork(); /* before there is a connection, which would be the parent's */
	if (reader < 0)
		stopwatch_fail("no second process: %s", strerror(errno));
	if (reader == 0) {
		(void)close(ends[0]);
		read_versions(argv[1], n_rounds, ends[1]);
		return 0;
	}
	(void)close(ends[1]);
	write_versions(argv[1], stopwatch_number(argv[2]), n_rounds, ends[0]);
	if (waitpid(reader, &status, 0) < 0 || status)
		stopwatch_fail("the reader failed");
	return 0;
}
