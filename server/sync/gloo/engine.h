/*
 * The engine
 *
 * One node's part in one epoch over Gloo. The loop exchanges messages with the agent and watches.
 * Threads of the operation wait inside Gloo, read and write memory, and report to the loop. A
 * failure is reported to the agent once, with the link and the node to blame. Threads end only with
 * the process.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/sync/base/memory.h"
#include "server/sync/engine/engine_loop.h"
#include "server/sync/gloo/wire.h"

struct engine;

struct operation {
	/*
	 * Makes the wires, and adds to "opened" the values that the agent must pass on. -EBADMSG
	 * with a sentence.
	 */
	int (*open)(struct engine *e, const json_t *order, json_t *opened,
		    char why[ENGINE_ORDER_WHY_SIZE]);
	int (*start)(struct engine *e, const json_t *order, char why[ENGINE_ORDER_WHY_SIZE]);
	/* The other node has work for us that it has not done. */
	bool (*is_owed)(struct engine *e, const struct wire *w);
	/* The bytes that a finished wire must have carried, both ways. */
	struct planned_bytes (*plan)(const struct engine *e, const struct wire *w);
	/* Adds the results of the operation to "done"; NULL: none. */
	void (*report)(const struct engine *e, json_t *done);
};

struct engine {
	struct engine_loop engine_loop;
	const struct operation *operation; /* NULL: not open */
	struct next next;
	struct memory memory;
	struct ssl_ctx_st *tls; /* SSL_CTX; NULL: in the clear */
	struct wire *wires;
	unsigned n_wires;
	void *work; /* owned by the operation */

	/* Shared by the threads and the loop. */
	/* Bytes of the stream in memory; threads wait for it with the engine loop's lock. */
	atomic_uint_fast64_t arrived;
	atomic_uint_fast64_t sent;
	atomic_uint_fast64_t digested; /* bytes digested; progress that counts besides `sent` */
	unsigned n_running; /* threads; protected by that lock */
};

int engine_init(struct engine *e);

/* Starts a thread on `arg`; called by operations, in the loop. -errno with a sentence. */
int engine_run(struct engine *e, void *(*fn)(void *arg), void *arg, char why[ENGINE_ORDER_WHY_SIZE]);

/*
 * Called by threads: engine_break() reports a broken wire, of which only the first counts;
 * engine_thread_is_done() ends the work of this thread.
 */
__attribute__((format(printf, 3, 4))) void engine_break(struct engine *e, const struct wire *w,
							const char *fmt, ...);
/* The same if the data of the nodes does not fit together: a retry would fail as well. */
__attribute__((format(printf, 3, 4))) void engine_differ(struct engine *e, const struct wire *w,
							 const char *fmt, ...);
void engine_thread_is_done(struct engine *e);
/* The first `n_bytes` of the stream are in memory. */
void engine_arrived(struct engine *e, uint64_t n_bytes);
/* Blocks until they are. */
void engine_await(struct engine *e, uint64_t n_bytes);
