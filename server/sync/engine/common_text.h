/*
 * The common text
 *
 * What must be equal on all nodes of a collective, since it decides which bytes go where: the table
 * of tensors, or the plan. Nodes compare its hash before any byte moves.
 */
#pragma once

#include <stdint.h>

#include "server/sync/base/engine_order.h"
#include "server/sync/base/merkle.h"

struct common_text {
	void *data; /* mapped */
	uint64_t size;
	uint8_t hash[MERKLE_HASH_SIZE];
};

/* Maps it; `what` is its name for people, and it has 1 to `max` bytes. -errno with a sentence. */
int common_text_init(struct common_text *t, int fd, uint64_t max, const char *what,
		     char why[ENGINE_ORDER_WHY_SIZE]);
void common_text_deinit(struct common_text *t);
