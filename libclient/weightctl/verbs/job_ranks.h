/*
 * The ranks of training jobs: a row each, and the rank that the others wait for
 */
#pragma once

#include <stdio.h>

#include <weightd-train.h>

#include "libclient/weightctl/cli.h"

struct job_ranks {
	struct job_ranks_job {
		char *name;
		struct weightd_train_status *status;
	} * jobs;
	size_t n_jobs;
};

/* The longest wait in a job: `rank` waits, in the end for `straggler`, or for the node that this one waits for. */
struct job_wait {
	struct weightd_rank_status rank, straggler;
	uint32_t node; /* UINT32_MAX: none */
	uint32_t n_others; /* ranks that wait as well */
};

extern const struct column job_ranks_columns[];

/*
 * Reads the status of the named jobs, or of all that the caller may see and that have begun. The caller frees it with
 * job_ranks_deinit(). 0, or EXIT_FAILED after printing why.
 */
int job_ranks_fetch(struct cli *cli, char *const names[], size_t n_names, struct job_ranks *ret);
void job_ranks_deinit(struct job_ranks *r);

struct weightd_rank_status job_ranks_get(const struct weightd_train_status *status, uint32_t rank);
uint32_t job_ranks_count(const struct weightd_train_status *status);
/* Nodes of the mesh; the job is that of one of them. */
uint32_t job_ranks_nodes(const struct weightd_train_status *status);
/* The rank of the mesh that a rank waits for; UINT32_MAX: none, or a node. */
uint32_t job_ranks_waits(const struct weightd_rank_status *rank);
/* The node that it waits for; UINT32_MAX: none. */
uint32_t job_ranks_waits_node(const struct weightd_rank_status *rank);
/* Dimensions of the mesh: the last one has the shards; the first of two has replicas. */
uint32_t job_ranks_n_dims(const struct weightd_train_status *status);
const char *job_ranks_dim(const struct weightd_train_status *status, uint32_t dim);

/* Nanoseconds of a time of a status; UINT64_MAX: none. */
uint64_t job_ranks_ns(double seconds);

/* False: no rank waits, or none but for those that are about to continue. */
bool job_wait_find(const struct weightd_train_status *status, struct job_wait *ret);
/* "rank 2 waits 0.8 s for rank 1 (computing)", "rank 2 waits 0.8 s for node 1" */
void job_wait_put(const struct job_wait *wait, FILE *f);

/*
 * Prints a table and a sentence for each job in which ranks wait; or, with `json`, members of the open object. `is_redrawn`: on
 * a screen, see table.h. 0, or EXIT_FAILED after printing why.
 */
int job_ranks_print(const struct cli *cli, const struct job_ranks *r, FILE *f, struct json *json,
		    bool is_redrawn);
