/*
 * Patch policy
 *
 * A version that goes to members as a patch of what they have, instead of as its leaves that differ. The patch is one
 * for all of them: of those that this node keeps, from the oldest version on that any of them has. It travels as any
 * bytes do, and whoever has it all makes the version of it; whether it is that version, its digest of all bytes says.
 */
#pragma once

#include "server/sync/coordinator/broadcast.h"

/*
 * Members are ready: decides which of them get a patch. True: the patch must be composed first, and broadcast_step() is
 * called once it is, or cannot be.
 */
bool patch_policy_begin(struct agent *a, struct broadcast *b);
/* Takes the answer of the source job: the patch, or why there is none. */
void patch_policy_on_composed(struct agent *a, struct broadcast *b, const json_t *message, int *fds,
			      unsigned n_fds);
/* There will be none: leaves travel. */
void patch_policy_give_up(struct broadcast *b);
void patch_policy_deinit(struct patch_policy *d);

/* Returns whether a ready member gets a patch and does not have all of it. */
bool patch_policy_is_wanted(const struct broadcast *b);
/* It has got some: with all of a patch it lacks nothing, until it says so. */
void patch_policy_settle(const struct broadcast *b, struct member *m);
/* Leaves travel to it. */
void patch_policy_leave(struct member *m);
