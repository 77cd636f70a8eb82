/*
 * token NAME RANKS: creates a job and prints its token
 */
#include <stdio.h>

#include "tests/bench/connection.h"
#include "tests/bench/stopwatch.h"

int main(int argc, char **argv)
{
	struct weightd_job_options options = {.size = sizeof(options)};
	char token[WEIGHTD_TOKEN_MAX];
	struct weightd *w;

	if (argc != 3)
		stopwatch_fail("wants NAME RANKS");
	options.n_ranks = (uint32_t)stopwatch_number(argv[2]);
	w = connect_anew();
	if (weightd_job_create(w, argv[1], &options, token) < 0)
		stopwatch_fail("%s", weightd_error(w));
	(void)puts(token);
	weightd_close(w);
	return 0;
}
