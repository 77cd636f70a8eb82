/*
 * Access rights
 *
 * The rights on a buffer that a sink makes, if the agent sets them: permission bits and the Unix
 * group.
 */
#pragma once

#include <stdbool.h>
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
 * Applies the rights to a buffer that the agent owns. *ret_is_distrusted is set if weightd may distrust its writer since,
 * because they were changed and memory is used again there. -EPERM: we are not in the Unix group.
 */
int acl_apply(const struct acl *g, const struct task *e, const struct target *target,
	      bool *ret_is_distrusted, struct fault *f);
