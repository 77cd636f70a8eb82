/*
 * Identity
 *
 * The job and the rank of this process, as the caller or the launcher gives them.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "weightd-train.h"

/*
 * The token of options->token, $WEIGHTD_JOB or the file $WEIGHTD_JOB_FILE; the rank of options->rank, or of $LOCAL_RANK (Open
 * MPI's and SLURM's likewise) or $RANK. `options` NULL: all from the environment. -EINVAL and errors of open(), with a
 * sentence.
 */
int identity_resolve(const struct weightd_train_options *options, char ret_token[WEIGHTD_TOKEN_MAX],
		     uint32_t *ret_rank);

/*
 * The node of a plan: nodes->node, or that of the launcher: $GROUP_RANK, or Open MPI's or SLURM's. `nodes` NULL: from the
 * environment. -EINVAL with a sentence.
 */
int identity_node(const struct weightd_nodes *nodes, uint32_t n_nodes, uint32_t *ret);

/* A rank is one process, and its forked children are none: -ECHILD, with a sentence, in any but the one that opened it. */
int identity_check(pid_t opener);

/* The number of ranks of the token's job. -ENOENT: this user has no such job. */
int identity_count_ranks(struct weightd *w, const char *token, uint32_t *ret);
