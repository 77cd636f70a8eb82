/*
 * reader NAME: attaches a buffer, reads every page of it, and stays
 *
 * Prints the address of the bytes once all were read; lets go at the end of its standard input. The
 * server is the one of $WEIGHTD_SOCKET.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <weightd.h>

#include "tests/bench/slab.h"
#include "tests/bench/stopwatch.h"

static uint64_t touch(const void *data, uint64_t size)
{
	uint64_t sum = 0;

	for (uint64_t at = 0; at < size; at += SLAB_PAGE)
		sum += ((const volatile uint8_t *)data)[at];
	return sum;
}

int main(int argc, char **argv)
{
	struct weightd_buffer *b;
	struct weightd *w;
	const void *data;
	uint64_t size;
	char byte;
	int r;

	if (argc != 2)
		stopwatch_fail("wants NAME");
	r = weightd_new(&w);
	if (r < 0)
		stopwatch_fail("no connection: %s", strerror(-r));
	if (weightd_connect(w, NULL) < 0 || weightd_attach(w, argv[1], NULL, &b) < 0)
		stopwatch_fail("%s", weightd_error(w));
	data = weightd_buffer_data(b, &size);
	(void)printf("%" PRIuPTR " %" PRIu64 "\n", (uintptr_t)data, touch(data, size));
	(void)fflush(stdout);
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	weightd_detach(b);
	weightd_close(w);
	return 0;
}
