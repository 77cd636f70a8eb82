/*
 * Engines of a simulated world that all talk to each other, instead of in a chain. An engine has a wire to each other one
 * of its epoch with which it exchanges anything, and gets no further ahead of them than a window; of those that are silent
 * it names one, by chance where it sees several. A result is a content of its own, made of the contents that went in, so
 * that a test can tell whose they are.
 */
#pragma once

#include "server/sync/state/collective_op.h"
#include "sim_jobs.h"

/*
 * What members made together: the versions that it is of, by rank. Each sync has contents of its own, even where the
 * terms are the same.
 */
struct sim_made {
	char sync[SYNC_ID_SIZE];
	uint64_t content;
	unsigned rank; /* of who has it, if it is a shard */
	unsigned n_shards; /* that there are; 0: it is the same everywhere */
	bool is_verified; /* by the sink of a node that has it */
	uint64_t terms[COLLECTIVE_OP_NODES_MAX];
	unsigned n_terms;
};

/* What is special to one of these operations. */
struct sim_operation {
	const char *name; /* that an engine is told */
	/* `j` knows its nodes. Fields are added to what it answers. NULL, or why it cannot. */
	const char *(*open)(struct job *j, const json_t *order, const int *fds, unsigned n_fds,
			    json_t *opened);
	bool (*is_linked)(const struct job *j, unsigned rank);
	/* Bytes on the wire from a rank to another. */
	uint64_t (*planned)(const struct job *j, unsigned from, unsigned to);
	/* NULL, or why the two do not fit, and the code of that. */
	const char *(*compare)(const struct job *j, const struct job *other);
	const char *misfit;
	/* All is there. Fields are added to what it says of that. */
	void (*finish)(struct job *j, json_t *done);
};

extern const struct sim_operation sim_averages, sim_exchanges;

/* NULL: nobody made the content. */
struct sim_made *sim_made_of(const struct sim *s, uint64_t content);
/* Which content that is: a new one, unless a node came to it before. */
uint64_t sim_content_made(struct sim *s, const struct sim_made *made);
/* The engine's result, if it has one, is that content; a wrong one where its node is to come to that. */
void sim_engine_makes(struct job *j, uint64_t content);

const char *sim_node_at(const struct job *j, unsigned rank);
/* NULL: it is gone. */
struct job *sim_engine_at(const struct job *j, unsigned rank);

/* For sim.c and sim_jobs.c: an engine is told something; and what it does in a tick. */
void sim_gloo_told(struct job *j, const json_t *message, const int *fds, unsigned n_fds);
void sim_gloo_turn(struct sim *s, struct job *j);
