/*
 * Identity
 *
 * The job and the rank of this process, as the caller or the launcher gives them.
 */
#pragma once

#include <stdint.h>

#include "weightd-train.h"

/*
 * The token of options->token, $WEIGHTD_JOB or the file $WEIGHTD_JOB_FILE; the rank of options->rank, or of $LOCAL_RANK or
 * $RANK. `options` NULL: all from the environment. -EINVAL and errors of open(), with a sentence.
 */
int identity_resolve(const struct weightd_train_options *options, char ret_token[WEIGHTD_TOKEN_MAX],
		     uint32_t *ret_rank);

/* The number of ranks of the token's job. -ENOENT: this user has no such job. */
int identity_count_ranks(struct weightd *w, const char *token, uint32_t *ret);
