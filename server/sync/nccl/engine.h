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

struct engine;
struct worker;

#define ENGINE_IS_OVER 1

struct operation {
	const char *doing; /* the purpose of its calls, for sentences */
	bool is_limited_by_source; /* by rank 0 alone; otherwise each node limits its rate */

	/* --- Called by the loop --- */

	/* Reads "open". -EBADMSG with a sentence; ENGINE_IS_OVER: it has reported a failure. */
	int (*open)(struct engine *e, const json_t *order, char why[ENGINE_ORDER_WHY_SIZE]);
	/* The fields of "opened". */
	json_t *(*opened)(const struct engine *e);
	/* Reads "start", and sets the engine's place. -EBADMSG with a sentence. */
	int (*start)(struct engine *e, const json_t *order, char why[ENGINE_ORDER_WHY_SIZE]);
	/* The fields of "done". */
	json_t *(*done)(const struct engine *e);

	/* --- Called by the worker. False: the failure is reported --- */

	/* Maps the memory, before the engine is open. */
	bool (*prepare)(struct worker *w);
	/* Compares this node's order with the others', before any byte moves. */
	bool (*greet)(struct worker *w);
	bool (*has_more)(const struct worker *w);
	/* Queues the next bucket. */
	bool (*queue)(struct worker *w);
	/* Called once all nodes have all. NULL: nothing to do. */
	bool (*finish)(struct worker *w);
};

struct engine {
	struct engine_loop engine_loop; /* the worker also reads its order, once it runs */
	const struct operation *const *operations; /* indexed by those of orders */
	const struct operation *operation; /* the order's; NULL: not open */
	void *work; /* owned by the operation */
	const char *previous; /* the node before this one; "": there is none */
	bool is_first; /* it makes NCCL's id */
	uint64_t total; /* bytes that its rate is of */
	struct place place; /* the worker's, once it has started; constant */

	/* The worker's. */
	struct gpu gpu;
	struct nccl nccl;
	struct nccl_id id; /* rank 0's own */
	cu_ptr memory; /* the order's; a broadcast's receivers write it */
	cu_ptr result; /* a collective's */

	/* Shared by the loop and the worker. */
	atomic_uint_fast64_t done; /* bytes of the stream in place */
	atomic_uint_fast64_t sent; /* bytes sent, or digested: progress besides `done` */
	/* Time when the worker last returned from a call; 0: it makes none. */
	atomic_uint_fast64_t alive_ns;
	_Atomic(const char *) doing; /* the purpose of its calls */
	/* Protected by the engine loop's lock. */
	bool is_open;
	bool has_started;
	bool is_done;
};

int engine_init(struct engine *e, const struct operation *const operations[ENGINE_ORDER_OPERATIONS]);

/*
 * The bytes of one direction, for the agent; null if there is none. NCCL carries exactly the bytes
 * of its calls, and nothing else counts them.
 */
json_t *engine_describe_bytes(uint64_t n_bytes, bool is_there);

/* --- Called by the worker ---------------------------------------------------------------------- */

/*
 * The worker returned from the last call, and makes calls for this purpose, a constant. NULL: it
 * makes none.
 */
void engine_does(struct engine *e, const char *what);
/* Reports a failure. Only the first one counts. Returns false. */
__attribute__((format(printf, 3, 4))) bool engine_break(struct engine *e, bool is_at_link,
							const char *fmt, ...);
/* The same with a code of the failure, or NULL, and the node to blame; NULL: this one. */
__attribute__((format(printf, 4, 5))) bool engine_break_from(struct engine *e, const char *code,
							     const char *node, const char *fmt, ...);
void engine_is_open(struct engine *e);
void engine_is_done(struct engine *e);
/* Blocks until the agent sends "start". */
void engine_await_start(struct engine *e);
/* Sleeps for a moment: NCCL and the driver can only be polled. */
void engine_pause(struct engine *e);
/* So many bytes of the stream are in place, and so many were sent. */
void engine_arrived(struct engine *e, uint64_t n_done, uint64_t n_sent);
