/*
 * The processes of a run: one for each rank, in a session of its own
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct train_program {
	const char *path;
	char **argv;
	uint32_t n_ranks;
	unsigned n_restarts_max; /* of each rank */
	const char *job;
	const char *token;
	const char *socket; /* of weightd */
	uint16_t port; /* for MASTER_PORT */
};

struct train_rank {
	uint32_t rank;
	pid_t pid; /* 0: not started, or reaped */
	int pidfd; /* -1: likewise */
	unsigned n_restarts;
};

/* A port of 127.0.0.1 that no process uses, or a negative errno. */
int train_rank_port(uint16_t *ret);
/* Sets the variables that are alike for all ranks. */
void train_rank_environment(const struct train_program *program);

/* 0, or a negative errno. */
int train_rank_start(struct train_rank *rank, const struct train_program *program);
/* For one that runs. `all`: for its process group. */
void train_rank_signal(const struct train_rank *rank, int signal, bool all);
/* For one that has ended: its exit status as of a shell, 128 + N for signal N. After a failure its group is killed. */
int train_rank_reap(struct train_rank *rank);
