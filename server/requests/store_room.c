#include "server/requests/store_room.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/base/headroom.h"
#include "server/requests/eviction.h"
#include "server/requests/held.h"
#include "server/restart/store.h"
#include "server/state/access.h"
#include "server/state/server.h"
#include "server/state/session.h"
#include "server/state/share.h"

/* Without a store descriptors count as they are charged. */
static uint64_t n_used(const struct server *server)
{
	const struct store *store = &server->store;

	return store->max ? store->n_kept : server->quota.used[QUOTA_DESCRIPTORS];
}

static uint64_t n_in_all(const struct server *server)
{
	const struct store *store = &server->store;

	return store->max ? store->max : server->quota.wholes[QUOTA_DESCRIPTORS];
}

/* How full the store may be once the session's user has so many there. */
static uint64_t max_for(const struct session *s, uint64_t holds)
{
	uint64_t whole = s->server->quota.wholes[QUOTA_DESCRIPTORS], all = n_in_all(s->server);
	uint64_t max = share_open_to(whole, access_is_admin(&s->peer), holds);

	return max < all ? max : all;
}

static void fail_for_room(struct session *s, uint64_t max, const struct eviction *e)
{
	const struct server *server = s->server;
	char more[48] = "", reserve[160] = "", withheld[192], held[HELD_TEXT_MAX];

	if (server->store.n_reserved)
		(void)snprintf(more, sizeof(more), ", and %u more are being made",
			       server->store.n_reserved);
	if (max < n_in_all(server))
		(void)snprintf(reserve, sizeof(reserve),
			       "; %" PRIu64 " of these are for administrators and for users with "
			       "no more than %" PRIu64 ", and uid %u would have %" PRIu64,
			       n_in_all(server) - max,
			       share_least(server->quota.wholes[QUOTA_DESCRIPTORS]), s->peer.uid,
			       e->holds);
	eviction_explain(e, withheld, sizeof(withheld));
	session_fail(s, -EDQUOT,
		     "%s %" PRIu64 " descriptors%s already, of %" PRIu64 "%s%s%s; remove a buffer "
		     "(weightctl rm), or raise %s[store] max%s",
		     server->store.max ? "the service manager keeps" : "weightd keeps",
		     n_used(server), server->store.max ? " for weightd" : "", n_in_all(server), more,
		     reserve, withheld, server->store.max ? "FileDescriptorStoreMax= and " : "",
		     held_describe(server, NULL, HELD_BEFORE, held));
}

int store_room_reserve(struct session *s, const struct store_need *need,
		       struct store_reservation *ret)
{
	struct store *store = &s->server->store;
	unsigned adds = need->n - need->n_charged;
	struct eviction e = {.server = s->server, .uid = s->peer.uid, .adds = adds};
	uint64_t holds = quota_used(&s->server->quota, s->peer.uid, QUOTA_DESCRIPTORS) + adds;
	uint64_t max = max_for(s, holds), needed, missing;

	if (store_is_expected(store) && !store_works(store)) {
		session_fail(s, -ENOTRECOVERABLE,
			     "the service manager that kept the memory of this weightd is gone, so "
			     "nothing can be created; restart weightd");
		return -ENOTRECOVERABLE;
	}
	if (need->n == 0)
		return 0;
	needed = n_used(s->server) + store->n_reserved + need->n;
	missing = needed > max + need->n_ending ? needed - max - need->n_ending : 0;
	if (missing && eviction_room(&e, missing + store->n_promised) < missing + store->n_promised) {
		fail_for_room(s, max, &e);
		return -EDQUOT;
	}
	store_reserve(store, need->n, (unsigned)missing, (unsigned)max, ret);
	return 0;
}

/* More than the store may have, once the reservation is put. */
static uint64_t n_missing(const struct server *server, const struct store_reservation *room)
{
	uint64_t needed = n_used(server) + server->store.n_reserved - store_n_solid(room) + room->n;

	return needed > room->max ? needed - room->max : 0;
}

bool store_room_stands(struct server *server, uid_t uid, const struct store_reservation *room)
{
	struct eviction e = {.server = server, .uid = uid}; /* all is charged by now */
	uint64_t missing = room->store ? n_missing(server, room) : 0;

	return !missing || eviction_room(&e, missing) >= missing;
}

bool store_room_take(struct server *server, uid_t uid, struct store_reservation *room)
{
	struct eviction e = {.server = server, .uid = uid}; /* likewise */
	uint64_t missing = room->store ? n_missing(server, room) : 0;

	store_release(room);
	return !missing || eviction_run(&e, missing);
}

void store_room_fail(struct session *s)
{
	session_fail(s, -EDQUOT,
		     "versions that were to make room for uid %u in the store are in use or gone; "
		     "try again, or remove a buffer (weightctl rm)",
		     s->peer.uid);
}

int store_room_check_memory(struct session *s, const char *name, uint64_t size)
{
	struct headroom left;
	int r = headroom_check_received(&left);
	char sent[NUM_SIZE_MAX], rest[NUM_SIZE_MAX];

	if (r == -ENOMEM)
		session_fail(
			s, r,
			"%s that were sent for '%s' cannot be kept: with them %s%s has %s left, too "
			"little of its reserve; remove a buffer or an old version (weightctl rm), or "
			"%s",
			num_format_size(sent, size), name,
			left.limit[0] ? "the limit of a cgroup, " : "this machine", left.limit,
			num_format_size(rest, left.bytes),
			left.limit[0] ? "raise that limit (MemoryMax= of a unit)"
				      : "give weightd more memory");
	else if (r < 0)
		session_fail(s, r, "weightd cannot read how much memory there is: %s", strerror(-r));
	return r;
}
