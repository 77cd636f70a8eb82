/*
 * Access rights
 *
 * The rights on a buffer that a sink makes, if the agent sets them: permission bits and the Unix
 * group.
 */
#pragma once

#include <stdint.h>

#include "server/sync/local/task.h"

struct acl {
	int64_t mode; /* -1: unchanged */
	int64_t gid; /* -1: unchanged */
	const char *unix_group; /* owned by the message, for sentences */
};

/* -EBADMSG, with a fault. */
int acl_read(const struct json_packet *t, struct acl *ret, struct fault *f);

/*
 * Applies the rights to the buffer, if it exists. If weightd denies it because another user owns
 * the buffer, the owner's rights stay. -EPERM: we are not in the Unix group.
 */
int acl_apply(const struct acl *g, const struct task *e, const struct target *target,
	      struct fault *f);
