/*
 * Members
 *
 * The part of averages and exchanges that is the same: the nodes, which are the ranks of NCCL, and
 * the text that must be equal on all of them. Rank 0 makes NCCL's id, and sends it to all others as
 * its hello.
 */
#pragma once

#include "server/sync/engine/common_text.h"
#include "server/sync/nccl/worker.h"

struct members {
	struct nodes nodes;
	const char *what; /* the common text: "plan" */
	uint8_t hash[MERKLE_HASH_SIZE]; /* the common text's */
};

/* --- Called by the loop ------------------------------------------------------------------------ */

/* Reads the nodes, of which this node must be one. -EBADMSG with a sentence. */
int members_open(struct members *m, struct engine *e, const json_t *order,
		 char why[ENGINE_ORDER_WHY_SIZE]);
/* The hello for each rank, or null, and the version of NCCL. */
json_t *members_opened(const struct members *m, const struct engine *e);
/* Reads the id from the hello of rank 0. -EBADMSG with a sentence. */
int members_start(const struct members *m, struct engine *e, const json_t *order,
		  char why[ENGINE_ORDER_WHY_SIZE]);
/* Ends the engine with a failure that another epoch would repeat. */
__attribute__((format(printf, 2, 3))) void members_refuse(struct engine *e, const char *fmt, ...);

/* --- Called by the worker ---------------------------------------------------------------------- */

/* Compares the order with those of all others, and names a node that has another one. */
bool members_greet(const struct members *m, struct worker *w);
