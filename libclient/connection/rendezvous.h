/*
 * Rendezvous: the candidate sockets of a client's server, in order
 */
#pragma once

#include <stdint.h>

#include "libclient/connection/client.h"

#define RENDEZVOUS_PATHS_MAX 2

struct rendezvous {
	const char *given; /* path from the caller or the environment; NULL: the default paths */
	char *paths[RENDEZVOUS_PATHS_MAX]; /* owned */
	int errors[RENDEZVOUS_PATHS_MAX]; /* result of the last attempt at each path */
	unsigned n;
	unsigned n_tried; /* in the last attempt */
};

/* -ENOMEM. */
int rendezvous_init(struct rendezvous *z, const char *path);
void rendezvous_deinit(struct rendezvous *z);

/*
 * Connects to the first path with a listener, and stores the path in w->path. Waits for a socket that a server is
 * creating, as described at weightd_connect(). The sentence of a failure is on `w`.
 */
int rendezvous_open(struct rendezvous *z, struct weightd *w);
