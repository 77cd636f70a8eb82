/*
 * Loans
 *
 * A version of the local weightd that a source job holds: a broadcast has it, or the replica keeps it for the next one.
 */
#pragma once

#include "server/sync/state/replica.h"

struct broadcast;

struct loan {
	struct list link; /* agent::idle_loans */
	struct work work; /* source */
	bool is_of_push; /* what is kept of it the next push is compared with */
	struct broadcast *broadcast; /* that has it now; NULL: its replica keeps it */
	struct replica *replica;
	uint64_t version;
	uint64_t kept_ns; /* since when its replica keeps it */
	uint64_t n_bytes;
	uint8_t root[32];
	int layout_fd;
	int data_fd;
	int leaves_fd;
};

struct loan *loan_free(struct agent *a, struct loan *l);

/* From now on the replica keeps it, for the next push, or for the next repair if a push has not kept it already. */
void loan_keep(struct agent *a, struct loan *l);
void loan_keep_for_repairs(struct agent *a, struct loan *l);

/*
 * Gives back the loan that a replica keeps: any, unless it has this root, or if it has this
 * version.
 */
void loan_forget(struct agent *a, struct replica *rep);
void loan_keep_to(struct agent *a, struct replica *rep, const uint8_t root[32]);
void loan_forget_version(struct agent *a, struct replica *rep, uint64_t version);
/* Gives back loans kept for repairs only, of one replica, or NULL: of all. */
void loan_forget_idle(struct agent *a, struct replica *rep);
/*
 * Gives back loans for repairs that were not used for a while. Returns when to call it again; 0: no
 * need.
 */
uint64_t loan_step(struct agent *a, uint64_t now);
