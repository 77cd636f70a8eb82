/*
 * Collective operations
 *
 * Operations in which nodes make versions together, each from one of its own. A row of a table has
 * the specifics of an operation; the epochs of its engines are the same for all.
 */
#pragma once

#include "ipc/reshard/moves.h"
#include "server/sync/state/agent_state.h"
#include "server/sync/state/transport.h"

#define COLLECTIVE_OP_NODES_MAX 64 /* the most links of an engine */
#define SHARD_LAYOUT_MAX ((uint64_t)64 << 20) /* bytes of a layout: the limit of a planner */
#define COLLECTIVE_OP_CHUNK ((uint64_t)1 << 20) /* bytes of one piece of an engine over Gloo */
#define COLLECTIVE_OP_CHUNK_NCCL ((uint64_t)16 << 20) /* bytes that one call of NCCL's moves */

/* The bytes of the links between the ranks of an engine. */
struct flows {
	unsigned n;

	/* An average over NCCL: bytes of the tensors with a mean, as reported by an engine. */
	uint64_t reduced;

	/* An average over Gloo: the part of each rank, as reported by an engine. */
	uint64_t n_others; /* leaves that are only compared */
	struct {
		uint64_t n_pieces;
		uint64_t n_bytes;
	} at[COLLECTIVE_OP_NODES_MAX];

	/* A reshard: its plan, without the moves. Its nodes are the ranks. */
	struct moves plan;
};

struct collective_op {
	const char *name; /* in requests, and as the kind of sync */
	const char *an; /* "an average", for sentences */
	const char *exchange; /* the engine's name of it */
	enum sync_kind kind;
	const struct transport *transport;
	const char *over; /* its name, for sentences */
	const char *lend; /* the source's op */
	const char *schedule;
	bool is_version; /* all ranks make the same version, which becomes the group's */
	/* Reads "opened" of an engine. -EBADMSG. */
	int (*read)(const json_t *opened, unsigned n, struct flows *ret);
	/* Bytes from one rank to another, which may be the same. */
	uint64_t (*bytes)(const struct flows *t, unsigned from, unsigned to);
	/* The same on the wire between two. */
	uint64_t (*planned)(const struct flows *t, unsigned from, unsigned to);
	/* Bytes that a rank has at the end. */
	uint64_t (*expected)(const struct flows *t, unsigned rank);
	/* Bytes that all ranks make, each counted once. */
	uint64_t (*changed)(const struct flows *t);
};

/* Finds it by its name and that of its engine. NULL: there is none. */
const struct collective_op *collective_op_find(const char *name, const char *engine);

/* The most bytes that a node of a plan receives and sends, together. */
uint64_t collective_op_most(const struct moves *plan);
/* Bytes on the wire of all links of a rank towards it. */
uint64_t collective_op_planned(const struct collective_op *op, const struct flows *t, unsigned rank);
