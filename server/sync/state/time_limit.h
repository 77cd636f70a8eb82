/*
 * Time limits
 *
 * The time that a step may take on a healthy node, by the bytes that it reads or moves.
 */
#pragma once

#include "server/sync/state/agent_state.h"

/* Time limit for reading, writing or making this many bytes here: 256 MiB/s and an answer. */
uint64_t time_limit_for(const struct agent *a, uint64_t n_bytes);
/* Time limit of a member's verify, which may have to copy the unsent bytes first. */
uint64_t time_limit_to_verify(const struct agent *a, uint64_t n_bytes);
/*
 * Time limit for moving bytes, at `rate` bytes per second if that is known; also of a whole sync.
 */
uint64_t time_limit_to_move(const struct agent *a, uint64_t n_bytes, uint64_t rate);
/* Time limit of a coordinator for sending plans and layouts of this size in total. */
uint64_t time_limit_to_send(uint64_t n_bytes);
