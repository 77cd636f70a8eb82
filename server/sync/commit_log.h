/*
 * The commit log
 *
 * What a node may not forget: which versions are committed, and what it decided as a publisher. A file of pieces: the
 * first has all there was, and each further one what changed since. One is added at the end, until they are twice as
 * large as what they say; then another file, with one piece that has all, takes its place. A piece that a loss of power
 * tore is the last one and was nobody's word yet: it is left out. Any other damage stops the start, since a node that
 * forgot could serve what was fenced off.
 */
#pragma once

#include <jansson.h>

#include "server/sync/state/env.h"

struct commit_log {
	const char *folder;
	uint64_t size; /* bytes of the pieces that are there */
	uint64_t size_max; /* a piece that exceeds it must have all; 0: the next must */
	uint64_t n_torn; /* bytes behind them that are none */
};

/*
 * Takes the folder for this process alone, for as long as the descriptor is open: of two agents, each would forget
 * what the other one wrote. -errno with a sentence. Makes the folder if its parent is there.
 */
int commit_log_lock(const char *folder, int *ret_fd, char why[WHY_SIZE]);

/* Its pieces, oldest first; NULL where there is none yet. -errno with a sentence. */
int commit_log_load(struct commit_log *r, json_t **ret, char why[WHY_SIZE]);

/* Returns whether there is room for another piece. -errno with a sentence. */
int commit_log_may_save(const struct commit_log *r, char why[WHY_SIZE]);

/* As env.save(). Waits for the disk, which is why it is asked for at decisions only. */
int commit_log_save(struct commit_log *r, const json_t *piece, bool is_all);
