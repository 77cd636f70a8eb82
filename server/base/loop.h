/*
 * The loop
 *
 * One thread, one epoll set, all state. A source is embedded in what it belongs to and dispatched with
 * the events that are ready; a timer fires once at its deadline. A chore runs once, after the sources
 * of its round: it is for work that has no end of its own, which it does in slices. Callbacks never
 * block, and may add and remove any source, timer or chore, their own included.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "ipc/base/list.h"
#include "server/base/latency.h"

struct loop;

struct source {
	int fd; /* borrowed */
	uint32_t events;
	void (*fn)(struct source *source, uint32_t events);
	struct loop *loop; /* NULL while not added */
};

/* In the heap of its loop: no deadline in `children` and what follows them is before its own. */
struct timer {
	struct timer *children; /* the first one */
	struct timer *next; /* of the same parent */
	struct timer *previous; /* likewise; the parent of a first one */
	struct loop *loop; /* NULL while it does not run */
	uint64_t deadline_ns; /* CLOCK_MONOTONIC */
	uint64_t start; /* loop::n_starts: timers of one deadline fire in this order */
	void (*fn)(struct timer *timer);
};

struct chore {
	struct list link; /* loop::chores */
	void (*fn)(struct chore *chore);
};

#define LOOP_BATCH 64

struct loop {
	int epoll_fd;
	bool quit;
	struct timer *timers; /* the one that fires first: a pairing heap, as clients may have thousands of them run */
	uint64_t n_starts; /* of timers so far */
	struct list chores; /* of this round, or the next */
	struct epoll_event batch[LOOP_BATCH];
	int n_batch; /* events in the round being dispatched */
	uint64_t n_rounds; /* waits for events so far */
	uint64_t round_ns; /* when the events of this round came; 0: it waits */
	struct latency rounds; /* time between two waits */
};

int loop_init(struct loop *l);
void loop_deinit(struct loop *l);

int loop_add(struct loop *l, struct source *s, int fd, uint32_t events,
	     void (*fn)(struct source *, uint32_t));
void loop_modify(struct source *s, uint32_t events);
/* Does nothing to a source that was not added. */
void loop_remove(struct source *s);

void timer_init(struct timer *t, void (*fn)(struct timer *));
void timer_start(struct loop *l, struct timer *t, uint64_t deadline_ns);
/* The same, so long from now; one that runs goes on as it is. */
void timer_start_once(struct loop *l, struct timer *t, uint64_t ns);
bool timer_runs(const struct timer *t);
void timer_stop(struct timer *t);

void chore_init(struct chore *t, void (*fn)(struct chore *));
/* Runs it at the end of the round; of the next one, when a chore asks. One that waits goes on waiting. */
void chore_start(struct loop *l, struct chore *t);
void chore_stop(struct chore *t);

/* Dispatches until loop_quit(). 0 or a negative errno of epoll itself. */
int loop_run(struct loop *l);
void loop_quit(struct loop *l);
