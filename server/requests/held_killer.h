/*
 * The killer of readers
 *
 * With `[limits] over = kill`: ends the process with the oldest lease on memory that its user is charged for as a
 * reader, while the user is above its limit. One process of a user at a time: the next one when that is gone.
 */
#pragma once

#include "server/base/loop.h"

struct server;

struct held_killer {
	struct timer timer;
	struct server *server;
};

void held_killer_init(struct held_killer *k, struct server *server);
void held_killer_deinit(struct held_killer *k);

/* Looks for users above their limit in the loop's next round, if the configuration has it so. */
void held_killer_start(struct server *server);
