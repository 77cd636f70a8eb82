/*
 * Room in the store
 *
 * A request that needs descriptors kept makes room for them first, at the cost of versions that are only kept.
 */
#pragma once

struct session;

/* Makes room for `n` more. 0, or the request was answered with an error. */
int store_room_make(struct session *s, unsigned n);
