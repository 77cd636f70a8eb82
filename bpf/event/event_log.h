/*
 * What was told, for who asks later: the last of it, the oldest first
 *
 * Whoever has most of it makes room, so that nobody's is pushed out by another who tells more.
 */
#pragma once

#include <jansson.h>

#include "ipc/base/list.h"

struct client;

struct kept {
	struct list lines; /* struct line */
	struct list owners; /* struct owner */
	unsigned n, n_max;
};

void kept_init(struct kept *k, unsigned n_max);
void kept_deinit(struct kept *k);
/*
 * A copy, for which the oldest goes of the user who has most once there are too many. `uid` is whose it is; null or
 * none: nobody knows, and all of these are one user's. Without memory there is none.
 */
void kept_add(struct kept *k, const json_t *uid, const json_t *o);
/* All of it, as answers to the client: "kind" is `kind` there, as what is told now comes between. */
void kept_answer(const struct kept *k, struct client *c, const char *kind);
