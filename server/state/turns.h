/*
 * Turns
 *
 * Sessions with something to do wait here, each with its user, and users are served in turn: by time
 * of the loop, whatever the number of their connections. A turn ends when it has lasted TURN_NS. A
 * request is never interrupted: time beyond the turn is owed, and the user waits until other users
 * had as much, or for as long. So is the time that it takes to accept the user's connections. A user
 * that had nothing to do goes before those that have been at it.
 *
 * A user that keeps the loop busy for long has only a share of it, while another user has a session: it rests in between,
 * and the loop sleeps and leaves the processor to the other user's processes, which could not wake up soon beside it. Bursts
 * of TURN_BURST_NS are free. Root never rests, nor does a user alone on the machine.
 *
 * A round of the loop serves sessions that were queued before it, so that requests of one user are
 * served about in the order in which they came.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/list.h"
#include "server/base/loop.h"

#define TURN_NS ((int64_t)200000)
#define TURN_BURST_NS ((int64_t)100000000)
#define TURN_REST_NS 1000000u
#define TURN_SHARE_MS 125u

struct cost;
struct session;

/* One user's place. */
struct turn {
	struct list link; /* turns::fresh, others or resting; itself while there is nothing to do */
	struct list ending; /* sessions that end, before others */
	struct list ready; /* sessions */
	struct list again; /* sessions that were queued while a round served */
	struct list parked; /* sessions that are not served, see turns_park() */
	uint64_t round; /* turns::n_rounds when it was served last */
	int64_t left_ns; /* of the turn; negative: owed */
	uint64_t paid_ns; /* until when time has paid what is owed: the end of its last turn, or later */
	unsigned n_sessions;
	int64_t burst_ns; /* time of the loop until it rests: grows with time, by the share */
	uint64_t grown_ns; /* until when that grew */
	uint64_t rests_until_ns;
};

struct turns {
	struct loop *loop;
	struct chore chore;
	struct list fresh; /* users that had nothing to do when they were queued */
	struct list others;
	struct list resting; /* users with work, the one that rested longest first */
	struct timer rest;
	unsigned n_users; /* with sessions */
	unsigned share_ms; /* of the loop's time, of each user in each second */
	uint64_t n_rounds;
	bool serving; /* a round does */
	void (*serve)(struct session *s); /* does one request's worth, or frees the session */
};

void turns_init(struct turns *t, struct loop *l, void (*serve)(struct session *));
void turns_deinit(struct turns *t); /* there are no sessions */

void turn_init(struct turn *turn);

/* A session begins, and is over: the users that have some are counted. */
void turns_join(struct session *s);
void turns_leave(struct session *s);

/* Serves the session in its user's turn, once. One that is queued stays where it is. */
void turns_add(struct session *s);
void turns_remove(struct session *s);

/* Takes time of the loop that a user cost outside of its turns, from `begin` to `end`, from those that follow. */
void turns_charge(struct cost *cost, uint64_t begin, uint64_t end);

/* Keeps the session from being queued, until its user's are unparked: one of them, in their order, or all. */
void turns_park(struct session *s);
void turns_unpark_one(struct turn *turn);
void turns_unpark_all(struct turn *turn);
