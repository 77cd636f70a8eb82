/*
 * Readers
 *
 * The threads that carry out a plan: each takes the next leaves of the buffer, reads all of their bytes and digests
 * them while they are in the cache.
 */
#pragma once

#include "libclient/connection/sentence.h"
#include "libclient/load/plan.h"
#include "libclient/load/progress.h"
#include "weightd.h"

/*
 * Fills the writer and reports progress from the calling thread. n_threads 0: one per core, at most 4, or 8 into a
 * GPU. All threads have ended when it returns.
 */
int reader_run(const struct plan *plan, struct weightd_writer *wr, unsigned n_threads,
	       struct progress *progress, struct sentence *s);
