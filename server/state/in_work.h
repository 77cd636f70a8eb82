/*
 * Requests in work
 *
 * A request is in work while a worker, the store, or memory that is being freed has it; not while it waits for other
 * clients, as WAIT does. A user may have only so many of them (QUOTA_REQUESTS): weightd leaves further ones in the
 * user's connections until one is done. Requests that are answered at once are read all the same.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

struct charge;
struct server;
struct session;

/* Counts a request of the user; one that is counted already stays so. */
void in_work_begin(struct server *s, uid_t uid, struct charge *charge);

/* The request is answered, or its client is gone. Does nothing to one that is not counted. */
void in_work_end(struct server *s, struct charge *charge);

/*
 * True if the next packet of the session is a request for work, and its user has as many in work as it may have. Never for
 * an administrator. Parked sessions of the user go on when one ends.
 */
bool in_work_must_wait(const struct session *s);
