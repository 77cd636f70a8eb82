/*
 * The place of a run among several machines, its nodes
 */
#pragma once

#include <stdint.h>

#include "libclient/weightctl/cli.h"

#define TRAIN_ADDRESS_MAX 253 /* bytes of a name */

struct train_nodes {
	uint32_t n; /* 0: not given */
	uint32_t node; /* this one; UINT32_MAX: not given */
	char address[TRAIN_ADDRESS_MAX + 1]; /* MASTER_ADDR: of node 0; "": not given */
	uint16_t port; /* MASTER_PORT; 0: not given */
};

/* --master HOST or HOST:PORT, or the end of the program. */
void train_nodes_set_master(struct cli *cli, struct train_nodes *nodes, const char *arg);
/* Ends the program if the options, with `n_ranks` of each node, do not fit together. */
void train_nodes_check(struct cli *cli, const struct train_nodes *nodes, uint32_t n_ranks);
/* Completes one that was checked: a run without --nodes is alone, at a port that is free. 0, or a negative errno. */
int train_nodes_complete(struct train_nodes *nodes);
