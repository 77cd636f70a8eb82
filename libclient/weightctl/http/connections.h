/*
 * The connections of a server that clients may not fill
 *
 * Each has an end: a client that sends or reads slowly loses it then. One more than there is room for costs the oldest one,
 * so that a client that sends its request at once is answered beside any number of idle ones.
 */
#pragma once

#include <stdint.h>

#define CONNECTIONS_MAX 64
#define CONNECTIONS_LIFE_NS UINT64_C(10000000000) /* as long as Prometheus waits for a reply */

/* Oldest first. Another owner closes the descriptors. */
struct connections {
	struct {
		int fd;
		uint64_t end_ns;
	} open[CONNECTIONS_MAX];
	unsigned n;
};

/* Shuts the oldest one down if there is no room for this one. */
void connections_add(struct connections *c, int fd, uint64_t now_ns);

/* Forgets one that is about to be closed, which may have been shut down before. */
void connections_remove(struct connections *c, int fd);

/* Shuts those down that have reached their end. Returns the milliseconds until the next one does; -1: there is none. */
int connections_expire(struct connections *c, uint64_t now_ns);
