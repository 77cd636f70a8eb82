/*
 * Data ways
 *
 * The place where the engine of a node listens for one stripe of a stream.
 */
#pragma once

#include "server/sync/state/agent_state.h"

struct data_way {
	char address[46];
	uint64_t port;
};

/* -EBADMSG. */
int data_way_read(const json_t *from, struct data_way *ret);
/* These are stripes that fit into an order. */
bool data_ways_are_sound(const struct agent *a, const json_t *next);
