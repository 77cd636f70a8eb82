/*
 * The job of a run: made, or resumed with the token in a file, and what remains of it afterwards
 */
#pragma once

#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/verbs/train_nodes.h"

struct train_job {
	char name[WEIGHTD_NAME_MAX + 1];
	char token[WEIGHTD_TOKEN_MAX];
	const char *token_file; /* NULL: nothing resumes the job */
};

/* A new job. `name` NULL: one is made from that of the program. `linger_ms` 0: a default, for jobs without a file. */
struct train_job_request {
	const char *name;
	char *const *argv; /* of the program */
	const char *token_file;
	uint32_t n_ranks;
	const struct train_nodes *nodes; /* several: the number of this one becomes a part of the name */
	int64_t linger_ms;
};

/*
 * Resumes the job if there is a token file, else makes one and writes the file if that was asked for. 0, or EXIT_FAILED
 * after printing why.
 */
int train_job_open(struct cli *cli, const struct train_job_request *request, struct train_job *ret);

/*
 * After the last rank. A job that can be resumed remains, unless no rank ever joined it; any other is removed. Prints
 * what becomes of one that has not ended, and nothing else.
 */
void train_job_end(struct cli *cli, const struct train_job *job);
