/*
 * Headroom
 *
 * How many bytes can be taken before something is killed: what the machine has available and what every
 * cgroup above us still allows, less a reserve.
 */
#pragma once

#include <stdint.h>

#include "ipc/base/numa.h"

#define HEADROOM_RESERVE_DEFAULT UINT64_MAX /* a sixteenth of what there is, 512 MiB at most */

/* Bytes to leave to other programs. Must be called before the worker runs. */
void headroom_init(uint64_t reserve);

uint64_t headroom_reserve(void);

/* The memory of this machine, or as much as its cgroups allow. */
int headroom_total(uint64_t *ret);

#define HEADROOM_LIMIT_MAX 256

struct headroom {
	uint64_t bytes;
	char limit[HEADROOM_LIMIT_MAX]; /* file of the cgroup that leaves the least; "": the machine does */
};

/* A negative errno when /proc/meminfo cannot be read; cgroups that cannot be read do not limit. */
int headroom_find(struct headroom *ret);
/* The bytes that these nodes have free, or in page cache, less the reserve. UINT64_MAX where the kernel does not tell. */
uint64_t headroom_of_nodes(const struct numa_nodes *nodes);
/* The bytes alone. */
int headroom_bytes(uint64_t *ret);

/*
 * Counts memory that a client has allocated and that is kept from now on, and no more: the limits of our cgroups are for
 * it too. On the loop's thread.
 */
void headroom_receive(uint64_t size);
void headroom_release(uint64_t size);

/*
 * 0 while all that exists, what was received included, leaves half of the reserve: what comes with a version may use the
 * other half, since the version took all but the reserve. -ENOMEM, with the bytes that are left; or another errno.
 */
int headroom_check_received(struct headroom *ret);
