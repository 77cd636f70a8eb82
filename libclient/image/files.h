/*
 * Files beside the weights
 *
 * The small files and the attributes of a version, as one sealed memfd: a safetensors file with a U8 tensor of one
 * dimension for each file, named by its path, and the attributes in __metadata__. The server never looks into it, so
 * every reader checks all of it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/cleanup.h"
#include "libclient/connection/sentence.h"
#include "weightd.h"

#define FILES_WEIGHTS "weights" /* the attribute with the path of the weights */
#define FILES_WEIGHTS_DEFAULT "model.safetensors"

struct files_entry {
	char *path;
	size_t path_size;
	const void *data; /* in `owned`, or in the mapping */
	uint64_t n_bytes;
	void *owned; /* NULL: mapped */
};

struct files_attribute {
	char *key;
	char *value;
};

struct weightd_files {
	struct files_entry *entries; /* in the order of their paths */
	size_t n, max;
	struct files_attribute *attributes; /* in the order of their keys */
	size_t n_attributes, max_attributes;
	uint64_t n_bytes; /* sum over all files */
	void *image; /* received: entries lie in it; NULL: none */
	uint64_t image_size;
	bool is_mapped; /* `image` is a memfd, else memory of malloc() */
	bool is_changed; /* `image` is not the bytes of this set any more */
	uint64_t built_size;
	void *built; /* of a set without them, as weightd_files_image() returned them; freed by a change */
	struct sentence sentence;
};
CLEANUP_POINTER(struct weightd_files, weightd_files_free);

/* Like the public functions, with the sentence elsewhere. */
int files_add(struct weightd_files *f, const char *path, const void *data, uint64_t n_bytes,
	      struct sentence *s);
/* The same for bytes that are not copied. */
int files_add_mapped(struct weightd_files *f, const char *path, const void *data, uint64_t n_bytes,
		     struct sentence *s);
int files_set_attribute(struct weightd_files *f, const char *key, const char *value,
			struct sentence *s);

/* Splits "key=value" and sets it. -EINVAL. */
int files_set_text(struct weightd_files *f, const char *text, struct sentence *s);

/* The path of the weights in a model directory. */
const char *files_weights(const struct weightd_files *f);

/* -EEXIST: a file has that path, or one of the two is a folder of the other. */
int files_check_weights(const struct weightd_files *f, struct sentence *s);

/* Copies all of `from` into `to`, which is empty. */
int files_copy(struct weightd_files *to, const struct weightd_files *from, struct sentence *s);

/*
 * The bytes of the memfd, those received if nothing has changed since; owned by `f` until the next change. -EEXIST: a
 * file has the path of the weights.
 */
int files_image(struct weightd_files *f, const void **ret, uint64_t *ret_size, struct sentence *s);

/*
 * Adds what these bytes hold to `f`, which is empty, and whose entries refer to them afterwards. -EBADMSG, -ENOMEM.
 */
int files_parse(struct weightd_files *f, const void *image, uint64_t size, struct sentence *s);

/* Maps a sealed memfd and parses it. The caller keeps `fd`. */
int files_map(int fd, struct weightd_files **ret, struct sentence *s);
