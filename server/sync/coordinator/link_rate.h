/*
 * Link rates
 *
 * How fast the links of a broadcast are, as far as that was ever seen, and which of them holds up the others.
 */
#pragma once

#include "server/sync/coordinator/broadcast.h"

/* Bytes per second into its members, of those that were ever measured; 0: nobody was. */
uint64_t link_rate_median(const struct agent *a, const struct broadcast *b);
/* It has all of the epoch: remembers how fast it got that. */
void link_rate_measure(struct agent *a, const struct broadcast *b, struct member *m);
/* The same for a member that has some of it, and that no other member held up. */
void link_rate_note(struct agent *a, const struct broadcast *b, const struct member *m);
/* Returns whether its link is why it waits, and the others that are behind it. */
bool link_rate_is_slow(const struct agent *a, const struct broadcast *b, const struct member *m);
/*
 * Returns the member with a link so slow that others should not wait for it: those before it, which have all bytes and
 * could verify them, or those behind it. NULL: there is none, yet.
 */
struct member *link_rate_laggard(const struct agent *a, const struct broadcast *b);
/* The first that has not got what the one before it has: where the bytes hang. NULL: they do not. */
const struct member *link_rate_held_up(const struct broadcast *b);
