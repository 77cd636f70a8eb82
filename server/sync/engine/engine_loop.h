/*
 * The engine loop
 *
 * What every engine does for its agent, whatever it carries bytes over: it is told "open" once and "start" once, then
 * "rate" where it can change that, and "sockets" whenever the agent has to be given these anew; it says how far it is, and
 * once how it ended. The loop talks and watches; threads, where an engine has some, leave a word for it. Behind the end
 * nothing happens any more: sockets stay open and silent until the agent ends this process, so that neighbours do not take
 * us for the cause.
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

/* What an engine is. Sentences are of why it cannot, and end the engine loop. */
struct engine_loop_kind {
	const char *name; /* of the program */
	/* What it never does; NULL: nothing of this order. */
	const char *(*refuse)(const struct engine_order *o);
	/* Takes the order that was read, and calls engine_loop_opened(), then or later. */
	int (*open)(struct engine_loop *d, const json_t *order, char why[ENGINE_ORDER_WHY_SIZE]);
	int (*start)(struct engine_loop *d, const json_t *order, char why[ENGINE_ORDER_WHY_SIZE]);
	/* Gives the agent once more what engine_loop_tell_socket() did. NULL: it tells of none. */
	void (*tell_sockets)(struct engine_loop *d);
	/* Bytes per second from now on, once started; 0: no limit. NULL: it keeps to the one of "start". */
	void (*limit)(struct engine_loop *d, uint64_t max_rate);
	/* It started, or a thread woke the loop. */
	void (*look)(struct engine_loop *d);
	/* From the order on, at each tick. */
	void (*watch)(struct engine_loop *d, uint64_t now_ns);
	/* Bytes of the stream that are in memory, and that went on. */
	void (*count)(const struct engine_loop *d, uint64_t *ret_done, uint64_t *ret_sent);
	/* It is over; NULL: nothing has to be done about that. */
	void (*end)(struct engine_loop *d);
};

/* Whose fault something is. The names are borrowed from who lives as long. */
struct blame {
	const char *code; /* NULL: "stream" */
	const char *from, *to; /* a link; NULL: no link */
	const char *who; /* NULL: this node */
	const unsigned *stripe; /* of the link; NULL: all of it */
};

struct engine_loop {
	const struct engine_loop_kind *kind;
	struct loop loop;
	struct source agent; /* the socket of whom we work for */
	struct source wake; /* an eventfd: a thread has something to tell */
	struct timer tick;
	struct engine_order order; /* once it is asked, nobody changes it */
	bool is_asked, is_open, is_started;
	uint64_t told_done, told_sent;
	atomic_bool is_traced; /* the agent wants to be given what bytes go over */
	atomic_uint n_sockets; /* that it was given, since it wanted them last */
	json_t *end; /* what was decided */
	bool is_over;
	bool is_end_told;

	pthread_mutex_t lock; /* protects what follows, and what an engine says it does */
	pthread_cond_t more; /* what an engine's threads wait for, by the monotonic clock */
	struct blame blame;
	char why[ENGINE_ORDER_WHY_SIZE]; /* what a thread found broken; "": nothing */
};

/* Of a whole process; its loop ends when nobody wants it any more. -errno, and it was logged why. */
int engine_loop_init(struct engine_loop *d, const struct engine_loop_kind *kind);
void engine_loop_deinit(struct engine_loop *d);

/* --- For the loop ------------------------------------------------------------------------------ */

/* Takes the message, and says "opened" with it. NULL: there is no memory for one. */
void engine_loop_opened(struct engine_loop *d, json_t *message);
/* Takes what is decided. Only what is first counts. */
void engine_loop_end(struct engine_loop *d, json_t *message);
/* NULL: this node is to blame. */
__attribute__((format(printf, 3, 4))) void engine_loop_fail(struct engine_loop *d,
							    const struct blame *b, const char *fmt,
							    ...);
__attribute__((format(printf, 3, 0))) void engine_loop_vfail(struct engine_loop *d,
							     const struct blame *b, const char *fmt,
							     va_list args);
void engine_loop_tell_progress(struct engine_loop *d);

/* --- For any thread ---------------------------------------------------------------------------- */

/*
 * Gives the agent a connection, if it wants them, to have it traced: with whom it is, who dialled, and how many bytes all
 * such with that node have to carry, both ways.
 */
void engine_loop_tell_socket(struct engine_loop *d, int fd, const char *node, bool is_dialled,
			     const struct planned_bytes *planned);

/* --- For threads ------------------------------------------------------------------------------- */

/* That something broke: which of several is first counts. */
__attribute__((format(printf, 3, 0))) void engine_loop_break(struct engine_loop *d,
							     const struct blame *b, const char *fmt,
							     va_list args);
/* That there is something to look at. */
void engine_loop_wake(struct engine_loop *d);
