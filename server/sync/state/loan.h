/*
 * Loans
 *
 * A version of the local weightd that a source job holds. A broadcast uses it, or the replica keeps
 * it for the next one.
 */
#pragma once

#include "server/sync/state/replica.h"

struct broadcast;

struct loan {
	struct list link; /* agent::idle_loans */
	struct work work; /* source */
	bool is_of_push; /* the next push is compared with it */
	struct broadcast *broadcast; /* the current user; NULL: its replica keeps it */
	struct replica *replica;
	uint64_t version;
	uint64_t kept_ns; /* time when its replica took it */
	uint64_t n_bytes;
	uint8_t root[32];
	int layout_fd;
	int data_fd;
	uint64_t data_offset; /* where its bytes begin in `data_fd` */
	int leaves_fd;
	int companions_fd; /* -1: none, or not those that were signed */
};

struct loan *loan_free(struct agent *a, struct loan *l);

/*
 * The replica keeps it from now on, for the next push, or for the next repair if a push has not
 * kept it already.
 */
void loan_keep(struct agent *a, struct loan *l);
void loan_keep_for_repairs(struct agent *a, struct loan *l);

/* Releases the loan of a replica: any, any except of this root, or of this version. */
void loan_forget(struct agent *a, struct replica *rep);
void loan_keep_to(struct agent *a, struct replica *rep, const uint8_t root[32]);
void loan_forget_version(struct agent *a, struct replica *rep, uint64_t version);
/* Releases loans that are kept for repairs only, of one replica; NULL: of all. */
void loan_forget_idle(struct agent *a, struct replica *rep);
/*
 * Releases loans that no repair used for a while. Returns the time of the next call, 0: none
 * needed.
 */
uint64_t loan_step(struct agent *a, uint64_t now);
