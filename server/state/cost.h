/*
 * Costs
 *
 * Costs of each user to weightd: time of the loop and of the worker, memory that is held or checked
 * for it, and refusals. Costs are counters, not limits: they last while the user holds a reference,
 * and then until COST_IDLE_MAX other users were seen since. All on the loop's thread.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "ipc/base/list.h"
#include "ipc/wire.h"
#include "server/base/flood.h"
#include "server/state/turns.h"

#define COST_IDLE_MAX 256
#define COST_BUCKETS 64

struct server;

struct cost {
	struct list link; /* costs::buckets */
	struct list idle_link; /* costs::idle; itself while there are references */
	struct costs *costs;
	uid_t uid;
	unsigned n_refs;
	struct turn turn; /* of its sessions */
	struct flood closed; /* sessions that were closed for what they did */
	uint64_t n_requests; /* read from its connections */
	uint64_t loop_ns; /* of the loop's thread, for its connections */
	uint64_t worker_ns; /* of the worker's threads, for its jobs */
	uint64_t longest_ns; /* the longest time that the loop served one of its connections */
	uint64_t held_bytes; /* memory that exists only because of its leases */
	uint64_t checking_bytes; /* mapped for layouts being checked, now */
	uint64_t n_refused; /* requests, connections and leases, for a limit or a lack of room */
	uint64_t answered[WIRE_COST_SPANS]; /* see struct wire_cost_record */
};

struct costs {
	struct list buckets[COST_BUCKETS]; /* by uid */
	struct list idle; /* users without references, the longest unseen first */
	unsigned n_idle;
	struct cost others; /* shared by users for whom there was no memory; uid is -1 */
};

void costs_init(struct costs *c);
void costs_deinit(struct costs *c); /* there are no references */

/*
 * The costs of a user, never NULL, to be changed at once: the pointer is valid until the next call.
 * A sum that is subtracted again, such as held_bytes, needs cost_ref().
 */
struct cost *cost_of(struct server *s, uid_t uid);

/* The same, kept until cost_unref(): for what outlives the request. */
struct cost *cost_ref(struct server *s, uid_t uid);
struct cost *cost_unref(struct cost *c); /* NULL */

/* Counts the time that a worker took for a user. `server` is a struct server. */
void cost_worked(void *server, uid_t uid, uint64_t ns);

/* Takes time of the loop for a user, outside of its turns, from those that follow. `server` is a struct server. */
void cost_looped(void *server, uid_t uid, uint64_t begin, uint64_t end);

/* Counts a request that the loop answered so long after it was read. */
void cost_answered(struct cost *c, uint64_t ns);

/* The user with the lowest uid of at least `from`, for lists. NULL: there is none. */
const struct cost *costs_next(const struct costs *c, uint64_t from);
