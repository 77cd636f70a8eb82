/*
 * History
 *
 * What people see of syncs: rows of those under way, the events of their steps, and what became of the last.
 */
#pragma once

#include "server/sync/party.h"
#include "server/sync/transaction.h"

void history_member_event(struct agent *a, const struct transaction *t, const struct member *m);
void history_transaction_end(struct agent *a, const struct transaction *t, bool committed);
void history_party_event(struct agent *a, const struct party *p);
void history_party_end(struct agent *a, const struct party *p);
