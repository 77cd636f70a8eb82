/*
 * The executor
 *
 * Walks the operations of a plan on the memory of a job, for one version of the parameters after the other. Where it was
 * in a step is in the job's words alone, so it may begin a step that it, or a process before it, has begun.
 */
#pragma once

#include <stdint.h>

struct weightd_train;

/*
 * Makes the versions up to `until` that this rank has not made, waits until all ranks have, and makes those up to `newest`
 * whose gradients are there. Errors of waits leave the step to be continued by another call.
 */
int executor_advance(struct weightd_train *t, uint64_t until, uint64_t newest);
