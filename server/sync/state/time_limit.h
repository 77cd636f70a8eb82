/*
 * Time limits
 *
 * How long a step may take on a node that is well, by the bytes that it reads or moves.
 */
#pragma once

#include "server/sync/state/agent_state.h"

/* Time to read, write or make so many bytes here: 256 MiB/s and an answer. */
uint64_t time_limit_for(const struct agent *a, uint64_t n_bytes);
/* Time for a member to verify: it may have to copy first what did not travel. */
uint64_t time_limit_to_verify(const struct agent *a, uint64_t n_bytes);
/* Time to move bytes, at `rate` bytes per second where that is known; also of a sync as a whole. */
uint64_t time_limit_to_move(const struct agent *a, uint64_t n_bytes, uint64_t rate);
/* Time for a coordinator to send plans and layouts of so many bytes together. */
uint64_t time_limit_to_send(uint64_t n_bytes);
