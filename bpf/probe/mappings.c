/*
 * Runs the iterator iter/task_vma to its end.
 */
#include "bpf/probe/mappings.h"

#include <assert.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "bpf/base/programs.h"
#include "bpf/probe/site.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

#include <bpf/probe/probes.skel.h>

void mappings_choose(struct probes_bpf *bpf)
{
	assert(n_libraries <= NAMES_MAX);
	for (size_t i = 0; i < n_libraries; i++) {
		size_t size = strlen(libraries[i]->name) + libraries[i]->is_whole;

		bpf->rodata->names[i].size = (uint32_t)(size < NAME_SIZE ? size : NAME_SIZE);
		memcpy(bpf->rodata->names[i].text, libraries[i]->name, bpf->rodata->names[i].size);
	}
	bpf->rodata->n_names = (uint32_t)n_libraries;
}

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
