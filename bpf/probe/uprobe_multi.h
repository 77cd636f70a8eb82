/*
 * One link for many functions of one file
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define UPROBE_MULTI_SINCE "6.6" /* first release of Linux that has it */
#define UPROBE_MULTI_ATTACH_TYPE                                                                   \
	48 /* BPF_TRACE_UPROBE_MULTI: what its program has to be loaded for */

struct uprobe_multi {
	const char *path; /* probed in every process that has it mapped, now or later */
	const uint64_t *offsets; /* within the file */
	const uint64_t *counters; /* offsets of the uint16_t that count observers (USDT); NULL: none */
	const uint64_t *cookies; /* results of bpf_get_attach_cookie(); NULL: none */
	uint32_t n;
	bool is_return;
};

/*
 * False: on this machine, in a kernel of that release, returning to a probe makes a system call that the process's
 * seccomp filter does not list, and the filter kills the process. Linux 6.11 introduced that; 6.14, 6.13.3 and
 * 6.12.14 fixed it.
 */
bool uprobe_multi_is_safe(const char *release);

/* Its descriptor is the link: nothing is probed any more once it is closed. */
int uprobe_multi_attach(int program_fd, const struct uprobe_multi *multi, int *ret_fd);
/* 0: the kernel supports such links, as it refuses one for its path alone; or negative errno. */
int uprobe_multi_check(int program_fd);
