/*
 * Reads /proc. A process may end at any time, which is no error.
 */
#include "bpf/base/process.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bpf/base/cgroup.h"
#include "bpf/base/json_null.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

#define STAT_SIZE 512 /* the rest of the file is not read */
#define STAT_STATE 3 /* the first field behind the name, which may have anything in it */
#define STAT_BEGAN 22
#define SECOND_NS 1000000000u

/* How many bytes of it there are; 0 where it cannot be read. */
static size_t read_file_of(pid_t pid, const char *name, char *ret, size_t size)
{
	cleanup(fd_closep) int fd = -1;
	char path[32];
	ssize_t n;

	(void)snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? 0 : read(fd, ret, size);
	return n > 0 ? (size_t)n : 0;
}

void process_read_comm(pid_t pid, char ret[COMM_SIZE])
{
	size_t n = read_file_of(pid, "comm", ret, COMM_SIZE);

	ret[n > 0 ? n - 1 : 0] = '\0'; /* its line feed */
}

uint64_t process_read_began(pid_t pid)
{
	char text[STAT_SIZE];
	size_t n = read_file_of(pid, "stat", text, sizeof(text) - 1);
	const char *s;

	text[n] = '\0';
	s = strrchr(text, ')');
	for (int field = STAT_STATE; s && field <= STAT_BEGAN; field++)
		s = strchr(s + 1, ' ');
	return s ? strtoull(s, NULL, 10) : 0;
}

uint64_t process_ticks(uint64_t ns)
{
	return ns / (SECOND_NS / (uint64_t)sysconf(_SC_CLK_TCK));
}

void process_init(struct process *p, pid_t pid)
{
	*p = (struct process){.pid = pid, .cgroup = cgroup_of(pid)};
	process_read_comm(pid, p->comm);
}

void process_deinit(struct process *p)
{
	free(p->cgroup);
}

json_t *process_json(const struct process *p)
{
	char container[CONTAINER_SIZE] = "";

	if (p->cgroup)
		(void)cgroup_container(p->cgroup, container);
	return json_pack("{so so so so}", "pid", pid_or_null(p->pid), "comm", text_or_null(p->comm),
			 "cgroup", text_or_null(p->cgroup), "container", text_or_null(container));
}
