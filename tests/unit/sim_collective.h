/*
 * Engines of a simulated world that form a mesh instead of a chain. An engine has a wire to each
 * other one of its epoch with which it exchanges anything, and stays within a window of them. It
 * reports one of its silent peers, a random one if there are several. A result is a new content
 * made of the input contents, so that a test can trace these.
 */
#pragma once

#include "server/sync/state/collective_op.h"
#include "sim_jobs.h"

/*
 * A joint result of members: its input versions by rank. Each sync has contents of its own, even if
 * the terms are equal.
 */
struct sim_made {
	char sync[SYNC_ID_SIZE];
	uint64_t content;
	unsigned rank; /* the owner's rank, if it is a shard */
	unsigned n_shards; /* number of shards; 0: the same content everywhere */
	bool is_verified; /* the sink of a node verified it */
	uint64_t terms[COLLECTIVE_OP_NODES_MAX];
	unsigned n_terms;
};

/* The specifics of one of these operations. */
struct sim_operation {
	const char *name; /* the engine's name of it */
	/*
	 * Opens the operation of `j`, which has its nodes. Adds fields to "opened". NULL, or the
	 * reason of a failure.
	 */
	const char *(*open)(struct job *j, const json_t *order, const int *fds, unsigned n_fds,
			    json_t *opened);
	bool (*is_linked)(const struct job *j, unsigned rank);
	/* Bytes on the wire from one rank to another. */
	uint64_t (*planned)(const struct job *j, unsigned from, unsigned to);
	/* NULL, or why the two do not fit; `misfit` is then the code. */
	const char *(*compare)(const struct job *j, const struct job *other);
	const char *misfit;
	/* Called when all bytes are there. Adds fields to "done". */
	void (*finish)(struct job *j, json_t *done);
};

extern const struct sim_operation sim_averages, sim_exchanges;

/* NULL: the content was made by one node. */
struct sim_made *sim_made_of(const struct sim *s, uint64_t content);
/* Returns a new content, or that which another node has already made of it. */
uint64_t sim_content_made(struct sim *s, const struct sim_made *made);
/*
 * Sets the result of an engine, if it has one, to that content, or to a wrong one if its node is to
 * lie.
 */
void sim_engine_makes(struct job *j, uint64_t content);

const char *sim_node_at(const struct job *j, unsigned rank);
/* NULL: it is gone. */
struct job *sim_engine_at(const struct job *j, unsigned rank);

/* Called by sim.c and sim_jobs.c: a message for an engine; and its work in a tick. */
void sim_gloo_told(struct job *j, const json_t *message, const int *fds, unsigned n_fds);
void sim_gloo_turn(struct sim *s, struct job *j);
