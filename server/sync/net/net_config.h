/* The part of sync.conf about connections: this node, and its peers. */
#pragma once

#include <stdint.h>

#include "server/sync/net/address.h"

struct peer_config {
	const char *name;
	const char *address; /* as written */
	char host[ADDRESS_HOST_MAX + 1];
	uint16_t port;
};

struct net_config {
	const char *name; /* this node's */
	const char *const *data_addresses; /* addresses of its engines; one per interface */
	unsigned n_data_addresses;
	const struct peer_config *peers;
	unsigned n_peers;
	uint64_t heartbeat_ns;
};
