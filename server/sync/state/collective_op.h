/*
 * Collective operations
 *
 * What nodes make versions of together, each from one of its own: what is special to an operation is a row of a
 * table, and how its engines come about is the same for all.
 */
#pragma once

#include "ipc/reshard/moves.h"
#include "server/sync/state/agent_state.h"

#define COLLECTIVE_OP_NODES_MAX 64 /* as many as an engine has links to */
#define SHARD_LAYOUT_MAX ((uint64_t)64 << 20) /* bytes of one: as many as a planner takes */
#define COLLECTIVE_OP_CHUNK ((uint64_t)1 << 20) /* bytes that engines send in one piece */

/* Bytes on the links between the ranks of an engine. */
struct flows {
	unsigned n;

	/* In an average: the pieces of each rank, as an engine reports them. */
	uint64_t n_others; /* leaves that are only compared */
	struct {
		uint64_t n_pieces;
		uint64_t n_bytes;
	} at[COLLECTIVE_OP_NODES_MAX];

	/* In a reshard: its plan, without the moves; its nodes are the ranks. */
	struct moves plan;
};

struct collective_op {
	const char *name; /* of the request, and of the kind of sync */
	const char *an; /* "an average", for sentences */
	const char *exchange; /* what an engine calls it */
	enum sync_kind kind;
	enum job_kind engine;
	const char *lend; /* what the source is told */
	const char *schedule;
	bool is_version; /* all come to the same one, which is the group's from then on */
	/* From what an engine says when it is open. -EBADMSG. */
	int (*read)(const json_t *opened, unsigned n, struct flows *ret);
	/* That go from one rank to another, which may be the same. */
	uint64_t (*bytes)(const struct flows *t, unsigned from, unsigned to);
	/* The same on the wire of two. */
	uint64_t (*planned)(const struct flows *t, unsigned from, unsigned to);
	/* That a rank has once it is done. */
	uint64_t (*expected)(const struct flows *t, unsigned rank);
	/* That come about at all ranks, each counted once. */
	uint64_t (*changed)(const struct flows *t);
};

/* NULL: there is none of that name. */
const struct collective_op *collective_op_find(const char *name);

/* The most bytes that come to a node of a plan and go from it, together. */
uint64_t collective_op_most(const struct moves *plan);
/* Bytes on the wire towards a rank, over all its links. */
uint64_t collective_op_planned(const struct collective_op *op, const struct flows *t, unsigned rank);
