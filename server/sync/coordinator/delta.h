/*
 * Deltas
 *
 * A version that goes to members as a patch of what they have, instead of as its leaves that differ. The patch is one
 * for all of them: of those that this node keeps, from the oldest version on that any of them has. It travels as any
 * bytes do, and whoever has it all makes the version of it; whether it is that version, its digest of all bytes says.
 */
#pragma once

#include "server/sync/coordinator/transaction.h"

#define DELTA_WORTH 2 /* times fewer bytes than of the leaves, or else those travel */

/*
 * Members are ready: decides who gets a patch. True: it has to be composed first, and transaction_step() comes when
 * it is, or cannot be.
 */
bool delta_begin(struct agent *a, struct transaction *t);
/* What the source job says of the patch. */
void delta_on_composed(struct agent *a, struct transaction *t, const json_t *message, int *fds,
		       unsigned n_fds);
/* There will be none: leaves travel. */
void delta_give_up(struct transaction *t);
void delta_deinit(struct delta *d);

/* Whether anybody is ready who gets a patch and has not all of it. */
bool delta_is_wanted(const struct transaction *t);
/* What a member lacks of what the epoch carries. */
struct ranges *delta_missing(const struct transaction *t, struct member *m);
/* It has got some: with all of a patch it lacks nothing, until it says so. */
void delta_settle(const struct transaction *t, struct member *m);
/* Leaves travel to it. */
void delta_leave(struct member *m);

/* How versions get to members: "patch", "leaves", those that differ, or "full". NULL: that is not known yet. */
const char *delta_way(bool is_patch, uint64_t changed, uint64_t n_bytes);
