/*
 * Unix groups
 *
 * What sync.conf calls one by: the name of one that this machine has, or a number.
 */
#pragma once

#include <sys/types.h>

/* -ENOENT. */
int unix_group_find(const char *name, gid_t *ret);
