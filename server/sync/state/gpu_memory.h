/*
 * Memory of GPUs
 *
 * Where on a GPU a descriptor's memory is that an engine is to map, as sources and sinks say it and orders have it.
 */
#pragma once

#include "server/sync/state/agent_state.h"

struct gpu_memory {
	char gpu[DEVICE_MAX + 1]; /* "": it is host memory */
	uint64_t map_size;
	uint64_t nccl; /* the version of it that is there */
};

/* -EBADMSG. */
int gpu_memory_read(const json_t *said, struct gpu_memory *ret);
/* Adds it to an order; of host memory nothing. */
void gpu_memory_tell(const struct gpu_memory *g, json_t *order);
