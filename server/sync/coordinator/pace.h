/*
 * Paces
 *
 * How fast the links of a transaction are, as far as that was ever seen, and which of them holds up the others.
 */
#pragma once

#include "server/sync/coordinator/transaction.h"

/* Bytes per second into its members, of those that were ever measured; 0: nobody was. */
uint64_t pace_median(const struct agent *a, const struct transaction *t);
/* It has all of the epoch: remembers how fast it got that. */
void pace_measure(struct agent *a, const struct transaction *t, struct member *m);
/* The same of who has some of it, and was held up by nobody else. */
void pace_note(struct agent *a, const struct transaction *t, const struct member *m);
/* Whether its link is why it waits, and the others that are behind it. */
bool pace_is_slow(const struct agent *a, const struct transaction *t, const struct member *m);
/*
 * Who gets its bytes so slowly, by its own link, that others should not wait for it: those before it, that have all and
 * could verify that, or those behind it. NULL: nobody, yet.
 */
struct member *pace_laggard(const struct agent *a, const struct transaction *t);
/* The first that has not got what the one before it has: where the bytes hang. NULL: they do not. */
const struct member *pace_held_up(const struct transaction *t);
