#include "libclient/load/disk/pace.h"

#include <errno.h>
#include <time.h>

#include "ipc/base/num.h"
#include "libclient/load/disk/direct.h"

#define SECOND_NS 1000000000u
#define UNLIMITED (UINT64_C(1) << 56) /* no read is longer */
#define TURNS_PER_SECOND 40
#define LATE_MAX_NS 50000000u /* of a turn, to be made up for by the next ones */

void pace_init(struct pace *p, uint64_t rate)
{
	pthread_condattr_t attr;

	*p = (struct pace){.rate = rate, .next_ns = num_now_ns()};
	(void)pthread_mutex_init(&p->lock, NULL);
	(void)pthread_condattr_init(&attr);
	(void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC); /* it does not jump */
	(void)pthread_cond_init(&p->stopped, &attr);
	(void)pthread_condattr_destroy(&attr);
}

void pace_deinit(struct pace *p)
{
	(void)pthread_cond_destroy(&p->stopped);
	(void)pthread_mutex_destroy(&p->lock);
}

uint64_t pace_most(const struct pace *p)
{
	const uint64_t n = p->rate / TURNS_PER_SECOND & ~(uint64_t)(DIRECT_ALIGN_MAX - 1);

	if (p->rate == 0)
		return UNLIMITED;
	return n ? n : DIRECT_ALIGN_MAX;
}

/* Takes the next turn. */
static uint64_t take_turn(struct pace *p, uint64_t n)
{
	const double length_ns = (double)n * SECOND_NS / (double)p->rate;
	uint64_t now = num_now_ns(), turn;

	if (p->next_ns + LATE_MAX_NS < now)
		p->next_ns = now - LATE_MAX_NS;
	turn = p->next_ns;
	p->next_ns += length_ns < 1e18 ? (uint64_t)length_ns : (uint64_t)1e18;
	return turn;
}

int pace_take(struct pace *p, uint64_t n)
{
	struct timespec until;
	uint64_t turn;
	int r = 0;

	if (p->rate == 0)
		return 0;
	(void)pthread_mutex_lock(&p->lock);
	turn = take_turn(p, n);
	until.tv_sec = (time_t)(turn / SECOND_NS);
	until.tv_nsec = (long)(turn % SECOND_NS);
	while (r == 0 && !p->is_stopped && num_now_ns() < turn)
		r = pthread_cond_timedwait(&p->stopped, &p->lock, &until);
	r = p->is_stopped ? -ECANCELED : 0;
	(void)pthread_mutex_unlock(&p->lock);
	return r;
}

void pace_stop(struct pace *p)
{
	(void)pthread_mutex_lock(&p->lock);
	p->is_stopped = true;
	(void)pthread_cond_broadcast(&p->stopped);
	(void)pthread_mutex_unlock(&p->lock);
}
