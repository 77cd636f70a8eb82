/*
 * Tallies: calls that are counted, as there are too many to tell each
 *
 * The kernel counts them by process and function and drops nothing of it; here is what was told of that already.
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
/* Tells what was counted since it was told last. What is of processes that are gone is dropped. */
void call_counts_take(struct call_counts *t,
		      void (*fn)(void *context, const struct call_count_key *key,
				 const struct call_count *since),
		      void *context);
