/*
 * Freeing of GPU memory
 *
 * Descriptors do not show when GPU memory without a lease is free. Its descriptors are closed, and
 * weightd asks the GPU whether it has more free memory. If it has not within a second, a process
 * maps the memory without a lease: the memory is an orphan. weightd asks again, less and less
 * often, until the memory is back.
 *
 * The free memory of a GPU does not show which process took it. Another program that takes as much
 * in the same second makes an orphan of free memory, until as much is given back. A program that
 * gives back as much, or a reader that ends with its context, hides an orphan. Slots of weightd
 * that are made or freed meanwhile are counted out.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/base/freeing.h"
#include "server/base/threads/worker.h"

struct slot;

enum gpu_free_state {
	GPU_FREE_HELD, /* we have its descriptors */
	GPU_FREE_CLOSING, /* the worker has it */
	GPU_FREE_ORPHAN,
	GPU_FREE_OVER, /* the memory is free, or its state is unknown */
};

struct gpu_free {
	struct job job;
	struct freeing freeing;
	enum gpu_free_state state;
	bool looking; /* the worker is, at an orphan */
	uint64_t begun_ns;
	uint64_t free; /* bytes of the GPU, when it was looked at last */
	uint64_t others; /* the least that all but us have left of it since */
	uint64_t delay_ns;
	uint64_t next_ns; /* time of the next look */
};

/*
 * Begins or continues to free a slot: true when it is over, at once where closing frees. Else it
 * must be called again.
 */
bool gpu_free_run(struct slot *s);

/* True for one that has begun: the slot is good for nothing any more. */
static inline bool gpu_free_has_begun(const struct gpu_free *f)
{
	return f->state != GPU_FREE_HELD;
}

/* True when the memory is free, or its state cannot be determined. */
static inline bool gpu_free_is_over(const struct gpu_free *f)
{
	return f->state == GPU_FREE_OVER;
}

/* True when the memory should be free and is not. */
bool gpu_free_is_orphan(const struct slot *s);
