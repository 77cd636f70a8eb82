/*
 * Users and groups, by name or by number
 */
#pragma once

#include <stdint.h>

/* The name of a user; the number where there is none. Valid until the next call. */
const char *user_name(uint32_t uid);

/* Names come before numbers, as in chown(1). 0, or -ENOENT. */
int user_parse(const char *arg, uint32_t *ret_uid);
int user_parse_group(const char *arg, uint32_t *ret_gid);
/* The group that a user logs in with. 0, or -ENOENT. */
int user_login_group(uint32_t uid, uint32_t *ret_gid);
