/*
 * Ownership
 *
 * Who may use what a group brings to this node. The agent makes its buffers, and owns them: which Unix group they
 * belong to and what that one and everybody else may do, sync.conf says. Its sinks ask weightd for it.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Zero: what weightd gives to anything new. */
struct ownership {
	uint32_t mode; /* 0: no other than that */
	const char *unix_group; /* as it was written; NULL: no other than that */
	gid_t gid; /* of that group */
};

/* Octal digits of r and w, with both for the owner. -EINVAL. */
int ownership_parse_mode(const char *value, uint32_t *ret);

/* Adds to a message for a sink what is not as weightd has it. */
void ownership_add(const struct ownership *ownership, json_t *message);

/* False: it has a Unix group that the user we run as cannot give to anything. */
bool ownership_can_be_given(const struct ownership *ownership);
