/*
 * Users and groups of this machine
 *
 * By name, or by number, which need not exist. May block: the system may ask a remote directory for
 * names.
 */
#pragma once

#include <sys/types.h>

/* -ENOENT. */
int nss_find_user(const char *name, uid_t *ret);
int nss_find_group(const char *name, gid_t *ret);
