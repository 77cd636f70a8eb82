/*
 * Ownership
 *
 * The access rights of a group's versions on this node. The agent makes and owns its buffers;
 * sync.conf has their Unix group, and the rights of that group and of all other users. Its sinks
 * request them from weightd.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Zero: weightd's defaults. */
struct ownership {
	uint32_t mode; /* 0: the default */
	const char *unix_group; /* as written; NULL: the default */
	gid_t gid; /* the group's id */
};

/* Octal digits of r and w, with both for the owner. -EINVAL. */
int ownership_parse_mode(const char *value, uint32_t *ret);

/* Adds the settings that differ from the defaults to a message for a sink. */
void ownership_add(const struct ownership *ownership, json_t *message);

/* False: the agent's user cannot give files to the Unix group of this group. */
bool ownership_can_be_given(const struct ownership *ownership);
