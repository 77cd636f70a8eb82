/*
 * Users and groups, by name or by number
 */
#pragma once

#include <stdint.h>

/* The name of a user; the number where there is none. Valid until the next call. */
const char *user_name(uint32_t uid);

/* Likewise of a group. */
const char *user_group_name(uint32_t gid);

/*
 * A sentence in which users and groups are numbers, with their names: "uid 0 (root) may not ...". What it
 * quotes stays. The caller frees it.
 */
char *user_annotate(const char *sentence);

/* Names have precedence over numbers, as in chown(1). 0, or -ENOENT. */
int user_parse(const char *arg, uint32_t *ret_uid);
int user_parse_group(const char *arg, uint32_t *ret_gid);
/* The group that a user logs in with. 0, or -ENOENT. */
int user_login_group(uint32_t uid, uint32_t *ret_gid);
