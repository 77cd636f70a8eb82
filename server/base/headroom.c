#include "server/base/headroom.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"

/* The files of both generations of cgroups. */
static const struct hierarchy {
	const char *root;
	const char *limit, *usage, *inactive, *active;
} hierarchies[] = {
	{"/sys/fs/cgroup", "memory.max", "memory.current", "\ninactive_file ", "\nactive_file "},
	{"/sys/fs/cgroup/unified", "memory.max", "memory.current", "\ninactive_file ",
	 "\nactive_file "},
	{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
	 "\ntotal_inactive_file ", "\ntotal_active_file "},
};

static uint64_t reserve_bytes;
static _Atomic uint64_t received_bytes; /* the loop writes, workers read */

static int read_file(const char *path, char *buf, size_t size)
{
	cleanup(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -errno;
	buf[0] = '\n'; /* so that every line starts behind one */
	n = read(fd, buf + 1, size - 2);
	if (n < 0)
		return -errno;
	buf[n + 1] = '\0';
	return 0;
}

/* The number behind `key`, 0 when it is not there. */
static uint64_t field(const char *text, const char *key)
{
	const char *p = strstr(text, key);

	return p ? strtoull(p + strlen(key), NULL, 10) : 0;
}

static int meminfo(uint64_t *ret_total, uint64_t *ret_available)
{
	char text[4096];
	int r = read_file("/proc/meminfo", text, sizeof(text));

	if (r < 0)
		return r;
	*ret_total = field(text, "\nMemTotal:") * KIB;
	*ret_available = field(text, "\nMemAvailable:") * KIB;
	return 0;
}

static int read_cgroup_file(const struct hierarchy *h, const char *group, const char *file,
			    char *buf, size_t size)
{
	char path[4096];
	int n = snprintf(path, sizeof(path), "%s%s/%s", h->root, group, file);

	if (n < 0 || (size_t)n >= sizeof(path))
		return -ENAMETOOLONG;
	return read_file(path, buf, size);
}

/* UINT64_MAX for none, and for what is no cgroup. */
static uint64_t group_limit(const struct hierarchy *h, const char *group)
{
	char text[64];

	if (read_cgroup_file(h, group, h->limit, text, sizeof(text)) < 0 || text[1] < '0' ||
	    text[1] > '9') /* "max" */
		return UINT64_MAX;
	return strtoull(text + 1, NULL, 10);
}

/*
 * The memory that one cgroup still allows; page cache in it can be dropped and does not count. Memory that clients sent
 * counts once, whether the kernel charges it here or to the cgroup of the client.
 */
static uint64_t group_left(const struct hierarchy *h, const char *group)
{
	uint64_t limit = group_limit(h, group);
	char text[8192];
	uint64_t usage, cache;

	if (limit == UINT64_MAX || read_cgroup_file(h, group, h->usage, text, sizeof(text)) < 0)
		return UINT64_MAX;
	usage = strtoull(text + 1, NULL, 10);
	if (read_cgroup_file(h, group, "memory.stat", text, sizeof(text)) < 0)
		text[0] = '\0';
	cache = field(text, h->inactive) + field(text, h->active);
	usage = usage > cache ? usage - cache : 0;
	if (usage < received_bytes)
		usage = received_bytes;
	return limit > usage ? limit - usage : 0;
}

typedef uint64_t (*group_fn)(const struct hierarchy *h, const char *group);

/* The least that was found, and where. */
struct least {
	uint64_t bytes;
	char limit[HEADROOM_LIMIT_MAX]; /* "": nowhere */
};

/* The file of the limit; the end of a path that is too long, which has the name of the group. */
static void name_limit(const struct hierarchy *h, const char *group, char ret[HEADROOM_LIMIT_MAX])
{
	char path[4096];
	size_t size = (size_t)snprintf(path, sizeof(path), "%s%s/%s", h->root,
				       strcmp(group, "/") ? group : "", h->limit);

	if (size < HEADROOM_LIMIT_MAX)
		(void)strcpy(ret, path);
	else
		(void)snprintf(ret, HEADROOM_LIMIT_MAX, "...%s",
			       path + strlen(path) - (HEADROOM_LIMIT_MAX - 4));
}

/* From `group` up to the root. */
static void look_at_ancestors(const struct hierarchy *h, const char *group, group_fn fn,
			      struct least *least)
{
	char path[2048];

	(void)snprintf(path, sizeof(path), "%s", group);
	for (;;) {
		uint64_t n = fn(h, path);
		char *slash = strrchr(path, '/');

		if (n < least->bytes) {
			least->bytes = n;
			name_limit(h, path, least->limit);
		}
		if (!slash)
			return;
		*slash = '\0';
	}
}

/* Lines of /proc/self/cgroup: "0::/path" of the unified hierarchy, "4:memory:/path" of the older. */
static void look_at_cgroups(group_fn fn, struct least *ret)
{
	char text[8192], *save = NULL;

	*ret = (struct least){.bytes = UINT64_MAX};
	if (read_file("/proc/self/cgroup", text, sizeof(text)) < 0)
		return;
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char *controllers = strchr(line, ':');
		char *group = controllers ? strchr(controllers + 1, ':') : NULL;
		bool v2;

		if (!group)
			continue;
		*group++ = '\0';
		v2 = !strcmp(controllers, ":");
		if (!v2 && !strstr(controllers, "memory"))
			continue;
		for (size_t i = 0; i < ARRAY_LEN(hierarchies); i++)
			if (v2 == !strcmp(hierarchies[i].limit, "memory.max"))
				look_at_ancestors(&hierarchies[i], group, fn, ret);
	}
}

void headroom_init(uint64_t reserve)
{
	uint64_t total = 0, available;
	struct least least;

	reserve_bytes = reserve;
	if (reserve != HEADROOM_RESERVE_DEFAULT)
		return;
	(void)meminfo(&total, &available); /* every headroom_bytes() will report it */
	look_at_cgroups(group_limit, &least);
	if (least.bytes < total)
		total = least.bytes;
	reserve_bytes = total / 16 < 512 * MIB ? total / 16 : 512 * MIB;
}

uint64_t headroom_reserve(void)
{
	return reserve_bytes;
}

int headroom_total(uint64_t *ret)
{
	uint64_t total, available;
	int r = meminfo(&total, &available);
	struct least least;

	if (r < 0)
		return r;
	look_at_cgroups(group_limit, &least);
	*ret = least.bytes < total ? least.bytes : total;
	return 0;
}

/* The same with the reserve. */
static int find_left(struct headroom *ret)
{
	uint64_t total, available;
	int r = meminfo(&total, &available);
	struct least least;

	if (r < 0)
		return r;
	look_at_cgroups(group_left, &least);
	if (least.bytes >= available)
		least.limit[0] = '\0';
	else
		available = least.bytes;
	ret->bytes = available;
	memcpy(ret->limit, least.limit, sizeof(ret->limit));
	return 0;
}

int headroom_find(struct headroom *ret)
{
	int r = find_left(ret);

	if (r == 0)
		ret->bytes = ret->bytes > reserve_bytes ? ret->bytes - reserve_bytes : 0;
	return r;
}

/* The file has no line of what is available; anonymous and shared memory count among no file's pages. */
static bool node_left(unsigned node, uint64_t *ret)
{
	char path[64], text[4096];

	(void)snprintf(path, sizeof(path), "/sys/devices/system/node/node%u/meminfo", node);
	if (read_file(path, text, sizeof(text)) < 0)
		return false;
	*ret = (field(text, " MemFree:") + field(text, " Active(file):") +
		field(text, " Inactive(file):")) *
	       KIB;
	return true;
}

uint64_t headroom_of_nodes(const struct numa_nodes *nodes)
{
	uint64_t sum = 0, left;

	for (unsigned i = 0; i < NUMA_NODES_MAX; i++) {
		if (!numa_nodes_has(nodes, i))
			continue;
		if (!node_left(i, &left))
			return UINT64_MAX;
		sum += left;
	}
	return sum > reserve_bytes ? sum - reserve_bytes : 0;
}

void headroom_receive(uint64_t size)
{
	received_bytes += size;
}

void headroom_release(uint64_t size)
{
	received_bytes -= size;
}

int headroom_check_received(struct headroom *ret)
{
	int r = find_left(ret);

	if (r < 0)
		return r;
	return ret->bytes < reserve_bytes / 2 ? -ENOMEM : 0;
}

int headroom_bytes(uint64_t *ret)
{
	struct headroom found;
	int r = headroom_find(&found);

	if (r == 0)
		*ret = found.bytes;
	return r;
}
