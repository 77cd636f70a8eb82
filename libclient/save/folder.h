/*
 * Folders that appear at once
 *
 * A folder is filled beside its final place, under a hidden name, and renamed once all of it is on the disk. A lock
 * on the hidden folder marks it as in use: one without is the rest of a process that was killed, and the next save
 * to the same place removes it.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "libclient/connection/sentence.h"

struct save_folder {
	char *path; /* the final place, absolute */
	const char *name; /* in `path` */
	int parent_fd;
	char temporary[256]; /* in the parent; "": nothing to remove */
	int fd; /* the temporary folder, locked */
	bool exists; /* something is at the final place */
	bool is_empty;
	mode_t mode; /* permissions of the present folder */
};

#define SAVE_FOLDER_INIT                                                                           \
	{                                                                                          \
		.parent_fd = -1, .fd = -1                                                          \
	}

/*
 * Makes the temporary folder. The parent must exist. -ENOTEMPTY: the final place has files, and `replace` is not set;
 * or it is, and the files are no model. Other negative errno.
 */
int save_folder_open(struct save_folder *f, const char *path, bool replace, struct sentence *s);

/* Moves the folder to its final place; one that is there already is removed, or the sentence tells where it is. */
int save_folder_commit(struct save_folder *f, struct sentence *s);

/* Removes what was not committed. */
void save_folder_deinit(struct save_folder *f);
