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

/*
 * The request is answered, or its client is gone. Does nothing to one that is not counted. A parked session of the user goes
 * on: it may have the place.
 */
void in_work_end(struct server *s, struct charge *charge);

/* True while the session's user may have more in work. */
bool in_work_has_room(const struct session *s);

/*
 * True if the next packet of the session is a request for work, and its user has as many in work as it may have. Never for
 * an administrator. The caller parks the session.
 */
bool in_work_must_wait(const struct session *s);
