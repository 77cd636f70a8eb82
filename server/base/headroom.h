/*
 * Headroom
 *
 * How many bytes can be taken before something is killed: what the machine has available and what every
 * cgroup above us still allows, less a reserve.
 */
#pragma once

#include <stdint.h>

#define HEADROOM_RESERVE_DEFAULT UINT64_MAX /* a sixteenth of what there is, 512 MiB at most */

/* Bytes to leave to other programs. Must be called before the worker runs. */
void headroom_init(uint64_t reserve);

/* The memory of this machine, or as much as its cgroups allow. */
int headroom_total(uint64_t *ret);

#define HEADROOM_LIMIT_MAX 256

struct headroom {
	uint64_t bytes;
	char limit[HEADROOM_LIMIT_MAX]; /* file of the cgroup that leaves the least; "": the machine does */
};

/* A negative errno when /proc/meminfo cannot be read; cgroups that cannot be read do not limit. */
int headroom_find(struct headroom *ret);
/* The bytes alone. */
int headroom_bytes(uint64_t *ret);
