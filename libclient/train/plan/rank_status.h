/*
 * The status of ranks, read from a copy of the job's control words
 *
 * The copy was made while ranks wrote, and any process of the job's user may have written anything: all values are valid here,
 * and none is used as an index or a size.
 */
#pragma once

#include <stdint.h>

#include "weightd-train.h"

/* Bytes from the start of JOURNAL on that contain the status of all ranks. */
uint64_t rank_status_size(const struct weightd_plan *p);

/* 0; -ENODATA: no rank has begun; -EPROTOTYPE: words of another release, or none. With a sentence. */
int rank_status_check(const struct weightd_plan *p, const uint8_t *words, uint64_t size,
		      const char *job);

/*
 * Describes one rank of checked words. `holder` is its process, as weightd_job_view_holder() returns it; `now_ns` is the time
 * of the copy, CLOCK_MONOTONIC.
 */
void rank_status_read(const struct weightd_plan *p, const uint8_t *words, uint32_t rank, int holder,
		      uint64_t now_ns, struct weightd_rank_status *ret);
