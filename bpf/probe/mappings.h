/*
 * Mappings of files that have one of the names, as the kernel lists those of each process
 *
 * The list is the kernel's own, so that no /proc has to be open to the collector.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "bpf/probe/probes.bpf.h"

struct bpf_program;
struct probes_bpf;

struct mappings {
	const struct bpf_program *program; /* the iterator */
	uint32_t *tgid; /* the process that it visits now */
};

/* Gives the iterator the names, before it is loaded. A kernel checks no code that needs one while there is none. */
void mappings_choose(struct probes_bpf *bpf);
/* Calls for each mapping of a process, or with 0 of all. 0, or negative errno: it has not called for all. */
int mappings_look(const struct mappings *m, pid_t pid,
		  void (*fn)(void *context, const struct mapping *mapping), void *context);
