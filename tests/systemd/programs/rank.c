/*
 * A rank of a job of one rank, which it creates, or joins if there is its token in the file TOKEN, until standard input ends.
 *
 *	rank NAME TOKEN
 *
 * For each line on standard input it makes a step: it looks after its connection, and counts in the memory of the job. It
 * prints the count and the result of the look, and does so when it is ready, too. -107: the server is not there.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "weightd.h"

#define COUNTS (1 << 18) /* in part 1 */

static int fail(const struct weightd *w, const char *what)
{
	fprintf(stderr, "%s: %s\n", what, weightd_error(w));
	return 1;
}

/* 0, or an errno of weightd_job_create(). */
static int find_token(struct weightd *w, const char *name, const char *path,
		      char token[WEIGHTD_TOKEN_MAX])
{
	const struct weightd_job_options options = {.size = sizeof(options), .n_ranks = 1};
	FILE *f = fopen(path, "r");
	int r;

	if (f) {
		r = fgets(token, WEIGHTD_TOKEN_MAX, f) ? 0 : -EIO;
		(void)fclose(f);
		return r;
	}
	r = weightd_job_create(w, name, &options, token);
	if (r < 0)
		return r;
	f = fopen(path, "w");
	if (!f || fputs(token, f) < 0 || fclose(f) != 0)
		return -EIO;
	return 0;
}

static uint64_t *map(const struct weightd_job *j, uint32_t part, size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, weightd_job_fd(j, part), 0);

	return p == MAP_FAILED ? NULL : p;
}

static int answer_lines(struct weightd_job *j, uint64_t *step, uint64_t *counts)
{
	char line[16];

	printf("%lu 0\n", (unsigned long)*step);
	(void)fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		int r = weightd_job_check(j);

		++*step;
		for (size_t i = 0; i < COUNTS; i++)
			if (++counts[i] != *step)
				r = -EUCLEAN;
		printf("%lu %d\n", (unsigned long)*step, r);
		(void)fflush(stdout);
	}
	return 0;
}

int main(int argc, char **argv)
{
	const struct weightd_part parts[] = {
		{.size = sizeof(parts[0]), .kind = "STEP", .n_bytes = 8},
		{.size = sizeof(parts[0]), .kind = "COUNTS", .n_bytes = COUNTS * sizeof(uint64_t)},
	};
	const struct weightd_join_options options = {
		.size = sizeof(options),
		.n_parts = 2,
		.parts = parts,
		.description = "counts",
		.description_size = 6,
	};
	char token[WEIGHTD_TOKEN_MAX];
	struct weightd_job *j;
	uint64_t *step, *counts;
	struct weightd *w;

	if (argc != 3 || weightd_new(&w) < 0)
		return 2;
	if (weightd_connect(w, NULL) < 0)
		return fail(w, "connect");
	if (find_token(w, argv[1], argv[2], token) < 0)
		return fail(w, "create");
	if (weightd_job_join(w, token, &options, &j) < 0)
		return fail(w, "join");
	step = map(j, 0, parts[0].n_bytes);
	counts = map(j, 1, parts[1].n_bytes);
	if (!step || !counts) {
		perror("mmap");
		return 1;
	}
	return answer_lines(j, step, counts);
}
