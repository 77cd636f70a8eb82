#include "libclient/cuda/staging.h"

#include <pthread.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/list.h"
#include "ipc/base/numa.h"

#define TICK_NS 50000000L

struct staging_lane {
	char *data; /* NULL: not pinned yet; the owner's to set while it is taken, with its node */
	int node; /* the NUMA node that it was pinned for; -1: any */
	bool is_taken;
};

struct waiter {
	struct list link; /* pool::waiters */
};

static pthread_once_t once = PTHREAD_ONCE_INIT;

static struct {
	pthread_mutex_t lock; /* protects the rest */
	pthread_cond_t changed; /* lanes were returned, or another waiter is the first */
	struct list waiters;
	unsigned n_entered;
	unsigned n_taken;
	struct place place; /* in which lanes are pinned; its driver is NULL before the first one is */
	struct staging_lane lanes[STAGING_LANES_MAX];
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .waiters = {&pool.waiters, &pool.waiters}};

static void init_once(void)
{
	pthread_condattr_t attr;

	(void)pthread_condattr_init(&attr);
	(void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	(void)pthread_cond_init(&pool.changed, &attr);
	(void)pthread_condattr_destroy(&attr);
}

void staging_enter(void)
{
	(void)pthread_mutex_lock(&pool.lock);
	pool.n_entered++;
	(void)pthread_mutex_unlock(&pool.lock);
}

/* With the lock. Lanes cannot be taken: these have memory mapped. */
static void free_lanes(void)
{
	struct visit visit = {0};
	struct sentence ignored; /* without the context nothing of it is left */
	const bool has_entered = place_enter_primary(&pool.place, &visit, &ignored) == 0;

	for (unsigned i = 0; i < STAGING_LANES_MAX; i++) {
		if (has_entered && pool.lanes[i].data)
			(void)pool.place.driver->mem_host_free(pool.lanes[i].data);
		pool.lanes[i].data = NULL;
	}
	place_leave(&visit);
	place_deinit(&pool.place);
}

void staging_leave(const struct place *p)
{
	if (p->owner != getpid())
		return; /* a child of the process that has pinned it */
	(void)pthread_mutex_lock(&pool.lock);
	if (--pool.n_entered == 0 && pool.place.driver)
		free_lanes();
	(void)pthread_mutex_unlock(&pool.lock);
}

/* With the lock. */
static void wait_a_tick(void)
{
	struct timespec until;

	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += TICK_NS;
	if (until.tv_nsec >= 1000000000L) {
		until.tv_nsec -= 1000000000L;
		until.tv_sec++;
	}
	(void)pthread_cond_timedwait(&pool.changed, &pool.lock, &until);
}

/* With the lock, which is free meanwhile: waits until a lane is there, and all that have waited longer have theirs. */
static int await_turn(staging_tick tick, void *userdata, struct sentence *s)
{
	struct waiter self;
	int r = 0;

	list_append(&pool.waiters, &self.link);
	while (r == 0 && (list_first(&pool.waiters, struct waiter, link) != &self ||
			  pool.n_taken == STAGING_LANES_MAX)) {
		wait_a_tick();
		(void)pthread_mutex_unlock(&pool.lock);
		r = tick(userdata, s);
		(void)pthread_mutex_lock(&pool.lock);
	}
	list_remove(&self.link);
	(void)pthread_cond_broadcast(&pool.changed);
	return r;
}

enum origin {
	PINNED_THERE, /* for the node */
	NOT_PINNED,
	PINNED_ELSEWHERE,
};

static enum origin origin_of(const struct staging_lane *lane, int node)
{
	if (!lane->data)
		return NOT_PINNED;
	return lane->node == node ? PINNED_THERE : PINNED_ELSEWHERE;
}

/* With the lock. */
static void take_lanes(struct staging *t, unsigned n, int node, enum origin origin)
{
	for (unsigned i = 0; i < STAGING_LANES_MAX && t->n < n; i++) {
		struct staging_lane *lane = &pool.lanes[i];

		if (lane->is_taken || origin_of(lane, node) != origin)
			continue;
		lane->is_taken = true;
		pool.n_taken++;
		t->lanes[t->n++] = lane;
	}
}

/* The lanes that have no memory yet; the driver makes it where the thread runs. Others may wait for the lock, not for the driver. */
static int pin_lanes(struct staging *t, int node, struct sentence *s)
{
	const struct cuda_driver *d = pool.place.driver;
	cleanup(place_leave) struct visit visit = {0};
	struct numa_cpus before;
	bool is_moved;
	int r = place_enter_primary(&pool.place, &visit, s);

	if (r < 0)
		return r;
	is_moved = node >= 0 && numa_run_on_node((unsigned)node, &before);
	for (unsigned i = 0; r == 0 && i < t->n; i++) {
		struct staging_lane *lane = t->lanes[i];
		void *data;
		cu_result result;

		if (lane->data)
			continue;
		result = d->mem_host_alloc(&data, STAGING_LANE_SIZE, CU_HOST_ALLOC_PORTABLE);
		if (result) {
			r = gpu_error(d, result, "the driver", s);
			break;
		}
		lane->data = data;
		lane->node = node;
	}
	if (is_moved)
		numa_run_on(&before);
	return r;
}

int staging_borrow(struct staging *t, const struct place *p, unsigned n, staging_tick tick,
		   void *userdata, struct sentence *s)
{
	const int node = gpu_numa_node(p->driver, p->device);
	int r;

	*t = (struct staging){0};
	(void)pthread_once(&once, init_once);
	(void)pthread_mutex_lock(&pool.lock);
	r = await_turn(tick, userdata, s);
	if (r == 0 && !pool.place.driver)
		r = place_init(&pool.place, p->driver, p->device, s);
	if (r == 0) {
		const unsigned share = (STAGING_LANES_MAX - pool.n_taken + 1) / 2;

		if (n > share)
			n = share;
		for (enum origin o = PINNED_THERE; o <= PINNED_ELSEWHERE; o++)
			take_lanes(t, n, node, o);
	}
	(void)pthread_mutex_unlock(&pool.lock);
	if (r < 0)
		return r;
	r = pin_lanes(t, node, s);
	if (r < 0) {
		staging_return(t);
		return sentence_set(s, r,
				    "%zu MiB of host memory to copy from cannot be pinned (%.200s); "
				    "fewer threads need less",
				    (size_t)n * (STAGING_LANE_SIZE >> 20), s->text);
	}
	return 0;
}

void staging_return(struct staging *t)
{
	if (t->n == 0)
		return;
	(void)pthread_mutex_lock(&pool.lock);
	for (unsigned i = 0; i < t->n; i++)
		t->lanes[i]->is_taken = false;
	pool.n_taken -= t->n;
	t->n = 0;
	(void)pthread_cond_broadcast(&pool.changed);
	(void)pthread_mutex_unlock(&pool.lock);
}

char *staging_data(const struct staging *t, unsigned i)
{
	return t->lanes[i]->data;
}
