/*
 * Ports of RDMA devices, as sysfs has them
 *
 * What they carried their hardware counts, whoever had it carried: no program of ours, nor the kernel, sees it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PORTS_MAX 256
#define PORT_GIDS_MAX 16
#define PORT_COUNTS_MAX 24
#define PORT_UNKNOWN UINT64_MAX

/* One of what is counted; the table of all of them ends with NULL. */
struct port_count {
	const char *key; /* what we call it */
	const char *path; /* in the folder of the port */
	unsigned unit; /* in bytes, or 1 */
	enum {
		PORT_TRAFFIC,
		PORT_CONGESTION,
		PORT_ERROR,
	} kind;
	const char *else_path; /* where that is not there; of 1 */
};

struct port {
	char device[64];
	unsigned number;
	/* "" where it is not known, likewise. */
	char link_layer[32]; /* "InfiniBand", "Ethernet" */
	char state[32]; /* "active", "down" */
	char rate[64]; /* "100 Gb/sec (4X EDR)" */
	char netdev[16];
	char gids[PORT_GIDS_MAX][40]; /* those that are none are left out */
	uint64_t rate_bits; /* a second; PORT_UNKNOWN */
	uint64_t counts[PORT_COUNTS_MAX]; /* of port_counts; PORT_UNKNOWN */
	uint64_t ns; /* CLOCK_MONOTONIC, when that was */
};

extern const struct port_count port_counts[];

/*
 * All of them, by their names; the caller frees the array. `sysfs` is where that is mounted. -ENOENT: this kernel has
 * no RDMA.
 */
int ports_read(const char *sysfs, struct port **ret, size_t *ret_n);
