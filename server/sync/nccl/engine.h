/*
 * The engine
 *
 * One node's part in one epoch over NCCL. The loop exchanges messages with the agent and watches.
 * One thread, the worker, makes every call of the driver and of NCCL: so a communicator is never
 * used by two threads, and no call blocks the loop. A failure is reported to the agent once. NCCL
 * does not name the node to blame: a failure that others may have caused is reported for the link
 * to the previous node, any other for this node.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/sync/engine/engine_loop.h"
#include "server/sync/nccl/gpu.h"
#include "server/sync/nccl/nccl.h"

struct engine {
	struct engine_loop engine_loop; /* the worker also reads its order, once it runs */
	struct place place; /* the worker's, once it has started; constant */

	/* The worker's. */
	struct gpu gpu;
	struct nccl nccl;
	struct nccl_id id; /* the source's own */

	/* Shared by the loop and the worker. */
	atomic_uint_fast64_t done; /* bytes of the stream in place */
	/* Time when the worker last returned from a call; 0: it makes none. */
	atomic_uint_fast64_t alive_ns;
	_Atomic(const char *) doing; /* the purpose of its calls */
	/* Protected by the engine loop's lock. */
	bool is_open;
	bool has_started;
	bool is_done;
};

int engine_init(struct engine *e);

/* --- Called by the worker ---------------------------------------------------------------------- */

/*
 * The worker returned from the last call, and makes calls for this purpose, a constant. NULL: it
 * makes none.
 */
void engine_does(struct engine *e, const char *what);
/* Reports a failure. Only the first one counts. Returns false. */
__attribute__((format(printf, 3, 4))) bool engine_break(struct engine *e, bool is_at_link,
							const char *fmt, ...);
void engine_is_open(struct engine *e);
void engine_is_done(struct engine *e);
/* Blocks until the agent sends "start". */
void engine_await_start(struct engine *e);
/* Sleeps for a moment: NCCL and the driver can only be polled. */
void engine_pause(struct engine *e);
/* The first `n_bytes` of the stream are in place. */
void engine_arrived(struct engine *e, uint64_t n_bytes);
