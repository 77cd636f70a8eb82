/*
 * Lenders
 *
 * Where a transaction has its bytes from: a version of the local weightd, and what it is called.
 */
#pragma once

#include "server/sync/transaction.h"

/* `version` is the local weightd's, 0 the newest. -errno with a sentence. */
int lender_start(struct agent *a, struct transaction *t, uint64_t version, char why[WHY_SIZE]);

/* The version cannot be lent: ends the transaction. */
void lender_failed(struct agent *a, struct transaction *t, const char *why);
