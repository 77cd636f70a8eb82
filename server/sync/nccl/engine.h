/*
 * The engine
 *
 * One node's part in one epoch. The loop talks to the agent and watches; one thread, the worker, makes every call of
 * the driver and of NCCL, so that a communicator never sees two at once, and none of them keeps the loop from
 * answering. Whatever goes wrong is said to the agent once. NCCL tells nobody who is to blame: what may come from
 * others is said of the link to the node before this one, and what cannot, of this node.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/sync/engine/engine_loop.h"
#include "server/sync/nccl/gpu.h"
#include "server/sync/nccl/nccl.h"

struct engine {
	struct engine_loop engine_loop; /* its order is the worker's, too, once that runs */
	struct place place; /* the worker's, once it has started; it does not change */

	/* The worker's. */
	struct gpu gpu;
	struct nccl nccl;
	struct nccl_id id; /* the source's own */

	/* Between the two. */
	atomic_uint_fast64_t done; /* bytes of the stream that are where they belong */
	atomic_uint_fast64_t alive_ns; /* when the worker last came back from a call; 0: it makes none */
	_Atomic(const char *) doing; /* what it makes calls for */
	/* With the engine loop's lock. */
	bool is_open;
	bool has_started;
	bool is_done;
};

int engine_init(struct engine *e);

/* --- For the worker ---------------------------------------------------------------------------- */

/* It is about to make calls for this, a constant, and came back from the last one. NULL: it makes none. */
void engine_does(struct engine *e, const char *what);
/* That something broke; which of several is first counts. Returns false. */
__attribute__((format(printf, 3, 4))) bool engine_break(struct engine *e, bool is_at_link,
							const char *fmt, ...);
void engine_is_open(struct engine *e);
void engine_is_done(struct engine *e);
/* Blocks until the agent says who takes part. */
void engine_await_start(struct engine *e);
/* Gives the processor away for a moment, since NCCL and the driver can only be asked again and again. */
void engine_pause(struct engine *e);
/* The first `n_bytes` of the stream are where they belong. */
void engine_arrived(struct engine *e, uint64_t n_bytes);
