/*
 * Folders of checkpoints
 *
 * A checkpoint is filled in a hidden folder beside its place, ".step-NNNNNNNNNNNN-TAG", and renamed once all of it is on the
 * disk. Rank 0 holds a lock on the hidden folder: one without is the rest of a job that was killed, and the next save removes
 * it. A checkpoint that is removed gets a hidden name first, so that no part of one is ever in sight.
 */
#pragma once

#include <stdint.h>

#include "libclient/train/save/checkpoint.h"

#define FOLDER_PATH_MAX 4096

struct folder {
	const char *path; /* absolute; the caller's */
	uint64_t step;
	int fd; /* of `path` */
	int hidden_fd; /* locked */
	char hidden[CHECKPOINT_NAME_MAX]; /* "": nothing to remove */
	uint64_t tag;
};

#define FOLDER_INIT                                                                                \
	{                                                                                          \
		.fd = -1, .hidden_fd = -1                                                          \
	}

/* The path of the hidden folder that rank 0 made with this tag. -ENAMETOOLONG, with a sentence. */
int folder_hidden_path(const char *path, uint64_t step, uint64_t tag, char ret[FOLDER_PATH_MAX]);

/* Makes `path`, unless it is there, and the hidden folder; removes what killed saves left. -errno, with a sentence. */
int folder_open(struct folder *f, const char *path, uint64_t step);
/* Writes a small file, down to the disk. */
int folder_write(const struct folder *f, const char *name, const char *text);
/*
 * Gives the checkpoint its name; an older one of that step is removed. Then removes all but the `keep` newest ones, by the
 * time when they were written; 0: none. A checkpoint is complete even if an old one cannot be removed, which is an error.
 */
int folder_commit(struct folder *f, uint32_t keep);
/* Removes what was not committed. */
void folder_deinit(struct folder *f);

/* The newest checkpoint in a folder. -ENOENT, with a sentence: it has none. */
int folder_newest(const char *path, char ret[CHECKPOINT_NAME_MAX]);
/* True if the folder itself is a checkpoint. */
bool folder_is_checkpoint(int parent_fd, const char *path);
