/*
 * Attempts
 *
 * An epoch of a joint sync: engines of all its nodes, each linked with each other one. What they are made from stays as
 * it was, so one that broke leaves nothing behind, and the next one begins anew, without whoever was lost.
 */
#pragma once

#include "server/sync/coordinator/joint.h"

#define ATTEMPTS_MAX 8

void attempt_begin(struct agent *a, struct joint *j);
/* All have opened. */
void attempt_start(struct agent *a, struct joint *j);
/* One of it is lost, or its engine is. */
void attempt_break(struct agent *a, struct joint *j);
/* It is over everywhere: who is to blame, and the next one. */
void attempt_settle(struct agent *a, struct joint *j);
/* Nothing came in time. */
void attempt_on_timer(struct agent *a, struct joint *j, uint64_t now);
/* Whether all have told what they know of the epoch that broke. */
bool attempt_is_told(const struct joint *j);

/* What nodes say. */
void attempt_on_opened(struct agent *a, struct sync *s, struct member *m, const json_t *message);
void attempt_on_progress(struct agent *a, struct sync *s, struct member *m, const json_t *message);
void attempt_on_done(struct agent *a, struct sync *s, struct member *m, const json_t *message);
void attempt_on_broken(struct agent *a, struct sync *s, struct member *m, const json_t *message);
void attempt_on_stopped(struct agent *a, struct sync *s, struct member *m, const json_t *message);
