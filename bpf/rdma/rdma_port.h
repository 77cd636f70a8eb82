/*
 * Ports of RDMA devices, as sysfs shows them
 *
 * The hardware counts what a port carried, for all processes: neither the kernel nor a program of ours sees those
 * bytes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RDMA_PORTS_MAX 256
#define RDMA_PORT_GIDS_MAX 16
#define RDMA_PORT_COUNTS_MAX 24
#define RDMA_PORT_UNKNOWN UINT64_MAX

/* One of what is counted; the table of all of them ends with NULL. */
struct rdma_port_count {
	const char *key; /* our name for it */
	const char *path; /* in the folder of the port */
	unsigned unit; /* in bytes, or 1 */
	enum {
		RDMA_PORT_TRAFFIC,
		RDMA_PORT_CONGESTION,
		RDMA_PORT_ERROR,
	} kind;
	const char *else_path; /* path to read if that is not there; it counts units of 1 */
};

struct rdma_port {
	char device[64];
	unsigned number;
	/* "" if unknown, as the next ones. */
	char link_layer[32]; /* "InfiniBand", "Ethernet" */
	char state[32]; /* "active", "down" */
	char rate[64]; /* "100 Gb/sec (4X EDR)" */
	char netdev[16];
	char gids[RDMA_PORT_GIDS_MAX][40]; /* those that are none are left out */
	uint64_t rate_bits; /* a second; RDMA_PORT_UNKNOWN */
	uint64_t counts[RDMA_PORT_COUNTS_MAX]; /* values of rdma_port_counts; RDMA_PORT_UNKNOWN */
	uint64_t ns; /* CLOCK_MONOTONIC, when that was */
};

extern const struct rdma_port_count rdma_port_counts[];

/*
 * All of them, by their names; the caller frees the array. `sysfs` is where that is mounted. -ENOENT: this kernel has
 * no RDMA.
 */
int rdma_ports_read(const char *sysfs, struct rdma_port **ret, size_t *ret_n);
