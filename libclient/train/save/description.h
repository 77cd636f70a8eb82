/*
 * Descriptions: trainer.json, and the indexes of files
 */
#pragma once

#include <jansson.h>

#include "libclient/train/save/folder.h"
#include "libclient/train/save/snapshot.h"

/* The members of trainer.json that a load needs. */
struct description {
	uint64_t step, n_skipped;
	uint32_t n_ranks;
	char optimizer[16];
	bool has_scale;
	struct control_scale scale;
};

/* Writes trainer.json and the indexes. `s` is that of rank 0. */
int description_write(const struct folder *f, const struct weightd_plan *p,
		      const struct snapshot *s);

/* Reads it from a checkpoint. -EBADMSG, by the file's name and member; errors of files; all with a sentence. */
int description_read(const char *folder, struct description *ret);

/* The map of an index, from tensors to files, which the caller frees. Likewise. */
int description_read_index(const char *folder, const char *stem, json_t **ret);
