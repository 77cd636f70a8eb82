/*
 * Groups: who is in one, who may push to it, and which buffers are its own.
 */
#pragma once

#include "server/sync/state/agent_config.h"

const struct group *group_find(const struct agent_config *config, const char *name);
bool group_has_member(const struct group *g, const char *node);
bool group_has_publisher(const struct group *g, const char *node);
/* The first term from `least` on in which `node`, a publisher, mints numbers: no two publishers have the same. */
uint64_t group_term(const struct group *g, const char *node, uint64_t least);
/* A row of one bool per peer, and one for this node: who is a member or a publisher. -ENOMEM. */
int group_fill_row(const struct group *g, const struct agent_config *config, bool *ret);
bool group_has_buffer(const struct group *g, const char *buffer);
/*
 * The group of a buffer: the one of that name, or, where `name` is NULL, the only one whose pattern fits.
 * NULL with a sentence.
 */
const struct group *group_of_buffer(const struct agent_config *config, const char *buffer,
				    const char *name, char why[WHY_SIZE]);
/*
 * The device of the buffers of a group on this node; the default for a group that is not
 * configured.
 */
const char *group_device(const struct agent_config *config, const char *name);

const char *policy_name(enum policy p);
/* -EINVAL */
int policy_parse(const char *name, enum policy *ret);
