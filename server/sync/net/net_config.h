/*
 * Configuration of connections from sync.conf: this node, and the nodes that it is connected with.
 */
#pragma once

#include <stdint.h>

#include "server/sync/net/address.h"

struct peer_config {
	const char *name;
	const char *address; /* as it was written */
	char host[ADDRESS_HOST_MAX + 1];
	uint16_t port;
};

struct net_config {
	const char *name; /* of this node */
	const char *const *data_addresses; /* where its engines listen; one per interface */
	unsigned n_data_addresses;
	const struct peer_config *peers;
	unsigned n_peers;
	uint64_t heartbeat_ns;
};
