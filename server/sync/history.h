/*
 * History
 *
 * What people see of syncs: rows of those under way, the events of their steps, and what became of the last.
 */
#pragma once

#include "server/sync/joint.h"
#include "server/sync/party.h"
#include "server/sync/transaction.h"

#define HISTORY_MAX 256

/* For the record: an array of rows, oldest first. What is no such row is left out when it is read. */
json_t *history_to_json(const struct agent *a);
void history_load(struct agent *a, const json_t *rows);

void history_member_event(struct agent *a, const struct transaction *t, const struct member *m);
void history_transaction_end(struct agent *a, const struct transaction *t, bool committed);
void history_party_event(struct agent *a, const struct party *p);
void history_part_event(struct agent *a, const struct joint *j, const struct part *p);
void history_joint_end(struct agent *a, const struct joint *j, bool committed);
void history_share_event(struct agent *a, const struct share *s);
void history_share_end(struct agent *a, const struct share *s);
void history_party_end(struct agent *a, const struct party *p);
