/*
 * Readers
 *
 * The threads that carry out a plan: each takes the next leaves of the buffer, reads every byte of them and
 * digests them while they are hot.
 */
#pragma once

#include "libclient/connection/sentence.h"
#include "libclient/load/plan.h"
#include "libclient/load/progress.h"
#include "weightd.h"

/*
 * Fills the writer and tells progress from the calling thread. n_threads 0: as many as there are cores,
 * 4 at most, or 8 into a GPU. When it returns no thread is left, whatever happened.
 */
int reader_run(const struct plan *plan, struct weightd_writer *wr, unsigned n_threads,
	       struct progress *progress, struct sentence *s);
