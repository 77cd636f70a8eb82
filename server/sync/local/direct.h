/*
 * Direct versions
 *
 * Versions on a GPU that an engine over NCCL reads and writes in place: the agent lends the
 * allocation itself. Bytes that NCCL does not carry go through host memory, leaf by leaf: leaves
 * are staged on request.
 */
#pragma once

#include "server/sync/local/task.h"

/*
 * Decides by the first message, after connecting, if the task's version is direct. A direct version
 * needs a GPU, and NCCL of the version in the message, if it contains one. -EOPNOTSUPP with a
 * fault.
 */
int direct_read(struct task *e, const struct json_packet *t, const struct target *target,
		struct fault *f);

/* Explains memory that weightd has no descriptor for, with the way out. Returns `r`. */
int direct_refuse(const struct task *e, int r, struct fault *f);

/*
 * Adds to an answer the place of the memory, as orders have it, and the version of NCCL; for other
 * versions, that they are in host memory.
 */
void direct_describe(const struct task *e, json_t *message);

/* The bytes of this leaf are in the staging, not in weightd's memory. */
bool direct_is_staged(const struct task *e, uint64_t leaf);

/*
 * Copies the leaves of the message's ranges from the GPU to the staging, in addition to those
 * there, and lends the staging.
 */
int direct_stage(struct task *e, const struct json_packet *t, struct fault *f);
