/*
 * The processes of a run: one for each rank, in a session of its own
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "libclient/weightctl/verbs/train_nodes.h"

struct train_program {
	const char *path;
	char **argv;
	uint32_t n_ranks; /* of this node */
	const struct train_nodes *nodes;
	unsigned n_restarts_max; /* each rank has so many */
	const char *run_id; /* the same on all nodes, where the caller named the job */
	const char *token;
	const char *socket; /* that weightd listens on */
};

struct train_rank {
	uint32_t rank; /* of the node, and of its job */
	pid_t pid; /* 0: not started, or reaped */
	int pidfd; /* -1: likewise */
	unsigned n_restarts;
};

/* Sets the variables that are alike for all ranks. */
void train_rank_environment(const struct train_program *program);

/* 0, or a negative errno. */
int train_rank_start(struct train_rank *rank, const struct train_program *program);
/* Sends a signal to its process, if that runs; `all`: to its process group. */
void train_rank_signal(const struct train_rank *rank, int signal, bool all);
/* Returns the exit status of one that has ended, 128 + N for signal N. After a failure its process group is killed. */
int train_rank_reap(struct train_rank *rank);
