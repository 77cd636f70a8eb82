/*
 * Room in the store
 *
 * A request that needs descriptors kept reserves room for them first. Where versions that are only kept have to go for
 * it (eviction.h), they go when everything else is there: a request that fails before costs none. Users share the
 * store (share.h), also where there is none.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct server;
struct session;
struct store_reservation;

/* Descriptors that are needed. */
struct store_need {
	unsigned n;
	unsigned n_charged; /* of these, to the user already */
	unsigned n_ending; /* others, which will go by themselves */
};

/* Reserves the room, so that nothing else gets it. 0, or the request was answered with an error. */
int store_room_reserve(struct session *s, const struct store_need *need,
		       struct store_reservation *ret);

/* False when the versions that were to make the room are not there any more. Ends nothing. */
bool store_room_stands(struct server *server, uid_t uid, const struct store_reservation *room);

/* Makes the room that was reserved, for what the user puts at once. False: there is none any more. */
bool store_room_take(struct server *server, uid_t uid, struct store_reservation *room);

/* Answers a request whose room is not there any more. */
void store_room_fail(struct session *s);

/*
 * Looks for the memory of what a client sent for the version or job of that name, when it was charged. 0, or the request
 * was answered with an error: the reserve would be used up with it.
 */
int store_room_check_memory(struct session *s, const char *name, uint64_t size);
