/*
 * Plain text
 *
 * The spelling that every known writer of checkpoints uses: strings of printable ASCII without escapes, entries of
 * dtype, shape and data_offsets and nothing else. It is read here in one pass and without memory. All other spellings
 * are left to members_parse(), which decides whether they are JSON at all: a text is plain only if that accepts it
 * with the same meaning.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/image/members.h"
#include "weightd.h"

struct plain_entry {
	enum weightd_dtype dtype; /* of safetensors */
	uint32_t n_dims;
	uint64_t shape[WEIGHTD_DIMS_MAX];
	uint64_t begin, end;
};

/* The content of a string, which `text` is with its quotes. False: it is not a plain one. */
bool plain_string(struct span text, struct span *ret);

/* Steps over a plain entry, the next value of the walk. False: it is none, and `m` is where it was. */
bool plain_entry(struct members *m, struct plain_entry *ret);
