/*
 * Recovery
 *
 * Makes buffers of what the service manager has kept while there was no weightd. Nothing is believed: a
 * manifest must be whole, and each descriptor what the manifest says it is. What does not match is left
 * where it is, in the store, and reported: it is not served, and not thrown away. Heads are written anew
 * before anybody can connect.
 */
#pragma once

struct inherit;
struct server;

struct recovery {
	unsigned n_buffers;
	unsigned n_versions;
	unsigned n_writers; /* which have some time to come back */
	unsigned n_quarantined; /* descriptors */
};

/* Takes what it can use, and says what it cannot. */
void recovery_run(struct server *server, struct inherit *in, struct recovery *ret);
