/*
 * Room in the store
 *
 * A request that needs descriptors kept makes room for them first, at the cost of versions that are only kept.
 */
#pragma once

struct session;
struct store_reservation;

/* Makes room for `n` more, which are put at once. 0, or the request was answered with an error. */
int store_room_make(struct session *s, unsigned n);

/* Likewise for what takes time to make: nothing else gets the room meanwhile. */
int store_room_reserve(struct session *s, unsigned n, struct store_reservation *ret);
