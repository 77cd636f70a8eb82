/*
 * Plans
 *
 * What the next epoch of a sync is going to send, over which links, told before it does.
 */
#pragma once

#include "server/sync/transaction.h"

/* Tells the event "plan" of the chain and the ranges that were chosen for the epoch. */
void plan_tell(struct agent *a, const struct transaction *t);
