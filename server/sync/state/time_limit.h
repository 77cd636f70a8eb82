/*
 * Time limits
 *
 * How long a step may take on a node that is well, by the bytes that it reads or moves.
 */
#pragma once

#include "server/sync/state/agent_state.h"

/* How long something may take that reads, writes or makes this many bytes here: 256 MiB/s and an answer. */
uint64_t time_limit_for(const struct agent *a, uint64_t n_bytes);
/* How long a member may verify: it may have to copy first what did not travel. */
uint64_t time_limit_to_verify(const struct agent *a, uint64_t n_bytes);
/* How long bytes may move, at `rate` bytes per second where that is known; a sync as a whole, too. */
uint64_t time_limit_to_move(const struct agent *a, uint64_t n_bytes, uint64_t rate);
/* How long a coordinator may take to send plans and layouts of so many bytes together. */
uint64_t time_limit_to_send(uint64_t n_bytes);
