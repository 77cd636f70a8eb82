/*
 * Shares
 *
 * The arithmetic by which users share what weightd has once: descriptors, connections, leases, memory. All of it
 * together is the whole. weightd.conf(5) documents it (SHARES).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The part of the whole that each of that many users is sure of: a share is never less. */
#define SHARE_USERS 16

/* Below this a limit is no share any more: so much each user may have of the smallest whole. */
#define SHARE_LIMIT_MIN 64

/* The limit `auto` of a user: half of the whole. */
uint64_t share_limit(uint64_t whole);

/* The least share. */
uint64_t share_least(uint64_t whole);

/* The share of one of `n_users` that hold something. */
uint64_t share_of(uint64_t whole, unsigned n_users);

/*
 * How much of the whole may be in use once a user holds `holds`. Administrators may use all of it; a sixteenth is
 * theirs alone. A quarter is only for users that hold no more than the least share.
 */
uint64_t share_open_to(uint64_t whole, bool is_admin, uint64_t holds);
