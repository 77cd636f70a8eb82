/*
 * The record
 *
 * What a node may not forget: which versions are committed, and what it decided as a publisher. One JSON file,
 * replaced as a whole: there is the old one or the new one, after a loss of power too. A record that cannot be
 * read stops the start, since a node that forgot could serve what was fenced off.
 */
#pragma once

#include <jansson.h>

#include "server/sync/edge.h"

/*
 * Takes the folder for this process alone, for as long as the descriptor is open: of two agents, each would forget
 * what the other one wrote. -errno with a sentence. Makes the folder if its parent is there.
 */
int record_lock(const char *folder, int *ret_fd, char why[WHY_SIZE]);

/* NULL where there is none yet. -errno with a sentence. */
int record_load(const char *folder, json_t **ret, char why[WHY_SIZE]);

/* Durably. Waits for the disk, which is why it is asked for at decisions only. */
int record_save(const char *folder, const json_t *record);
