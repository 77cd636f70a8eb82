/*
 * Collective epochs
 *
 * An epoch of a collective: engines of all its nodes, each linked with each other one. What they are made from stays as
 * it was, so one that broke leaves nothing behind, and the next one begins anew, without whoever was lost.
 */
#pragma once

#include "server/sync/coordinator/collective.h"

#define COLLECTIVE_EPOCHS_MAX 8

void collective_epoch_begin(struct agent *a, struct collective *c);
/* All have opened. */
void collective_epoch_start(struct agent *a, struct collective *c);
/* One of it is lost, or its engine is. */
void collective_epoch_break(struct agent *a, struct collective *c);
/* It is over everywhere: finds the node to blame, and begins the next one. */
void collective_epoch_settle(struct agent *a, struct collective *c);
/* Nothing came in time. */
void collective_epoch_on_timer(struct agent *a, struct collective *c, uint64_t now);
/* Returns whether all have told what they know of the epoch that broke. */
bool collective_epoch_is_told(const struct collective *c);

/* Messages of members. */
void collective_epoch_on_opened(struct agent *a, struct sync *s, struct member *m,
				const json_t *message);
void collective_epoch_on_progress(struct agent *a, struct sync *s, struct member *m,
				  const json_t *message);
void collective_epoch_on_done(struct agent *a, struct sync *s, struct member *m,
			      const json_t *message);
void collective_epoch_on_broken(struct agent *a, struct sync *s, struct member *m,
				const json_t *message);
void collective_epoch_on_stopped(struct agent *a, struct sync *s, struct member *m,
				 const json_t *message);
