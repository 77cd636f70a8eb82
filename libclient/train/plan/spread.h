/*
 * Spread states: with plan_shards_state() each node has MASTER and MOMENTS of its own pieces alone
 */
#pragma once

#include "libclient/train/plan/plan.h"

/* The parts of an interval of the flat range that a node has states of, and their places, in a fixed order. */
struct spread {
	const struct weightd_plan *plan;
	struct plan_interval within;
	uint32_t node, rank, n_ranks; /* the next rank, and the end of them */
	uint32_t piece; /* the next one */
};

/* States of all ranks of the node; replicated: of each of them. */
struct spread spread_of_node(const struct weightd_plan *p, uint32_t node,
			     struct plan_interval within);
/* States that one rank of it updates. */
struct spread spread_of_rank(const struct weightd_plan *p, uint32_t node, uint32_t rank,
			     struct plan_interval within);
/* False: there is no more. */
bool spread_next(struct spread *s, struct plan_piece *ret);
/* Elements of all parts. */
uint64_t spread_count(struct spread s);
