/*
 * Recovery
 *
 * Makes buffers and jobs from the descriptors that the service manager kept while there was no weightd. All
 * of it is checked: a manifest must be whole, and each descriptor must be what the manifest claims.
 * What does not match is quarantined: it stays in the store and is reported, but not served. Head
 * pages are rewritten before clients can connect.
 */
#pragma once

struct inherit;
struct server;

struct recovery {
	unsigned n_buffers;
	unsigned n_versions;
	unsigned n_jobs;
	unsigned n_writers; /* recovered writers; they have some time to return */
	unsigned n_quarantined; /* descriptors */
};

/* Recovers what it can, and logs what it cannot. */
void recovery_run(struct server *server, struct inherit *in, struct recovery *ret);
