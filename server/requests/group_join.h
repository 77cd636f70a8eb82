/*
 * Joining a job
 *
 * The first join makes the job's memory: worker, then store, then the commit, then the answers to all that wait.
 */
#pragma once

#include "ipc/wire.h"

struct session;
struct writer_group;

/* `description_fd` stays the caller's. */
void group_join_start(struct session *s, const struct wire_job_join *join, int description_fd);

/* Continues the joins that waited for the group while it was busy. */
void group_join_wake(struct writer_group *g);
