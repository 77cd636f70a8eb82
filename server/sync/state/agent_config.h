/* The part of sync.conf about groups and limits, as the agent needs it. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/sync/base/limits.h"
#include "server/sync/base/ownership.h"
#include "server/sync/base/stripes.h"

#define MEMBERS_MAX 1024 /* the group's */
#define AGENT_SELF UINT_MAX /* in place of a peer: this node */

enum policy {
	POLICY_ALL, /* every member has it, or none does */
	POLICY_QUORUM, /* more than half of the members, including the publisher */
	POLICY_EACH, /* every member that verified it serves it */
};

#define GROUP_DEVICE_DEFAULT "host"

#define REPAIRS_SERVED_MAX 8 /* concurrent ones: each has two processes */
#define REPAIR_RATE_MIN                                                                            \
	((uint64_t)REPAIRS_SERVED_MAX << 16) /* every share of it is enough for an engine */

struct transport;

struct group {
	const char *name;
	const char *const *members;
	unsigned n_members;
	const char *const *publishers; /* nodes that may push */
	unsigned n_publishers;
	const char *buffers; /* a pattern of fnmatch() */
	enum policy policy;
	const char *device; /* device of its buffers on this node, as in weightd.h */
	struct ownership ownership; /* rights of the received versions */
};

/* Lives at least as long as the agent. */
struct agent_config {
	const char *name; /* this node's */
	const char *const *peers; /* names: the index is the peer's number in struct env */
	unsigned n_peers;
	const char *const *peer_addresses; /* as configured, for agent_status() and sentences */
	const struct group *groups;
	unsigned n_groups;
	const char *weightd_socket; /* NULL: libweightd's default */
	const char *data_addresses[STRIPES_MAX]; /* addresses of our engines; one per interface */
	unsigned n_data_addresses;
	bool tls; /* TLS of engines; the daemon adds the descriptors to their "open" */
	/* The transport of our pushes; our repairs use tcp, and syncs of other nodes use theirs. */
	const struct transport *transport;
	/* The last push is kept in memory, so that the next one is sent as a patch of it. */
	bool patches;
	uint64_t prepare_ns; /* to answer PREPARE, and for any other answer that moves no bytes */
	uint64_t stall_ns; /* without a byte, or without an answer of a connected peer */
	uint64_t max_bytes; /* the largest version; 0: weightd's limit */
	uint64_t repair_rate; /* bytes/s of all repairs that this node serves; 0: no limit */
};
