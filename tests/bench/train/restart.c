/*
 * restart RANK RANKS ELEMENTS: a rank that trains until it is killed
 *
 * Prints the time (CLOCK_MONOTONIC, in ns) when the job is open, and when each step is done.
 */
#include <inttypes.h>
#include <stdio.h>

#include "tests/bench/stopwatch.h"
#include "tests/bench/train/trainer.h"

static void time_print(const char *what, const struct weightd_train *t)
{
	if (printf("%s %" PRIu64 " %" PRIu64 "\n", what, weightd_train_step(t), stopwatch_ns()) < 0 ||
	    fflush(stdout))
		stopwatch_fail("the bench does not read: %m");
}

int main(int argc, char **argv)
{
	struct trainer t;

	if (argc != 4)
		stopwatch_fail("wants RANK RANKS ELEMENTS");
	t = trainer_open(&(struct trainer_options){.rank = (uint32_t)stopwatch_number(argv[1]),
						   .n_ranks = (uint32_t)stopwatch_number(argv[2]),
						   .n_elements = stopwatch_number(argv[3])});
	time_print("open", t.train);
	for (;;) {
		trainer_step(&t);
		time_print("step", t.train);
	}
}
