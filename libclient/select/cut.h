/*
 * Cuts
 *
 * The elements of a tensor that a load takes from its file, and their type in the buffer. In a file a tensor is rows, one
 * behind the other; a cut has the same parts of each row, side by side, and may cast them.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "libclient/connection/sentence.h"
#include "libclient/image/file.h"

#define CUT_PARTS_MAX 8

struct cut_part {
	uint64_t offset, size; /* bytes in a row of the file; never 0 */
};

struct cut {
	unsigned from, to; /* types, of ipc/dtype.h; the same: the bytes are copied */
	uint64_t stride; /* bytes of a row in the file */
	uint64_t row; /* bytes of all parts of a row, as the file has them */
	unsigned n_parts;
	struct cut_part parts[CUT_PARTS_MAX]; /* ascending and disjoint */
};

/* All of a tensor of `n_bytes` in its file, to be cast. */
struct cut cut_of_cast(unsigned from, unsigned to, uint64_t n_bytes);

/* True if the result is bytes as they stand in a tensor of `n_bytes`, side by side. */
bool cut_is_range(const struct cut *c, uint64_t n_bytes);

bool cut_is_same(const struct cut *a, const struct cut *b);

/* Bytes in the buffer of as many in the file, and a whole number of elements. */
uint64_t cut_size(const struct cut *c, uint64_t n_bytes);

/* The other way: bytes in the file that `n_bytes` in the buffer, whole elements, are made from. */
uint64_t cut_source_size(const struct cut *c, uint64_t n_bytes);

/*
 * Reads `n` bytes of the result, from byte `at` on, into `to`; the tensor begins at `offset` in the file. Needs at most
 * 64 KiB of memory besides. May be called by several threads.
 */
int cut_read(const struct cut *c, const struct file *f, uint64_t offset, uint64_t at, uint64_t n,
	     void *to, struct sentence *s);

/*
 * The other way: writes what the result has of `n` bytes of the tensor, from byte `at` of it on, to its places in `to`, the
 * whole result. Both are multiples of the size of an element.
 */
void cut_scatter(const struct cut *c, const void *bytes, uint64_t at, uint64_t n, void *to);
