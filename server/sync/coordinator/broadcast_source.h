/*
 * Broadcast sources
 *
 * Where a broadcast has its bytes from: a version of the local weightd, and what it is called.
 */
#pragma once

#include "server/sync/coordinator/broadcast.h"

/* `version` is the local weightd's, 0 the newest. -errno with a sentence. */
int broadcast_source_start(struct agent *a, struct broadcast *b, uint64_t version,
			   char why[WHY_SIZE]);

/* Continues with the loan that the last repair left: its member prepares at once. */
void broadcast_source_go_on(struct agent *a, struct broadcast *b);

/* The version cannot be lent: ends the broadcast. */
void broadcast_source_failed(struct agent *a, struct broadcast *b, const char *why);

/* Asks for one patch instead of several: patch_policy_on_composed() gets the answer. */
void broadcast_source_compose(struct agent *a, struct broadcast *b, const int *fds, unsigned n_fds);

/* Asks for these bytes in host memory: nccl_epoch_on_staged() gets the answer. */
void broadcast_source_stage(struct agent *a, struct broadcast *b, const struct ranges *ranges);

/* The broadcast needs it no more; of a repair, the replica has it for a while for the next one. */
void broadcast_source_end(struct agent *a, struct broadcast *b);
/* The same, but the replica keeps what was pushed, if this node makes patches. */
void broadcast_source_keep(struct agent *a, struct broadcast *b);
