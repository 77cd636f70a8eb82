/*
 * Ranks
 *
 * A load for several ranks of tensor parallelism at once: a buffer in host memory for each, "NAME-tpRANK". Each byte of the
 * files is read once, and copied to all ranks that have it.
 */
#pragma once

#include "libclient/load/plan.h"
#include "libclient/load/progress.h"
#include "weightd.h"

/*
 * `w` is the connection of the load, `plan` that of whole tensors. All versions are filled before the first is published; a
 * publish that fails leaves the earlier ones, which the sentence names. -EOPNOTSUPP: an option that only single loads have.
 */
int ranks_load(struct weightd *w, const char *name, const struct plan *plan,
	       const char *const *paths, size_t n_paths, const struct weightd_load_options *o,
	       struct progress *progress, struct weightd_load_result *result);
