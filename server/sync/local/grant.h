/*
 * Grants
 *
 * Who may use what a sink makes, where the agent says so: permission bits, and the Unix group it belongs to.
 */
#pragma once

#include <stdint.h>

#include "server/sync/local/errand.h"

struct grant {
	int64_t mode; /* -1: stays */
	int64_t gid; /* -1: stays */
	const char *unix_group; /* the message's, for sentences */
};

/* -EBADMSG, with a fault. */
int grant_read(const struct talk *t, struct grant *ret, struct fault *f);

/*
 * Gives the buffer these rights, if there is one. Where weightd does not let us, as it is somebody else's, it keeps
 * what its owner gave it. -EPERM: we are not in the Unix group.
 */
int grant_apply(const struct grant *g, const struct errand *e, const struct target *target,
		struct fault *f);
