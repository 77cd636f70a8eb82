/*
 * Readers
 *
 * The threads that carry out a plan: each takes the next leaves of the buffer, reads all of their bytes and digests
 * them while they are in the cache.
 */
#pragma once

#include "libclient/connection/sentence.h"
#include "libclient/load/copies.h"
#include "libclient/load/plan.h"
#include "libclient/load/progress.h"
#include "weightd.h"

/*
 * Fills the writer, and its copies with the same bytes, as `n_threads`, `read` and `cache` of the options ask for, and reports progress from the calling thread.
 * All threads have ended when it returns. Sets what the result has of reading.
 */
int reader_run(const struct plan *plan, struct weightd_writer *wr, const struct copies *copies,
	       const struct weightd_load_options *o, struct progress *progress,
	       struct weightd_load_result *result, struct sentence *s);

/*
 * Reads a filled writer's files again, by the page cache, and compares with its digests what they have now and what the
 * version has. -EILSEQ: one of them differs.
 */
int reader_compare(const struct plan *plan, struct weightd_writer *wr,
		   const struct weightd_load_options *o, struct progress *progress,
		   struct sentence *s);
