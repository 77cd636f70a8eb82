/*
 * Segments: the bytes of an exchange
 *
 * A pure function of the position, the plan and the memory of the job: what a rank sends to another one is as large as what that
 * one finds that it receives.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "weightd-train.h"

struct weightd_train;

struct segment_list {
	struct weightd_segment *segments;
	uint32_t n, room;
	uint64_t size; /* of all of them, in bytes */
};

struct segments {
	struct segment_list send[WEIGHTD_NODES_MAX], receive[WEIGHTD_NODES_MAX]; /* by node */
	/*
	 * The beginning of messages of passes, which `size` has not: exchange_asked_code() of this rank, 0 for other exchanges; and those
	 * received, by node.
	 */
	uint64_t asked, asked_of[WEIGHTD_NODES_MAX];
	bool is_short; /* of memory */
};

/*
 * Finds those of an exchange: control_exchange(). `frozen` is FROZEN, writable, where values are received. -ENOMEM with a
 * sentence.
 */
int segments_find(struct segments *s, struct weightd_train *t, uint64_t position, uint8_t *frozen);
/* PARAM of this node for nodes that lack it, and of all others into t->units.caught_up if this one does. `lacks` is by node. */
int segments_find_params(struct segments *s, struct weightd_train *t, const bool *lacks);
void segments_deinit(struct segments *s);
