/*
 * attach NAME TENSOR ROUNDS [apart]: from no connection to a tensor's first byte, again and again
 *
 * The server is the one of $WEIGHTD_SOCKET. A line holds the nanoseconds of connecting, attaching,
 * finding the tensor and loading its first byte, and of letting go of all that. Connecting is a part of
 * attaching, and 0, unless the two are to be `apart`: a call each.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weightd.h>

#include "tests/bench/stopwatch.h"

struct round {
	uint64_t connect_ns, attach_ns, find_ns, detach_ns;
};

static uint8_t sink; /* takes the loaded bytes, so that they are loaded */

static struct round measure(const char *name, const char *tensor, bool apart)
{
	struct weightd_attach_options options = {.size = sizeof(options), .connect = !apart};
	struct weightd_tensor t = {.size = sizeof(t)};
	struct weightd_buffer *b;
	struct weightd *w;
	uint64_t started = stopwatch_ns(), connected, attached, found, ended;
	int r = weightd_new(&w);

	if (r < 0)
		stopwatch_fail("no connection: %s", strerror(-r));
	if (apart && weightd_connect(w, NULL) < 0)
		stopwatch_fail("%s", weightd_error(w));
	connected = apart ? stopwatch_ns() : started;
	if (weightd_attach(w, name, &options, &b) < 0)
		stopwatch_fail("%s", weightd_error(w));
	attached = stopwatch_ns();
	if (weightd_buffer_find(b, tensor, &t) < 0)
		stopwatch_fail("'%s' has no tensor '%s'", name, tensor);
	sink = *(const volatile uint8_t *)t.data;
	found = stopwatch_ns();
	weightd_detach(b);
	weightd_close(w);
	ended = stopwatch_ns();
	return (struct round){connected - started, attached - connected, found - attached,
			      ended - found};
}

int main(int argc, char **argv)
{
	struct round *rounds;
	uint64_t n_rounds;

	if (argc != 4 && (argc != 5 || strcmp(argv[4], "apart") != 0))
		stopwatch_fail("wants NAME TENSOR ROUNDS [apart]");
	n_rounds = stopwatch_number(argv[3]);
	rounds = calloc(n_rounds, sizeof(*rounds));
	if (!rounds)
		stopwatch_fail("out of memory");
	for (uint64_t i = 0; i < n_rounds; i++)
		rounds[i] = measure(argv[1], argv[2], argc == 5);
	for (uint64_t i = 0; i < n_rounds; i++)
		(void)printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
			     rounds[i].connect_ns, rounds[i].attach_ns, rounds[i].find_ns,
			     rounds[i].detach_ns);
	free(rounds);
	return 0;
}
