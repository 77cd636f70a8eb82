/* Configuration of groups and limits from sync.conf, as the agent needs it. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/sync/base/limits.h"
#include "server/sync/base/ownership.h"
#include "server/sync/base/stripes.h"

#define MEMBERS_MAX 1024 /* of a group */
#define AGENT_SELF UINT_MAX /* where a peer is asked for: this node */

enum policy {
	POLICY_ALL, /* every member has it, or none does */
	POLICY_QUORUM, /* more than half of the members, the publisher among them */
	POLICY_EACH, /* whoever verified it serves it */
};

#define GROUP_DEVICE_DEFAULT "host"

#define REPAIRS_SERVED_MAX 8 /* at a time: each has two processes */
#define REPAIR_RATE_MIN                                                                            \
	((uint64_t)REPAIRS_SERVED_MAX << 16) /* no share of it is too little for an engine */

struct transport;

struct group {
	const char *name;
	const char *const *members;
	unsigned n_members;
	const char *const *publishers; /* who may push */
	unsigned n_publishers;
	const char *buffers; /* a pattern of fnmatch() */
	enum policy policy;
	const char *device; /* where its buffers are on this node, as weightd.h names devices */
	struct ownership ownership; /* of what it receives */
};

/* Lives at least as long as the agent. */
struct agent_config {
	const char *name; /* of this node */
	const char *const *peers; /* names: the index is the peer's number in struct env */
	unsigned n_peers;
	const char *const *peer_addresses; /* as configured, for agent_status() and sentences */
	const struct group *groups;
	unsigned n_groups;
	const char *weightd_socket; /* NULL: where libweightd finds it */
	const char *data_addresses[STRIPES_MAX]; /* where our engines listen; one per interface */
	unsigned n_data_addresses;
	bool tls; /* of engines; the daemon adds the descriptors to what an engine's open has */
	const struct transport *
		transport; /* of what we push; what we repair goes over tcp, what others do, as they say */
	bool patches; /* what we pushed last is kept in memory, so that the next one travels as a patch of it */
	uint64_t prepare_ns; /* to answer PREPARE, and for any other answer that moves no bytes */
	uint64_t stall_ns; /* without a byte, or without an answer of a connected peer */
	uint64_t max_bytes; /* of one version; 0: as many as weightd admits */
	uint64_t repair_rate; /* bytes/s of all repairs that this node serves; 0: as many as there can be */
};
