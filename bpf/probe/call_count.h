/*
 * Counts of calls that are too many to report each
 *
 * The kernel counts them by process and function and drops none; here is the part that was taken already.
 */
#pragma once

#include "bpf/probe/probes.bpf.h"
#include "ipc/base/list.h"

struct call_counts {
	struct list taken; /* struct taken_count */
	int map_fd;
};

void call_counts_init(struct call_counts *t, int map_fd);
void call_counts_deinit(struct call_counts *t);
/*
 * Calls for each count that grew since it was taken last. Drops counts of processes that have ended.
 */
void call_counts_take(struct call_counts *t,
		      void (*fn)(void *context, const struct call_count_key *key,
				 const struct call_count *since),
		      void *context);
