/*
 * Users and groups, from wherever the machine has them. A name that cannot be found out is no failure:
 * the number says who it is, too.
 */
#include "libclient/weightctl/user.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>

#define ID_MAX (UINT32_MAX - 1) /* the last number is the kernel's word for none */

static_assert(sizeof(uid_t) == sizeof(uint32_t) && sizeof(gid_t) == sizeof(uint32_t), "ids");

const char *user_name(uint32_t uid)
{
	/* Tables ask for the same few over and over, and the answer may come over a network. */
	static char name[64];
	static uint32_t known;
	const struct passwd *pw;

	if (*name && known == uid)
		return name;
	pw = getpwuid(uid);
	if (pw)
		(void)snprintf(name, sizeof(name), "%s", pw->pw_name);
	else
		(void)snprintf(name, sizeof(name), "%" PRIu32, uid);
	known = uid;
	return name;
}

static int parse_id(const char *arg, uint32_t *ret)
{
	unsigned long n;
	char *end;

	if (!isdigit((unsigned char)*arg)) /* strtoul() takes signs and spaces */
		return -ENOENT;
	errno = 0;
	n = strtoul(arg, &end, 10);
	if (errno || *end || n > ID_MAX)
		return -ENOENT;
	*ret = (uint32_t)n;
	return 0;
}

int user_parse(const char *arg, uint32_t *ret_uid)
{
	const struct passwd *pw = getpwnam(arg);

	if (!pw)
		return parse_id(arg, ret_uid);
	*ret_uid = pw->pw_uid;
	return 0;
}

int user_parse_group(const char *arg, uint32_t *ret_gid)
{
	const struct group *gr = getgrnam(arg);

	if (!gr)
		return parse_id(arg, ret_gid);
	*ret_gid = gr->gr_gid;
	return 0;
}

int user_login_group(uint32_t uid, uint32_t *ret_gid)
{
	const struct passwd *pw = getpwuid(uid);

	if (!pw)
		return -ENOENT;
	*ret_gid = pw->pw_gid;
	return 0;
}
