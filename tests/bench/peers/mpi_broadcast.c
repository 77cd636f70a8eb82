/*
 * mpi_broadcast BYTES: MPI_Bcast from rank 0, after a barrier. Prints the seconds until this rank has all, and the
 * processor time that it used.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static double cpu_seconds(void)
{
	struct rusage u;

	(void)getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

int main(int argc, char **argv)
{
	int rank;
	size_t n_bytes;
	double started, cpu;
	char *memory;

	if (argc != 2 || MPI_Init(&argc, &argv) != MPI_SUCCESS)
		return 2;
	n_bytes = strtoull(argv[1], NULL, 10);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	memory = malloc(n_bytes);
	if (!memory)
		return 1;
	memset(memory, rank == 0 ? 7 : 0, n_bytes);
	MPI_Barrier(MPI_COMM_WORLD);

	started = MPI_Wtime();
	cpu = cpu_seconds();
	MPI_Bcast(memory, (int)n_bytes, MPI_CHAR, 0, MPI_COMM_WORLD);
	started = MPI_Wtime() - started;
	cpu = cpu_seconds() - cpu;

	if (memory[0] != 7 || memory[n_bytes - 1] != 7)
		return 1;
	printf("%f %f %d\n", started, cpu, rank);
	free(memory);
	MPI_Finalize();
	return 0;
}
