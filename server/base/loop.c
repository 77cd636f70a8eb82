#include "server/base/loop.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"

#define LOOP_PASSES 64
#define TIMERS_NS 200000u

int loop_init(struct loop *l)
{
	*l = (struct loop){.epoll_fd = epoll_create1(EPOLL_CLOEXEC)};
	list_init(&l->chores);
	return l->epoll_fd < 0 ? -errno : 0;
}

void loop_deinit(struct loop *l)
{
	assert(!l->timers && list_empty(&l->chores));
	l->epoll_fd = fd_close(l->epoll_fd);
}

int loop_add(struct loop *l, struct source *s, int fd, uint32_t events,
	     void (*fn)(struct source *, uint32_t))
{
	struct epoll_event e = {.events = events, .data.ptr = s};

	assert(!s->loop);
	if (epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &e) < 0)
		return -errno;
	*s = (struct source){.fd = fd, .events = events, .fn = fn, .loop = l};
	return 0;
}

void loop_modify(struct source *s, uint32_t events)
{
	struct epoll_event e = {.events = events, .data.ptr = s};
	int r;

	if (s->events == events)
		return;
	r = epoll_ctl(s->loop->epoll_fd, EPOLL_CTL_MOD, s->fd, &e);
	assert(r == 0); /* the descriptor is in the set, or we lost track of it */
	s->events = events;
}

void loop_remove(struct source *s)
{
	struct loop *l = s->loop;

	if (!l)
		return;
	(void)epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, s->fd, NULL);
	/* It may stand further down in the round that is being dispatched. */
	for (int i = 0; i < l->n_batch; i++)
		if (l->batch[i].data.ptr == s)
			l->batch[i].data.ptr = NULL;
	s->loop = NULL;
}

/* --- Timers ------------------------------------------------------------------------------------- */

static bool timer_is_before(const struct timer *a, const struct timer *b)
{
	return a->deadline_ns != b->deadline_ns ? a->deadline_ns < b->deadline_ns
						: a->start < b->start;
}

/* Makes one heap of two, each without siblings. */
static struct timer *timers_meld(struct timer *a, struct timer *b)
{
	struct timer *first = timer_is_before(b, a) ? b : a;
	struct timer *child = first == a ? b : a;

	child->previous = first;
	child->next = first->children;
	if (child->next)
		child->next->previous = child;
	first->children = child;
	return first;
}

/* Takes a heap off a list of siblings. */
static struct timer *timers_take(struct timer **siblings)
{
	struct timer *t = *siblings;

	*siblings = t->next;
	t->next = NULL;
	return t;
}

/* Makes one heap of siblings, first of pairs of them and then of all, which keeps it flat. NULL if there are none. */
static struct timer *timers_meld_all(struct timer *siblings)
{
	struct timer *pairs = NULL, *all = NULL;

	while (siblings) {
		struct timer *t = timers_take(&siblings);

		if (siblings)
			t = timers_meld(t, timers_take(&siblings));
		t->next = pairs;
		pairs = t;
	}
	while (pairs) {
		struct timer *t = timers_take(&pairs);

		all = all ? timers_meld(all, t) : t;
	}
	if (all)
		all->previous = NULL;
	return all;
}

void timer_init(struct timer *t, void (*fn)(struct timer *))
{
	*t = (struct timer){.fn = fn};
}

void timer_start(struct loop *l, struct timer *t, uint64_t deadline_ns)
{
	timer_stop(t);
	t->loop = l;
	t->deadline_ns = deadline_ns;
	t->start = l->n_starts++;
	l->timers = l->timers ? timers_meld(l->timers, t) : t;
}

bool timer_runs(const struct timer *t)
{
	return t->loop != NULL;
}

void timer_start_once(struct loop *l, struct timer *t, uint64_t ns)
{
	if (!timer_runs(t))
		timer_start(l, t, num_now_ns() + ns);
}

void timer_stop(struct timer *t)
{
	struct loop *l = t->loop;
	struct timer *rest;

	if (!l)
		return;
	rest = timers_meld_all(t->children);
	if (t == l->timers) {
		l->timers = rest;
	} else {
		if (t->previous->children == t)
			t->previous->children = t->next;
		else
			t->previous->next = t->next;
		if (t->next)
			t->next->previous = t->previous;
		if (rest)
			l->timers = timers_meld(l->timers, rest);
	}
	t->children = t->next = t->previous = NULL;
	t->loop = NULL;
}

/* Thousands may be due at once: those that are left have the next round. */
static void fire_timers(struct loop *l)
{
	uint64_t now = num_now_ns();
	struct timer *t;

	while ((t = l->timers) && t->deadline_ns <= now) {
		timer_stop(t);
		t->fn(t);
		if (num_now_ns() - now > TIMERS_NS)
			break;
	}
}

void chore_init(struct chore *t, void (*fn)(struct chore *))
{
	*t = (struct chore){.fn = fn};
	list_init(&t->link);
}

void chore_start(struct loop *l, struct chore *t)
{
	if (list_empty(&t->link))
		list_append(&l->chores, &t->link);
}

void chore_stop(struct chore *t)
{
	list_remove(&t->link);
}

static void run_chores(struct loop *l)
{
	struct list now;
	struct chore *t;

	list_init(&now);
	while ((t = list_first(&l->chores, struct chore, link))) {
		list_remove(&t->link);
		list_append(&now, &t->link);
	}
	while ((t = list_first(&now, struct chore, link))) {
		list_remove(&t->link);
		t->fn(t);
	}
}

/* The end of a round: its clock serves the histogram, too. */
static int next_timeout_ms(struct loop *l)
{
	const struct timer *t = l->timers;
	uint64_t now = num_now_ns();
	uint64_t ms;

	if (l->round_ns)
		latency_add(&l->rounds, now - l->round_ns);
	l->round_ns = 0;
	if (!list_empty(&l->chores))
		return 0;
	if (!t)
		return -1;
	if (t->deadline_ns <= now)
		return 0;
	ms = (t->deadline_ns - now + 999999) / 1000000;
	return ms > INT_MAX ? INT_MAX : (int)ms;
}

/* Returns the number of sources, or a negative errno. */
static int dispatch(struct loop *l, int timeout_ms)
{
	int n = epoll_wait(l->epoll_fd, l->batch, LOOP_BATCH, timeout_ms);

	if (n < 0)
		return errno == EINTR ? 0 : -errno;
	if (!l->round_ns)
		l->round_ns = num_now_ns();
	l->n_batch = n;
	l->n_rounds++;
	for (int i = 0; i < l->n_batch; i++) {
		struct source *s = l->batch[i].data.ptr;

		if (s)
			s->fn(s, l->batch[i].events);
	}
	l->n_batch = 0;
	return n;
}

int loop_run(struct loop *l)
{
	while (!l->quit) {
		int n = dispatch(l, next_timeout_ms(l));

		/* Sources that only queue work are many: all of them, before the chores choose among it. */
		for (int i = 1; i < LOOP_PASSES && n == LOOP_BATCH && !list_empty(&l->chores); i++)
			n = dispatch(l, 0);
		if (n < 0)
			return n;
		run_chores(l);
		fire_timers(l);
	}
	return 0;
}

void loop_quit(struct loop *l)
{
	l->quit = true;
}
