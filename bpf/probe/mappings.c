/*
 * Runs the iterator iter/task_vma to its end.
 */
#include "bpf/probe/mappings.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <unistd.h>

#include "bpf/base/programs.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

int mappings_look(const struct mappings *m, pid_t pid,
		  void (*fn)(void *context, const struct mapping *mapping), void *context)
{
	cleanup(program_link_freep) struct bpf_link *link =
		pid ? program_attach_to_process(m->program, pid)
		    : bpf_program__attach_iter(m->program, NULL);
	cleanup(fd_closep) int fd = link ? program_iterate(link) : -errno;
	struct mapping mapping;
	size_t n = 0;
	ssize_t got;

	if (fd < 0)
		return fd;
	if (pid != getpid()) /* this look runs within another one */
		*m->tgid = 0;
	for (;;) {
		got = read(fd, (char *)&mapping + n, sizeof(mapping) - n);
		if (got < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (got <= 0)
			return got < 0 ? -errno : 0;
		n += (size_t)got;
		if (n < sizeof(mapping))
			continue;
		mapping.path[sizeof(mapping.path) - 1] = 0;
		fn(context, &mapping);
		n = 0;
	}
}
