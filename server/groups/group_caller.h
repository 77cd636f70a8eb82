/*
 * Callers of a writer group
 *
 * A request to create or to join a group that waits for the worker or the service manager. Its session has
 * nothing else to answer meanwhile.
 */
#pragma once

#include <stdbool.h>

#include "ipc/base/list.h"
#include "ipc/wire.h"

struct session;
struct writer_group;

struct group_caller {
	struct list link; /* writer_group::callers */
	struct writer_group *group;
	struct session *session;
	bool creates; /* perhaps the second one, whose first answer was lost; else it joins */
	int description_fd; /* read-only and sealed; -1: given away, or none */
	struct wire_job_join join;
};

/* NULL: out of memory. */
struct group_caller *group_caller_new(struct writer_group *g, struct session *s);

/* Takes it off the group; the request must have its answer, or its session its end. NULL. */
struct group_caller *group_caller_free(struct group_caller *c);

/* A caller that the group is being created for. NULL: it is created. */
struct group_caller *group_caller_creator(const struct writer_group *g);

/* At the end of a session. What is made for it is given up; a group that is being created for it alone is removed. */
void group_caller_forget(struct session *s);
