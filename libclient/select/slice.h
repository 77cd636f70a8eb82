/*
 * Slices
 *
 * The part of each tensor that a rank of tensor parallelism has, by rules that are ready for the type of the model, or in
 * a file (ipc/reshard/slicing.h).
 */
#pragma once

#include <stdbool.h>

#include "ipc/reshard/slicing.h"
#include "libclient/connection/sentence.h"
#include "libclient/select/cut.h"
#include "weightd.h"

struct slicer {
	struct slicing slicing;
	char *rules; /* the name of its rules; NULL: none, tensors are whole */
	unsigned rank, world;
};

struct slice {
	int dim; /* or SLICING_WHOLE */
	unsigned n_ranges; /* of `dim` */
	struct slicing_range ranges[SLICING_PARTS_MAX];
	uint64_t shape[WEIGHTD_DIMS_MAX];
};

/* True for options of tensor parallelism, also wrong ones. */
bool slicer_is_wanted(const struct weightd_load_options *o);

/*
 * Reads the rules that the options ask for, and the configuration beside `weights`, a file. -EINVAL: no such rank,
 * or no rules; -EBADMSG: the file of rules is wrong; errors of files; -ENOMEM.
 */
int slicer_init(struct slicer *k, const struct weightd_load_options *o, const char *weights,
		struct sentence *s);
void slicer_deinit(struct slicer *k);

/* -EINVAL: no rule is about the tensor, or the ranks cannot share it. */
int slicer_cut(const struct slicer *k, const struct weightd_tensor *t, struct slice *ret,
	       struct sentence *s);

bool slice_is_same(const struct slice *a, const struct slice *b);

/* The slice of `t` in its file, to be cast to `dtype`. */
struct cut slice_find(const struct slice *slice, const struct weightd_tensor *t,
		      enum weightd_dtype dtype);
