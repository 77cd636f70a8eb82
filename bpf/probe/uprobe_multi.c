/*
 * One link for many functions of one file. CAP_BPF and CAP_PERFMON suffice for it, while a uprobe of
 * perf_event_open() needs more. libbpf 1.1 and kernel headers before 6.6 lack it.
 */
#include "bpf/probe/uprobe_multi.h"
#include "ipc/base/fd.h"

#include <errno.h>
#include <linux/bpf.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#define F_RETURN 1 /* BPF_F_UPROBE_MULTI_RETURN */

struct request { /* union bpf_attr::link_create */
	uint32_t program_fd;
	uint32_t target_fd;
	uint32_t attach_type;
	uint32_t flags;
	uint64_t path;
	uint64_t offsets;
	uint64_t counters;
	uint64_t cookies;
	uint32_t n;
	uint32_t multi_flags;
	uint32_t pid;
	uint32_t reserved;
};

bool uprobe_multi_is_safe(const char *release)
{
	unsigned major, minor, patch;
	int n = sscanf(release, "%u.%u.%u", &major, &minor, &patch);

#if defined(__x86_64__) /* no other returns by a system call */
	if (n == 3 && major == 6)
		return minor < 11 || minor > 13 || (minor == 12 && patch >= 14) ||
		       (minor == 13 && patch >= 3);
#endif
	return n == 3;
}

int uprobe_multi_attach(int program_fd, const struct uprobe_multi *multi, int *ret_fd)
{
	struct request request = {
		.program_fd = (uint32_t)program_fd,
		.attach_type = UPROBE_MULTI_ATTACH_TYPE,
		.path = (uintptr_t)multi->path,
		.offsets = (uintptr_t)multi->offsets,
		.counters = (uintptr_t)multi->counters,
		.cookies = (uintptr_t)multi->cookies,
		.n = multi->n,
		.multi_flags = multi->is_return ? F_RETURN : 0,
	};
	long fd = syscall(SYS_bpf, BPF_LINK_CREATE, &request, sizeof(request));

	if (fd < 0)
		return -errno;
	*ret_fd = (int)fd;
	return 0;
}

int uprobe_multi_check(int program_fd)
{
	uint64_t offset = 0;
	const struct uprobe_multi multi = {.path = "/", .offsets = &offset, .n = 1};
	int fd = -1, r = uprobe_multi_attach(program_fd, &multi, &fd);

	if (r == -EBADF || r == -EISDIR)
		return 0;
	if (r == 0)
		(void)fd_close(fd);
	return r;
}
