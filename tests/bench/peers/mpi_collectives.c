/*
 * mpi_collectives BYTES: a rank of OpenMPI, for rounds (../train/rounds.h)
 *
 * "all_reduce" in place, "reduce_scatter", and "all_gather" of parts into memory of each rank.
 */
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/stopwatch.h"
#include "tests/bench/train/rounds.h"

struct collective {
	float *data, *part;
	int n_ranks;
	struct round *round;
};

static void collective_begin(void *context)
{
	(void)context;
	MPI_Barrier(MPI_COMM_WORLD);
}

static void collective_run(void *context)
{
	const struct collective *c = context;
	int n = (int)(c->round->size / sizeof(float));

	if (!strcmp(c->round->verb, "all_reduce"))
		MPI_Allreduce(MPI_IN_PLACE, c->data, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	else if (!strcmp(c->round->verb, "reduce_scatter"))
		MPI_Reduce_scatter_block(c->data, c->part, n / c->n_ranks, MPI_FLOAT, MPI_SUM,
					 MPI_COMM_WORLD);
	else
		MPI_Allgather(c->part, n / c->n_ranks, MPI_FLOAT, c->data, n / c->n_ranks,
			      MPI_FLOAT, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
	struct round round;
	struct collective c = {.round = &round};
	struct rounds rounds;
	uint64_t size;
	int rank;

	if (argc != 2 || MPI_Init(&argc, &argv) != MPI_SUCCESS)
		return 2;
	size = stopwatch_number(argv[1]);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &c.n_ranks);
	c.data = calloc(1, size);
	c.part = calloc(1, size);
	if (!c.data || !c.part)
		stopwatch_fail("out of memory");
	memset(c.data, 0, size);
	memset(c.part, 0, size);
	rounds = rounds_open((uint32_t)rank);
	while (rounds_next(&rounds, &round))
		rounds_measure(&rounds, &round, collective_begin, collective_run, &c);
	MPI_Finalize();
	return 0;
}
