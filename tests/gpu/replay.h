/*
 * A captured CUDA graph that sums an attached buffer, and the loop that replays it while versions change.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "tests/gpu/gpu.h"
#include "weightd.h"

struct replay {
	struct gpu *gpu;
	void *graph; /* a CUgraphExec. NULL: nothing was captured, the kernel is launched instead */
	cu_ptr data; /* summed data */
	uint64_t size;
};

/* -ENOSYS: the driver has no graphs. Otherwise a result of the driver. */
int replay_capture(struct replay *p);

/* Waits for it. */
cu_result replay_once(struct replay *p, uint64_t *ret_sum);

/* The loop's work beside replaying. */
struct replay_plan {
	struct weightd *w;
	struct weightd_buffer *buffer;
	uint64_t n_replays; /* at most */
	uint64_t n_swaps; /* the loop ends some replays after so many; 0: it never swaps */
	const char *name,
		*device; /* the buffer that it flips itself between `versions`, unless these are 0 */
	uint64_t versions[2];
};

/*
 * Replays, and swaps as soon as the head has another version. Replies with `first_ns`, when the first replay ended,
 * by CLOCK_MONOTONIC; `intervals_ns` between the ends of replays from there on; `swap_intervals`, in which of them the
 * swaps were, `swap_ns`, and `flip_ns` where the loop made the flip; and `sums`, all that replays have seen.
 */
void replay_loop(struct replay *p, const struct replay_plan *plan);
