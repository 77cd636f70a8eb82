/*
 * The processor time of reading the headers of files, and of planning their load: plan PATH ROUNDS. A line a round: ns of
 * opening a safetensors file, and of a plan from the first byte to the last range.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "weightd.h"

static uint64_t cpu_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void check(struct weightd *w, int r)
{
	if (r == 0)
		return;
	(void)fprintf(stderr, "plan: %s (%s)\n", weightd_error(w), strerror(-r));
	exit(EXIT_FAILURE);
}

int main(int argc, char *argv[])
{
	struct weightd_safetensors *file;
	struct weightd_load_plan *plan;
	struct weightd *w;

	if (argc != 3 || weightd_new(&w) < 0)
		return EXIT_FAILURE;
	for (int i = atoi(argv[2]); i > 0; i--) {
		uint64_t start = cpu_ns(), open_ns, plan_ns;

		check(w, weightd_safetensors_open(w, argv[1], &file));
		open_ns = cpu_ns() - start;
		weightd_safetensors_close(file);
		start = cpu_ns();
		check(w, weightd_load_plan_new(w, (const char *const *)&argv[1], 1, NULL, &plan));
		plan_ns = cpu_ns() - start;
		weightd_load_plan_free(plan);
		(void)printf("%" PRIu64 " %" PRIu64 "\n", open_ns, plan_ns);
	}
	weightd_close(w);
	return 0;
}
