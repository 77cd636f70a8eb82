/*
 * Joint operations
 *
 * What nodes make a version of together, each from one of its own: what is special to an operation is a row of a
 * table, and joint.c and share.c are the same for all.
 */
#pragma once

#include "server/sync/agent_state.h"

#define OPERATION_NODES_MAX 64 /* as many as an engine has links to */

/* What each rank of an engine owns, as one of them says; from that follows what every link carries. */
struct owned {
	uint64_t n_others; /* tensors that are only compared */
	unsigned n;
	struct {
		uint64_t n_pieces;
		uint64_t n_bytes;
	} at[OPERATION_NODES_MAX];
};

struct operation {
	const char *name; /* of the request, of the kind of sync, and for the engine */
	enum sync_kind kind;
	enum job_kind engine;
	const char *lend; /* what the source is told */
	const char *make; /* and the sink */
	const char *schedule;
	bool are_equal; /* all come to the same version, or whoever has another one is wrong */
	/* Bytes on the wire of the link between two ranks, each way. */
	uint64_t (*planned)(const struct owned *o, unsigned x, unsigned y);
};

/* NULL: there is none of that name. */
const struct operation *operation_find(const char *name);

/* From what an engine of `n` nodes says when it is open. -EBADMSG. */
int owned_read(const json_t *opened, unsigned n, struct owned *ret);
/* Of all pieces. */
uint64_t owned_total(const struct owned *o);
/* What all links of a rank carry towards it. */
uint64_t operation_planned(const struct operation *op, const struct owned *o, unsigned rank);
