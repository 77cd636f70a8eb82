/*
 * Direct versions
 *
 * Versions on a GPU that an engine over NCCL reads and writes where they are: what is lent of one is its allocation.
 * What NCCL does not bring goes through host memory all the same, leaf by leaf: those that are staged when that is
 * asked for.
 */
#pragma once

#include "server/sync/local/task.h"

/*
 * Whether the task's version is one, by its first message, and after it is connected; then there has to be a GPU, and
 * NCCL of the version that the message says, if it says one. -EOPNOTSUPP with a fault.
 */
int direct_read(struct task *e, const struct json_packet *t, const struct target *target,
		struct fault *f);

/* What weightd says of memory that has no descriptor, and the way out. Returns `r`. */
int direct_refuse(const struct task *e, int r, struct fault *f);

/* Adds to an answer where it is, as orders have that, and the version of NCCL; of others, that they are in host memory. */
void direct_describe(const struct task *e, json_t *message);

/* Whether the bytes of this leaf are those of the staging, and not of weightd's memory. */
bool direct_is_staged(const struct task *e, uint64_t leaf);

/* Stages the leaves of the message's ranges as the GPU has them, beside those that are, and lends the staging. */
int direct_stage(struct task *e, const struct json_packet *t, struct fault *f);
