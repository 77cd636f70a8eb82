/*
 * Originals
 *
 * The form in which a version is a copy of the one file it is loaded from, byte for byte: the layout of the file
 * itself, without the room that a layout of weightd has between tensors, and its header.
 */
#pragma once

#include <stdint.h>

#include "libclient/connection/sentence.h"
#include "libclient/image/file.h"
#include "weightd.h"

struct original {
	struct weightd_layout *layout; /* NULL: the plan has no such form */
	void *header;
	uint64_t header_size; /* the offset of the data in the file */
};

/* The data of a file: where they begin, how they are aligned there, and how many they are. */
struct original_data {
	uint64_t offset, size;
	uint64_t alignment;
	void *header; /* the bytes in front of them */
};

/*
 * Of a file with all the tensors of `layout`, which stand in it in that order. Takes its header. A file that no version can
 * be like leaves `ret` empty.
 */
int original_init(struct original *ret, struct original_data *data,
		  const struct weightd_layout *layout, struct sentence *s);
void original_deinit(struct original *v);
