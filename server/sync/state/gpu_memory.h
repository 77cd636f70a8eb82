/*
 * Memory of GPUs
 *
 * The place on a GPU of a descriptor's memory that an engine must map, as in the messages of
 * sources and sinks, and in orders.
 */
#pragma once

#include "server/sync/state/agent_state.h"

struct gpu_memory {
	char gpu[DEVICE_MAX + 1]; /* "": host memory */
	uint64_t map_size;
	uint64_t nccl; /* NCCL's version there */
};

/* -EBADMSG. */
int gpu_memory_read(const json_t *said, struct gpu_memory *ret);
/* Adds it to an order; host memory adds nothing. */
void gpu_memory_tell(const struct gpu_memory *g, json_t *order);
