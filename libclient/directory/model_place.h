/*
 * The directory of a model in the file system
 *
 * Locked (flock) for as long as its holder lives: a directory without that lock is one that a killed holder left, if
 * it looks like one. The lock also keeps systemd-tmpfiles from it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "libclient/connection/sentence.h"

struct model_place {
	int fd; /* locked; -1: none */
	char *path; /* absolute */
	bool is_made; /* it did not exist before, and is removed at the end; else it is emptied */
	bool is_hidden; /* its name begins with a dot until it is finished */
	mode_t mode; /* of a directory that existed before */
	size_t n_tried; /* folders for private ones */
};

/*
 * Makes the directory `path`, or takes the empty one that is there: -ENOTEMPTY, -EBUSY: another holder has it. NULL: a
 * new private one in the first folder that can hold it of $XDG_RUNTIME_DIR, $TMPDIR and /tmp. Removes what killed
 * holders of this user left there.
 */
int model_place_init(struct model_place *p, const char *path, struct sentence *s);

/* Removes a private directory whose folder is full, and makes one in the next folder. -ENOSPC: there is none. */
int model_place_move(struct model_place *p);

/* Protects the filled directory with `mode`, and gives a private one the `path` that it keeps. */
int model_place_finish(struct model_place *p, mode_t mode);

/* Removes the directory. Does nothing for one that is not initialized, whose fd is -1. */
void model_place_deinit(struct model_place *p);

/* Forgets the directory without removing it: it is another process's. */
void model_place_forget(struct model_place *p);
