/*
 * Look-ups of jobs
 *
 * Finds the job that a client names, and refuses clients that may not be its ranks: the refusal is answered and
 * audited.
 */
#pragma once

#include <stdint.h>

#include "ipc/wire.h"

struct session;
struct writer_group;

/* The job of the session's user with that token. NULL: the request was answered with an error. */
struct writer_group *group_lookup_rank(struct session *s, const char *name,
				       const uint8_t token[WIRE_TOKEN_SIZE]);

/* The job of that name, for its owner or an administrator to `act` on it: "remove", "view". NULL: likewise. */
struct writer_group *group_lookup_owned(struct session *s, const char *name, const char *act);
