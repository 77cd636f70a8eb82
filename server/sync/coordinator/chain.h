/*
 * Chains
 *
 * The order in which members of a broadcast get bytes from each other in an epoch.
 */
#pragma once

#include "server/sync/coordinator/broadcast.h"

/* Returns whether it lacks some of what the epoch carries, and is ready for it. */
bool chain_is_behind(const struct broadcast *b, struct member *m);
/* Times that it was blamed for a link that broke, or had other bytes than were signed. */
unsigned chain_n_faults(const struct member *m);

/* Links those that lack some of what the epoch carries; `median` of the rates that were measured. */
void chain_order(struct agent *a, struct broadcast *b, uint64_t median);

/* The one before it in the chain; NULL: this node, or it is in none. */
struct member *chain_before(const struct broadcast *b, const struct member *m);
