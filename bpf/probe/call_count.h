/*
 * Tallies: calls that are counted, as there are too many to tell each
 *
 * The kernel counts them by process and function and drops nothing of it; here is what was told of that already.
 */
#pragma once

#include "bpf/probe/probes.bpf.h"
#include "ipc/base/list.h"

struct tallies {
	struct list told; /* struct told_tally */
	int map_fd;
};

void tallies_init(struct tallies *t, int map_fd);
void tallies_deinit(struct tallies *t);
/* Tells what was counted since it was told last. What is of processes that are gone is dropped. */
void tallies_take(struct tallies *t,
		  void (*fn)(void *context, const struct tally_key *key, const struct tally *since),
		  void *context);
