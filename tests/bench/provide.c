/*
 * provide weightd|collapse|memset BYTES: how long it takes until so much shared memory is there
 *
 * "weightd" asks the server of $WEIGHTD_SOCKET for a buffer, and waits before it ends until that memory
 * is free again. The others take a fresh memfd themselves: huge pages by touching and collapsing, 4K
 * pages by memset. Prints the nanoseconds.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weightd.h>

#include "tests/bench/slab.h"
#include "tests/bench/stopwatch.h"

#define NAME "bench/provide"
#define FREE_NS 10000000000

static uint64_t bytes_served(struct weightd *w)
{
	struct weightd_server server = {.size = sizeof(server)};

	if (weightd_ping(w, &server) < 0)
		stopwatch_fail("%s", weightd_error(w));
	return server.n_bytes;
}

static uint64_t provide_weightd(uint64_t size)
{
	struct weightd_layout *layout;
	struct weightd_writer *wr;
	struct weightd *w;
	uint64_t started, elapsed, before;

	if (weightd_new(&w) < 0 || weightd_layout_new(0, &layout) < 0 ||
	    weightd_layout_add(layout, "w", WEIGHTD_U8, 1, &size, WEIGHTD_PARAM, NULL) < 0)
		stopwatch_fail("no layout of %" PRIu64 " bytes", size);
	if (weightd_connect(w, NULL) < 0)
		stopwatch_fail("%s", weightd_error(w));
	before = bytes_served(w);
	started = stopwatch_ns();
	if (weightd_create(w, NAME, layout, NULL, &wr) < 0)
		stopwatch_fail("%s", weightd_error(w));
	elapsed = stopwatch_ns() - started;
	weightd_writer_free(wr);
	weightd_layout_free(layout);
	for (started = stopwatch_ns(); bytes_served(w) > before;)
		if (stopwatch_ns() - started > FREE_NS)
			stopwatch_fail("the server does not free what was dropped");
	weightd_close(w);
	return elapsed;
}

static void collapse(void *at, uint64_t size)
{
	(void)slab_provide(at, size);
}

static void set(void *at, uint64_t size)
{
	memset(at, 1, size);
}

static uint64_t provide_slab(void (*touch)(void *, uint64_t), uint64_t size)
{
	void *slab = slab_new(size);
	uint64_t started = stopwatch_ns(), elapsed;

	touch(slab, size);
	elapsed = stopwatch_ns() - started;
	slab_free(slab, size);
	return elapsed;
}

static const struct {
	const char *name;
	void (*touch)(void *, uint64_t);
} ways[] = {
	{"collapse", collapse},
	{"memset", set},
};

int main(int argc, char **argv)
{
	uint64_t size;

	if (argc != 3)
		stopwatch_fail("wants weightd|collapse|memset BYTES");
	size = stopwatch_number(argv[2]);
	if (!strcmp(argv[1], "weightd")) {
		(void)printf("%" PRIu64 "\n", provide_weightd(size));
		return 0;
	}
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
		if (!strcmp(argv[1], ways[i].name)) {
			(void)printf("%" PRIu64 "\n", provide_slab(ways[i].touch, size));
			return 0;
		}
	stopwatch_fail("knows no way called '%s'", argv[1]);
}
