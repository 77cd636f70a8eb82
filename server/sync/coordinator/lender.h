/*
 * Lenders
 *
 * Where a transaction has its bytes from: a version of the local weightd, and what it is called.
 */
#pragma once

#include "server/sync/coordinator/transaction.h"

/* `version` is the local weightd's, 0 the newest. -errno with a sentence. */
int lender_start(struct agent *a, struct transaction *t, uint64_t version, char why[WHY_SIZE]);

/* What the last repair left is lent already: its member prepares at once. */
void lender_go_on(struct agent *a, struct transaction *t);

/* The version cannot be lent: ends the transaction. */
void lender_failed(struct agent *a, struct transaction *t, const char *why);

/* Asks for one patch instead of several: delta_on_composed() gets the answer. */
void lender_compose(struct agent *a, struct transaction *t, const int *fds, unsigned n_fds);

/* Asks for these bytes in host memory: ring_on_staged() gets the answer. */
void lender_stage(struct agent *a, struct transaction *t, const struct ranges *ranges);

/* The transaction needs it no more; of a repair, the replica has it for a while for the next one. */
void lender_end(struct agent *a, struct transaction *t);
/* The same, but the replica keeps what was pushed, if this node makes patches. */
void lender_keep(struct agent *a, struct transaction *t);

/* What a replica keeps is given back: whatever it is, all but this root, or this version. */
void lender_forget(struct agent *a, struct replica *h);
void lender_keep_to(struct agent *a, struct replica *h, const uint8_t root[32]);
void lender_forget_version(struct agent *a, struct replica *h, uint64_t version);
/* What is kept for repairs only, of one replica, or of all that is NULL. */
void lender_forget_idle(struct agent *a, struct replica *h);
/* What nobody repaired with for a while is given back; when to come again, 0: there is no need. */
uint64_t lender_step(struct agent *a, uint64_t now);
