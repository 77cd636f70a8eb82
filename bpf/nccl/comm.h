/*
 * Communicators of this process
 *
 * NCCL's threads open and close one, with the lock of plugin.c. The sender frees it after it has reported the close.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define N_COMMS 1024
#define COMM_NAME_SIZE 64
#define COMM_LABEL_SIZE 128 /* the longest name of a sync in weightd-trace */
#define COMM_NONE UINT32_MAX

enum comm_state {
	COMM_FREE,
	COMM_OPEN,
	COMM_CLOSED,
};

struct comm {
	_Atomic uint64_t word; /* turn, state */
	_Atomic(void *) chained; /* context of the next plug-in */
	_Atomic bool has_next;
	char name[COMM_NAME_SIZE]; /* "": none */
	char label[COMM_LABEL_SIZE]; /* no other that is not free has it */
	uint64_t hash;
	int rank, n_ranks, n_nodes;
	int api;
};

extern struct comm comms[N_COMMS];

/* NCCL's description of it. */
struct comm_facts {
	const char *name; /* or NULL */
	uint64_t hash;
	int rank, n_ranks, n_nodes;
	int api;
};

/* NULL: there are too many. With the lock. */
struct comm *comm_open(const struct comm_facts *f, void **ret_context);
/* Returns the communicator of a context if it is open, else NULL; with the lock. */
struct comm *comm_close(const void *context);
void comm_forget_all(void);
unsigned comm_n_open(void);
/* Those from here on are free. Any thread. */
unsigned comm_limit(void);

/* Its place, or COMM_NONE. Any thread. */
uint32_t comm_find(const void *context);

enum comm_state comm_state(const struct comm *c);
/* Teller's. */
void comm_free(struct comm *c);
