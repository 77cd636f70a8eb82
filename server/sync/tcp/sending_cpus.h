/*
 * Sending CPUs
 *
 * The CPUs that gave pages of the memory to TCP. A receiver on the same machine holds these very pages, and when it has
 * read them the kernel frees the packet later, on the CPU that allocated it: once that CPU receives its next packet
 * (skb_attempt_defer_free() of Linux 5.19). Until then the memory cannot be sealed, also after both sockets are closed.
 */
#pragma once

#include <sched.h>

struct sending_cpus {
	cpu_set_t set;
};

/* Adds the CPU that the caller runs on. */
void sending_cpus_add(struct sending_cpus *s);
/*
 * Sends each of them a packet over loopback, from that CPU. Where sched_setaffinity() is forbidden, as by
 * weightd-sync.service, it does nothing: a node under that unit is the only one of its machine.
 */
void sending_cpus_flush(const struct sending_cpus *s);
