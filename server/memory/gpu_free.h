/*
 * Freeing of GPU memory
 *
 * How memory goes of which descriptors tell nothing: GPU memory, when nobody has a lease on it any more. Its
 * descriptors are closed, and the GPU is asked whether it has more free. Where it has not within a second,
 * somebody maps the memory without a lease, an orphan; it is looked at again, less and less often, until it
 * has come back.
 *
 * What a GPU has free says nothing about who took it. Another program that takes as much in the same second
 * makes an orphan of what is free, until as much is given back; one that gives back as much, or a reader
 * whose context goes with it, hides an orphan. Our own slots that come and go meanwhile are counted out.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/base/worker.h"

struct slot;

enum gpu_free_state {
	GPU_FREE_HELD, /* we have its descriptors */
	GPU_FREE_CLOSING, /* the worker has it */
	GPU_FREE_ORPHAN,
	GPU_FREE_OVER, /* the memory is free, or nobody can say */
};

struct gpu_free {
	struct job job;
	enum gpu_free_state state;
	bool looking; /* the worker is, at an orphan */
	uint64_t begun_ns;
	uint64_t free; /* bytes of the GPU, when it was looked at last */
	uint64_t others; /* the least that all but us have left of it since */
	uint64_t delay_ns;
	uint64_t next_ns; /* of the next look */
};

/*
 * Begins to free a slot, or goes on with it: true when it is over, at once where closing frees. Else it
 * is to be asked again.
 */
bool gpu_free_run(struct slot *s);

/* True for one that has begun: the slot is good for nothing any more. */
static inline bool gpu_free_has_begun(const struct gpu_free *f)
{
	return f->state != GPU_FREE_HELD;
}

/* True when that is known to be free, or nobody can say. */
static inline bool gpu_free_is_over(const struct gpu_free *f)
{
	return f->state == GPU_FREE_OVER;
}

/* True when the memory should be free and is not. */
bool gpu_free_is_orphan(const struct slot *s);
