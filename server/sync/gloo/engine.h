/*
 * The engine
 *
 * One node's part in one epoch. The loop talks to the agent and watches; threads of the operation wait inside
 * Gloo, write and read memory, and tell the loop. Whatever goes wrong is said to the agent once, with the link
 * and who is to blame. No thread ever ends but with the process.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/sync/base/memory.h"
#include "server/sync/engine/engine_loop.h"
#include "server/sync/gloo/wire.h"

#define ENGINE_NODES_MAX 64

struct engine;

struct operation {
	/* Makes the wires, and adds what the agent has to pass on to "opened". -EBADMSG with a sentence. */
	int (*open)(struct engine *e, const json_t *order, json_t *opened,
		    char why[ENGINE_ORDER_WHY_SIZE]);
	int (*start)(struct engine *e, const json_t *order, char why[ENGINE_ORDER_WHY_SIZE]);
	/* Whether a node has something to do for us that it has not done. */
	bool (*is_owed)(struct engine *e, const struct wire *w);
	/* What has to go over a wire, both ways, once it is done. */
	struct planned_bytes (*plan)(const struct engine *e, const struct wire *w);
	/* Adds to "done" what else it has to tell; NULL: nothing. */
	void (*report)(const struct engine *e, json_t *done);
};

struct engine {
	struct engine_loop engine_loop;
	const struct operation *operation; /* NULL: not open */
	struct next next;
	struct memory memory;
	struct wire *wires;
	unsigned n_wires;
	void *work; /* the operation's */

	/* Between the threads and the loop. */
	atomic_uint_fast64_t
		arrived; /* bytes of the stream in memory; threads wait for it with the engine loop's lock */
	atomic_uint_fast64_t sent;
	atomic_uint_fast64_t digested; /* who has all of it has this to do yet */
	unsigned n_running; /* threads; with that lock */
};

int engine_init(struct engine *e);

/* For operations, in the loop: starts a thread on `arg`. -errno with a sentence. */
int engine_run(struct engine *e, void *(*fn)(void *arg), void *arg, char why[ENGINE_ORDER_WHY_SIZE]);

/* For threads: that a wire broke, which of several is first counts; and that this thread has nothing left to do. */
__attribute__((format(printf, 3, 4))) void engine_break(struct engine *e, const struct wire *w,
							const char *fmt, ...);
/* The same, where the nodes have what does not fit together: any other attempt would end like this one. */
__attribute__((format(printf, 3, 4))) void engine_differ(struct engine *e, const struct wire *w,
							 const char *fmt, ...);
void engine_thread_is_done(struct engine *e);
/* The first `n_bytes` of the stream are in memory. */
void engine_arrived(struct engine *e, uint64_t n_bytes);
/* Blocks until they are. */
void engine_await(struct engine *e, uint64_t n_bytes);
