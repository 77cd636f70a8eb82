/*
 * Transports
 *
 * The engines that bring bytes from one node to others, as agents know them: by name to each other and in sync.conf,
 * and by what they need to be told.
 */
#pragma once

#include "server/sync/base/ranges.h"
#include "server/sync/state/env.h"

#define TRANSPORT_NAME_MAX 15
#define TRANSPORT_HELLO_MAX                                                                        \
	1024 /* of what engines have to know of each other, beside the address */
#define TRANSPORT_RANGES_MAX 1024 /* of one epoch, so that an engine is told in one packet */
#define TRANSPORT_CHUNK ((uint64_t)1 << 20) /* what all but rings move at a time: a leaf */

struct gpu_memory;

struct transport {
	const char *name;
	enum job_kind job;
	bool has_tls;
	bool has_stripes; /* over several interfaces, if nodes have some */
	bool has_hello; /* what neighbours' engines have to know of each other, beside where they listen */
	bool is_nccl; /* of all nodes at once, and of memory of GPUs: see nccl_epoch.h */
	unsigned n_stalls; /* without a byte, after which an agent ends one that should have done so by itself */
	/* Payload of one link for these ranges in so many stripes, towards the receiver, see planned_bytes.h. */
	uint64_t (*planned)(const struct ranges *ranges, unsigned n_stripes);
};

extern const struct transport transport_tcp, transport_gloo, transport_nccl;

/* NULL: there is none of this name. */
const struct transport *transport_find(const char *name);

/* The order of an engine for an epoch. */
struct carriage {
	const struct transport *transport;
	const char *sync;
	uint64_t epoch;
	uint64_t n_bytes; /* of the memory */
	const struct ranges *ranges;
	const char *from, *token; /* NULL at the source */
	/* Only over NCCL. */
	const struct gpu_memory *memory;
	uint64_t chunk;
};

/* The first message to the engine. */
json_t *transport_open(const struct agent *a, const struct carriage *c);

/* Returns how long it may take to open, and then to move anything, before it has hung for good. */
uint64_t transport_time_to_open(const struct agent *a, const struct transport *t);
uint64_t transport_patience(const struct agent *a, const struct transport *t);
