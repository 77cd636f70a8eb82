/*
 * One side of a comparison: an attached buffer, or files
 */
#pragma once

#include <stdbool.h>

#include "libclient/image/names.h"
#include "libclient/load/plan.h"
#include "weightd.h"

struct side {
	struct weightd_buffer *buffer; /* NULL: files */
	struct plan plan;
	struct names names; /* the plan's tensors, to their indices */
	void *chunk; /* bytes that are not mapped */
	uint64_t ticket; /* weightd_read_begin() of a mutable buffer */
	struct sentence *s;
};

/*
 * Opens the files, or begins to read the buffer. `s` gets the sentences. Files are what a load with options `o` takes of
 * them; NULL: all.
 */
int side_init(struct side *side, const struct weightd_diff_side *given,
	      const struct weightd_load_options *o, struct sentence *s);
void side_deinit(struct side *side);

/* -ENOENT */
int side_tensor(const struct side *side, uint32_t index, struct weightd_tensor *ret);
int side_find(const struct side *side, const char *name, struct weightd_tensor *ret);

/* `n` bytes of a tensor from `offset` on, at most `chunk_size`, the same in all calls; valid until the next call. */
int side_read(struct side *side, const struct weightd_tensor *t, uint64_t offset, uint64_t n,
	      uint64_t chunk_size, const void **ret);

/* After the last read: an error if what was read has changed since side_init(). */
int side_check_unchanged(const struct side *side);
