/*
 * The locks of ranks
 *
 * POSIX record locks on bytes of part 0 of a job: byte `rank` belongs to the process that is this rank. The kernel releases
 * it once the process has ended and its memory is unmapped, and it is not inherited by a fork. It is also lost when the
 * process closes any descriptor of the file: hence the file is closed with the last lock that this process has there.
 *
 * A process that acts for a dead rank locks its byte, too, and byte WIRE_JOB_RANKS_MAX + `rank`, to be told from that rank.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/base/list.h"
#include "ipc/wire.h"

#define JOB_LOCK_BYTES (2 * WIRE_JOB_RANKS_MAX)

struct job_lock {
	struct list link; /* locks of this process, in job_lock.c */
	pid_t owner;
	int fd; /* part 0 */
	dev_t dev;
	ino_t ino;
	bool is_idle; /* freed, and kept for its descriptor */
	bool bytes[JOB_LOCK_BYTES]; /* those that it holds */
};

/* Takes the descriptor over. -errno: it is closed. */
int job_lock_new(int fd, struct job_lock **ret);
void job_lock_free(struct job_lock *l);

/* 0, or -EBUSY and the process with it, as job_lock_holder() returns it. Waits for one that is ending, or acts for the rank. */
int job_lock_take(struct job_lock *l, uint32_t rank, pid_t *ret_holder);
/* Takes the lock of a dead rank to act for it. -EBUSY as above. Does not wait. */
int job_lock_act(struct job_lock *l, uint32_t rank, pid_t *ret_holder);
void job_lock_end_act(struct job_lock *l, uint32_t rank);

/* The server has removed the job. */
bool job_lock_is_removed(const struct job_lock *l);

/* 0: no process; -1: one that this process cannot see. */
pid_t job_lock_holder(const struct job_lock *l, uint32_t rank);
/* The process, as job_lock_holder() returns it, acts for that rank. */
bool job_lock_is_acting(const struct job_lock *l, uint32_t rank, pid_t pid);
/* The rank that a process is. -1: none, or one that this process cannot see. */
int64_t job_lock_rank_of(const struct job_lock *l, pid_t pid);
