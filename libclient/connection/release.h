/*
 * Releases of the library and of the server, and the files that they run from
 *
 * A wheel brings a library of its own beside a packaged weightd: a sentence about two releases names both, with their files.
 */
#pragma once

#include "ipc/wire.h"
#include "libclient/connection/client.h"

/* Keeps the identity of the server that has replied. */
void release_take(struct weightd *w, const struct wire_hello_reply *reply);

/* The file of the server's program, if this process may see it and it is a weightd; "" otherwise. Looks once for each connection. */
const char *release_program(struct weightd *w);

/* Fails a call that the server is too old `to` answer, with both releases and files. Returns -EOPNOTSUPP. */
int release_too_old(const struct weightd *w, struct sentence *s, const char *to);

/* Fails a call whose reply, or whose request, one of the two cannot read, likewise. Returns `r`. */
int release_mismatch(struct weightd *w, int r, const char *what);
