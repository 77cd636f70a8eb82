/*
 * Access rights
 *
 * Who may use what a sink makes, where the agent says so: permission bits, and the Unix group it belongs to.
 */
#pragma once

#include <stdint.h>

#include "server/sync/local/task.h"

struct acl {
	int64_t mode; /* -1: stays */
	int64_t gid; /* -1: stays */
	const char *unix_group; /* the message's, for sentences */
};

/* -EBADMSG, with a fault. */
int acl_read(const struct json_packet *t, struct acl *ret, struct fault *f);

/*
 * Gives the buffer these rights, if there is one. Where weightd does not let us, as it is somebody else's, it keeps
 * what its owner gave it. -EPERM: we are not in the Unix group.
 */
int acl_apply(const struct acl *g, const struct task *e, const struct target *target,
	      struct fault *f);
