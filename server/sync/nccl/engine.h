/*
 * The engine
 *
 * One node's part in one epoch. The loop talks to the agent and watches; one thread, the worker, makes every call of
 * the driver and of NCCL, so that a communicator never sees two at once, and none of them keeps the loop from
 * answering. Whatever goes wrong is said to the agent once. NCCL tells nobody who is to blame: what may come from
 * others is said of the link to the node before this one, and what cannot, of this node.
 */
#pragma once

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/base/loop.h"
#include "server/sync/base/order.h"
#include "server/sync/nccl/gpu.h"
#include "server/sync/nccl/nccl.h"

struct engine {
	struct loop loop;
	struct source agent; /* the socket of whom we work for */
	struct source wake; /* an eventfd: the worker has something to tell */
	struct timer tick;
	bool is_asked; /* there is an order, and a worker */
	bool is_open_told;
	bool is_started;
	uint64_t told_done;
	json_t *end; /* what was decided; nothing happens any more */
	bool is_end_told;

	struct order order; /* the worker's, once it runs; it does not change */
	struct place place; /* likewise, once it has started */

	/* The worker's. */
	struct gpu gpu;
	struct nccl nccl;
	struct nccl_id id; /* the source's own */

	/* Between the two. */
	atomic_uint_fast64_t done; /* bytes of the stream that are where they belong */
	atomic_uint_fast64_t alive_ns; /* when the worker last came back from a call; 0: it makes none */
	_Atomic(const char *) doing; /* what it makes calls for */
	pthread_mutex_t lock; /* protects what follows */
	pthread_cond_t more; /* has_started */
	bool is_open;
	bool has_started;
	bool is_done;
	bool is_at_link; /* what broke */
	char why[ORDER_WHY_SIZE]; /* "": nothing is broken */
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
