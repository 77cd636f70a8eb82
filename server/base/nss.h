/*
 * Users and groups of this machine
 *
 * By the name they have here, or by a number, which need not be anybody's. May block: whoever the system
 * asks for names may be far away.
 */
#pragma once

#include <sys/types.h>

/* -ENOENT. */
int nss_find_user(const char *name, uid_t *ret);
int nss_find_group(const char *name, gid_t *ret);
