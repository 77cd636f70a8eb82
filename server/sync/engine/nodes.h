/*
 * Nodes
 *
 * The nodes of an order for a collective, of which this node is one: their places are the ranks.
 */
#pragma once

#include <jansson.h>

#include "server/sync/base/engine_order.h"

#define ENGINE_NODES_MAX 64

struct node {
	char name[PREAMBLE_NAME_SIZE];
	struct address address; /* with port 0 */
};

struct nodes {
	struct node at[ENGINE_NODES_MAX]; /* indexed by rank */
	unsigned n;
	unsigned rank; /* this node's */
};

/* Reads `nodes` of "open". -EBADMSG with a sentence. */
int nodes_read(struct nodes *ret, const struct engine_order *o, const json_t *order,
	       char why[ENGINE_ORDER_WHY_SIZE]);
