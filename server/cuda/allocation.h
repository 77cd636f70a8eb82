/*
 * Allocations
 *
 * Memory of a GPU that outlives this process: made, filled with zeros, so that no client reads
 * another user's bytes, and exported as a descriptor, which is then the only reference to it.
 */
#pragma once

#include <stdint.h>

#include "server/cuda/gpu.h"
#include "server/cuda/protocol.h"

/* The granularity of sizes. 0: unknown. */
uint64_t allocation_granularity(const struct gpus *g, const struct gpu *gpu);

/*
 * Checks that so much memory, rounded up to `granularity`, leaves the reserve free. Fills in the
 * reply; -ENOMEM where it does not.
 */
int allocation_admit(struct gpus *g, uint64_t granularity, const struct allocator_request *q,
		     struct allocator_reply *ret);

/* Serves the request. Fills in the reply, and on success the descriptor. */
void allocation_make(struct gpus *g, struct gpu *gpu, const struct allocator_request *q,
		     struct allocator_reply *ret, int *ret_fd);
