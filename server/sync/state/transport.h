/*
 * Transports
 *
 * The engines that carry bytes from one node to others, as agents use them: their names in messages
 * and in sync.conf, and their orders.
 */
#pragma once

#include "server/sync/base/ranges.h"
#include "server/sync/state/env.h"

#define TRANSPORT_NAME_MAX 15
#define TRANSPORT_HELLO_MAX 1024 /* bytes of a hello */
#define TRANSPORT_RANGES_MAX 1024 /* the most in one epoch, so that an order fits into one packet */
#define TRANSPORT_CHUNK ((uint64_t)1 << 20) /* moved at a time by all transports but NCCL: a leaf */

struct gpu_memory;

struct transport {
	const char *name;
	enum job_kind job;
	bool has_tls;
	bool has_stripes; /* over several interfaces, if nodes have some */
	bool has_hello; /* neighbours' engines must exchange hellos, besides addresses */
	bool is_nccl; /* all nodes at once, and GPU memory: see nccl_epoch.h */
	/*
	 * Stalls without a byte, after which an agent kills an engine that has not failed by itself
	 */
	unsigned n_stalls;
	/*
	 * Payload of one link for these ranges in `n_stripes` stripes, towards the receiver, see
	 * planned_bytes.h.
	 */
	uint64_t (*planned)(const struct ranges *ranges, unsigned n_stripes);
};

extern const struct transport transport_tcp, transport_gloo, transport_nccl;

/* NULL: there is none of this name. */
const struct transport *transport_find(const char *name);

/* The work of an engine in an epoch. */
struct carriage {
	const struct transport *transport;
	const char *sync;
	uint64_t epoch;
	uint64_t n_bytes; /* the memory's */
	uint64_t data_offset; /* where these begin in its descriptor */
	const struct ranges *ranges;
	const char *from, *token; /* NULL at the source */
	/* NCCL's. */
	const struct gpu_memory *memory;
	uint64_t chunk;
};

/* Its first order. */
json_t *transport_open(const struct agent *a, const struct carriage *c);

/* Time limits: to open, and then to move any byte; after these it has hung. */
uint64_t transport_time_to_open(const struct agent *a, const struct transport *t);
uint64_t transport_patience(const struct agent *a, const struct transport *t);
