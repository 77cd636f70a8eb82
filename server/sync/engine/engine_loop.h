/*
 * The engine loop
 *
 * The part that all engines share, whatever transport they use. The agent sends "open" once and
 * "start" once, then "rate" if the engine can change it, and "sockets" whenever it needs the
 * sockets again. The engine sends its progress, and its result once. The loop exchanges messages
 * and watches; threads, if an engine has some, leave a message in this struct and wake the loop.
 * After the result nothing happens: sockets stay open and silent until the agent ends this process,
 * so that neighbours do not blame this node.
 */
#pragma once

#include <jansson.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/base/loop.h"
#include "server/sync/base/engine_order.h"

struct planned_bytes;
struct engine_loop;

/*
 * The functions of an engine. A sentence in `why` gives the reason of a failure, which ends the
 * engine loop.
 */
struct engine_loop_kind {
	const char *name; /* the program's */
	/* Returns why this engine can never execute the order; NULL: it can. */
	const char *(*refuse)(const struct engine_order *o);
	/* Takes the parsed order. Calls engine_loop_opened(), now or later. */
	int (*open)(struct engine_loop *d, const json_t *order, char why[ENGINE_ORDER_WHY_SIZE]);
	int (*start)(struct engine_loop *d, const json_t *order, char why[ENGINE_ORDER_WHY_SIZE]);
	/* Repeats every engine_loop_report_socket(). NULL: the engine reports no sockets. */
	void (*report_sockets)(struct engine_loop *d);
	/*
	 * Changes the rate after the start, in bytes per second; 0: no limit. NULL: the rate of
	 * "start" stays.
	 */
	void (*limit)(struct engine_loop *d, uint64_t max_rate);
	/* Called after the start, and when a thread woke the loop. */
	void (*on_wake)(struct engine_loop *d);
	/* Called at each tick, from the order on. */
	void (*watch)(struct engine_loop *d, uint64_t now_ns);
	/* Returns how many bytes of the stream are in memory, and how many were forwarded. */
	void (*count)(const struct engine_loop *d, uint64_t *ret_done, uint64_t *ret_sent);
	/* Called at the end; NULL: nothing to do. */
	void (*end)(struct engine_loop *d);
};

/* The cause of a failure. The names are borrowed from objects that live as long. */
struct blame {
	const char *code; /* NULL: "stream" */
	const char *from, *to; /* a link; NULL: no link */
	const char *who; /* NULL: this node */
	const unsigned *stripe; /* a part of the link; NULL: all of it */
};

struct engine_loop {
	const struct engine_loop_kind *kind;
	struct loop loop;
	struct source agent; /* the socket of our agent */
	struct source wake; /* an eventfd: a thread has left a message */
	struct timer tick;
	struct engine_order order; /* constant once it is read */
	bool is_asked, is_open, is_started;
	uint64_t reported_done, reported_sent;
	atomic_bool is_traced; /* the agent wants each socket, to have its bytes traced */
	atomic_uint n_sockets; /* sockets sent since the agent last asked for them */
	json_t *end; /* the result */
	bool is_over;
	bool is_end_sent;

	pthread_mutex_t lock; /* protects the members below, and those that an engine documents */
	pthread_cond_t more; /* engine threads wait for it, by the monotonic clock */
	struct blame blame;
	char why[ENGINE_ORDER_WHY_SIZE]; /* a failure that a thread found; "": none */
};

/* One per process; its loop ends when the agent hangs up. -errno, with the reason logged. */
int engine_loop_init(struct engine_loop *d, const struct engine_loop_kind *kind);
void engine_loop_deinit(struct engine_loop *d);

/* --- Called by the loop ----------------------------------------------------------------------- */

/* Takes the message, and sends it as "opened". NULL: no memory for one. */
void engine_loop_opened(struct engine_loop *d, json_t *message);
/* Takes the result. Only the first one counts. */
void engine_loop_end(struct engine_loop *d, json_t *message);
/* `b` NULL: this node is to blame. */
__attribute__((format(printf, 3, 4))) void engine_loop_fail(struct engine_loop *d,
							    const struct blame *b, const char *fmt,
							    ...);
__attribute__((format(printf, 3, 0))) void engine_loop_vfail(struct engine_loop *d,
							     const struct blame *b, const char *fmt,
							     va_list args);
void engine_loop_report_progress(struct engine_loop *d);

/* --- Called by any thread --------------------------------------------------------------------- */

/*
 * Sends a connection to the agent, if it wants them, to have it traced: the other node, which side
 * dialled, and the number of bytes, both ways, that all such connections with that node must carry.
 */
void engine_loop_report_socket(struct engine_loop *d, int fd, const char *node, bool is_dialled,
			       const struct planned_bytes *planned);

/* --- Called by threads ------------------------------------------------------------------------ */

/* Reports a failure. Only the first one counts. */
__attribute__((format(printf, 3, 0))) void engine_loop_break(struct engine_loop *d,
							     const struct blame *b, const char *fmt,
							     va_list args);
/* Makes the loop call `on_wake`. */
void engine_loop_wake(struct engine_loop *d);
