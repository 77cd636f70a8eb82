/*
 * The files that one rank writes
 */
#pragma once

#include "libclient/train/save/snapshot.h"

/* A folder that is being filled. */
struct files_to {
	struct weightd *w; /* for sentences; not the trainer's, which another thread uses */
	const char *folder;
	weightd_progress_fn progress; /* cancels it */
	void *userdata;
};

/*
 * Writes this rank's tensors from a snapshot, its state and buffers, and those of the same rank of the other nodes. Errors of
 * files, with a sentence.
 */
int files_write(const struct files_to *to, const struct weightd_train *t, const struct snapshot *s);
