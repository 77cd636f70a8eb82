/*
 * Jobs
 *
 * The processes that work for the agent, each behind one socket. What one says comes from the loop, and so does
 * its end, once and last. Telling never waits: what has no room yet is queued. Killing does not wait either:
 * the dead are buried when the kernel says so.
 */
#pragma once

#include <jansson.h>
#include <sys/types.h>

#include "server/base/loop.h"
#include "server/sync/state/env.h"

struct jobs_events {
	/* Descriptors that are kept are set to -1. */
	void (*on_said)(void *userdata, void *owner, const json_t *message, int *fds,
			unsigned n_fds);
	/* `how`: "signal 9", "exit status 0". The job is gone. */
	void (*on_end)(void *userdata, void *owner, const char *how);
};

struct jobs {
	struct loop *loop;
	const struct jobs_events *events;
	void *userdata;
	struct list all; /* struct job */
	struct list dying; /* struct job: killed, and not over yet */
};

void jobs_init(struct jobs *j, struct loop *l, const struct jobs_events *events, void *userdata);
/* Kills all there are, and waits for them. */
void jobs_deinit(struct jobs *j);

/*
 * Starts `program`, which lies in the folder of this one, to work for a buffer; NULL: for none. -errno with a
 * sentence.
 */
int job_start(struct jobs *j, const char *program, const char *argument, const char *buffer,
	      void *owner, struct job **ret, char why[WHY_SIZE]);
/*
 * Once all of the same buffer that were ended are gone. Descriptors are duplicated. A failure ends the job, and shows
 * as its end.
 */
void job_tell(struct job *job, const json_t *message, const int *fds, unsigned n_fds);
/* The number of its process. */
pid_t job_pid(const struct job *job);
/* Kills it for a reason of ours, which is told as its end. */
void job_fail(struct job *job, const char *how);
/* Kills it; nothing of it is heard any more. */
void job_end(struct job *job);
