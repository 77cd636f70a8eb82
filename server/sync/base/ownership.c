#include "server/sync/base/ownership.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"

#define MODE_OWNER 0600u /* an agent that cannot read a version cannot verify or forward it */
#define MODE_MAX 0666u

int ownership_parse_mode(const char *value, uint32_t *ret)
{
	size_t n = strspn(value, "01234567");
	uint32_t mode;

	if (n < 3 || n > 4 || value[n])
		return -EINVAL;
	mode = (uint32_t)strtoul(value, NULL, 8);
	if (mode & ~MODE_MAX || (mode & MODE_OWNER) != MODE_OWNER)
		return -EINVAL;
	*ret = mode;
	return 0;
}

void ownership_add(const struct ownership *ownership, json_t *message)
{
	if (ownership->mode)
		json_object_set_new(message, "mode", json_integer(ownership->mode));
	if (ownership->unix_group)
		json_object_set_new(message, "unix_group",
				    json_pack("{s:s, s:I}", "name", ownership->unix_group, "gid",
					      (json_int_t)ownership->gid));
}

static bool is_ours(gid_t gid)
{
	int n = getgroups(0, NULL);
	cleanup(freep) gid_t *groups = n > 0 ? calloc((size_t)n, sizeof(*groups)) : NULL;

	n = groups ? getgroups(n, groups) : 0;
	for (int i = 0; i < n; i++)
		if (groups[i] == gid)
			return true;
	return gid == getegid() || geteuid() == 0;
}

bool ownership_can_be_given(const struct ownership *ownership)
{
	return !ownership->unix_group || is_ours(ownership->gid);
}
