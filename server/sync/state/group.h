/* Groups: members, publishers, and buffers. */
#pragma once

#include "server/sync/state/agent_config.h"

const struct group *group_find(const struct agent_config *config, const char *name);
bool group_has_member(const struct group *g, const char *node);
bool group_has_publisher(const struct group *g, const char *node);
/*
 * The first term from `least` on in which `node`, a publisher, assigns numbers: two publishers
 * never share a term.
 */
uint64_t group_term(const struct group *g, const char *node, uint64_t least);
/* A row of one bool per peer, and one for this node: members and publishers. -ENOMEM. */
int group_fill_row(const struct group *g, const struct agent_config *config, bool *ret);
bool group_has_buffer(const struct group *g, const char *buffer);
/*
 * The group of a buffer: the one of that name, or, if `name` is NULL, the only one with a matching
 * pattern. NULL with a sentence.
 */
const struct group *group_of_buffer(const struct agent_config *config, const char *buffer,
				    const char *name, char why[WHY_SIZE]);
/* The device of a group's buffers on this node; the default for a group that no longer exists. */
const char *group_device(const struct agent_config *config, const char *name);

const char *policy_name(enum policy p);
/* -EINVAL */
int policy_parse(const char *name, enum policy *ret);
