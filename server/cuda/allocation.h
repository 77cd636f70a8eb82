/*
 * Allocations
 *
 * Memory of a GPU that outlives this process: made, filled with zeros, so that nobody reads what another
 * user left there, and given away as a descriptor, which is all that refers to it from then on.
 */
#pragma once

#include <stdint.h>

#include "server/cuda/gpu.h"
#include "server/cuda/protocol.h"

/* What sizes are multiples of. 0: the driver does not say. */
uint64_t allocation_granularity(const struct gpus *g, const struct gpu *gpu);

/*
 * Whether so much memory, rounded up to `granularity`, leaves the reserve free. Fills in the reply; -ENOMEM
 * where it does not.
 */
int allocation_admit(struct gpus *g, uint64_t granularity, const struct allocator_request *q,
		     struct allocator_reply *ret);

/* As the request says. Fills in the reply, and on success the descriptor. */
void allocation_make(struct gpus *g, struct gpu *gpu, const struct allocator_request *q,
		     struct allocator_reply *ret, int *ret_fd);
