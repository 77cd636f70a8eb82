#include "tests/bench/tenants/burn.h"

#include <stdint.h>
#include <time.h>

#include "tests/bench/stopwatch.h"

#define PERIOD_NS 1000000u

void burn(double share, const atomic_bool *stop)
{
	uint64_t begin = stopwatch_ns();
	uint64_t busy_ns = (uint64_t)(share * PERIOD_NS);

	while (!atomic_load(stop)) {
		struct timespec rest = {0};
		uint64_t spent;

		while (stopwatch_ns() - begin < busy_ns)
			;
		spent = stopwatch_ns() - begin;
		if (spent < PERIOD_NS) {
			rest.tv_nsec = (long)(PERIOD_NS - spent);
			(void)nanosleep(&rest, NULL);
		}
		begin = stopwatch_ns();
	}
}
