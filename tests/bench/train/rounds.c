#include "tests/bench/train/rounds.h"

#include <inttypes.h>
#include <stdlib.h>

#include "tests/bench/stopwatch.h"

static FILE *pipe_open(const char *name, uint32_t rank, const char *mode)
{
	const char *folder = getenv("ROUNDS");
	char path[4096];
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s/%s.%" PRIu32, folder ? folder : ".", name, rank);
	f = fopen(path, mode);
	if (!f)
		stopwatch_fail("cannot open %s: %m", path);
	return f;
}

struct rounds rounds_open(uint32_t rank)
{
	struct rounds r = {.in = pipe_open("in", rank, "re"), .out = pipe_open("out", rank, "we")};

	rounds_answer(&r, NULL, 0);
	return r;
}

bool rounds_next(struct rounds *r, struct round *ret)
{
	return fscanf(r->in, "%31s %" SCNu64 " %" SCNu64 " %" SCNu64, ret->verb, &ret->size,
		      &ret->count, &ret->repeats) == 4;
}

void rounds_answer(struct rounds *r, const uint64_t *numbers, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		(void)fprintf(r->out, "%" PRIu64 " ", numbers[i]);
	(void)fputc('\n', r->out);
	if (fflush(r->out))
		stopwatch_fail("the bench does not read: %m");
}

void rounds_measure(struct rounds *r, const struct round *round, void (*begin)(void *),
		    void (*run)(void *), void *context)
{
	for (uint64_t i = 0; i < round->count; i++) {
		uint64_t started;

		begin(context);
		started = stopwatch_ns();
		for (uint64_t repeat = 0; repeat < round->repeats; repeat++)
			run(context);
		(void)fprintf(r->out, "%" PRIu64 " ", (stopwatch_ns() - started) / round->repeats);
	}
	rounds_answer(r, NULL, 0);
}
