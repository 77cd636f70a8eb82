#include "bpf/process.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bpf/cgroup.h"
#include "bpf/known.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

void process_read_comm(pid_t pid, char ret[COMM_SIZE])
{
	cleanup(fd_closep) int fd = -1;
	char path[32];
	ssize_t n;

	(void)snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? 0 : read(fd, ret, COMM_SIZE);
	ret[n > 0 ? n - 1 : 0] = '\0'; /* its line feed */
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
	return json_pack("{so so so so}", "pid", known_pid(p->pid), "comm", known_text(p->comm),
			 "cgroup", known_text(p->cgroup), "container", known_text(container));
}
