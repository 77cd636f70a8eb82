#include "libclient/load/progress.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "ipc/base/num.h"

static bool is_time(const struct progress *p, bool at_end, uint64_t now)
{
	if (p->ended)
		return false;
	return at_end || now - p->told_ns >= PROGRESS_INTERVAL_MS * 1000000ull;
}

void progress_set_timeout(struct progress *p, unsigned timeout_ms)
{
	p->timeout_ms = timeout_ms;
	p->deadline_ns = timeout_ms ? num_now_ns() + (uint64_t)timeout_ms * 1000000 : 0;
}

static int progress_end(struct progress *p, int r, uint64_t done, uint64_t total)
{
	p->percent = total ? (unsigned)((double)done * 100 / (double)total) : 0;
	p->r = r;
	return r;
}

int progress_report(struct progress *p, const char *phase, uint64_t done, uint64_t total)
{
	/* A phase that has ended may begin again. */
	bool new_phase = !p->phase || strcmp(p->phase, phase) != 0 || (p->ended && done == 0);
	uint64_t now = num_now_ns();

	if (p->r)
		return p->r;
	if (new_phase || is_time(p, done >= total, now)) {
		p->phase = phase;
		p->told_ns = now;
		p->ended = done >= total;
		if (p->fn && p->fn(p->userdata, phase, done, total))
			return progress_end(p, -ECANCELED, done, total);
	}
	if (p->deadline_ns && now >= p->deadline_ns)
		return progress_end(p, -ETIMEDOUT, done, total);
	return 0;
}

int progress_failed(const struct progress *p, struct sentence *s)
{
	if (p->r == -ETIMEDOUT)
		return sentence_set(s, p->r,
				    "the load did not end within %u ms: it was at %u %% of phase "
				    "'%s'; nothing was published; load again with more time "
				    "(weightctl load --timeout)",
				    p->timeout_ms, p->percent, p->phase);
	return sentence_set(s, p->r,
			    "the load was cancelled at %u %% of phase '%s'; nothing was published; "
			    "load again to begin anew",
			    p->percent, p->phase);
}

void progress_wait_init(pthread_cond_t *changed)
{
	pthread_condattr_t attr;

	(void)pthread_condattr_init(&attr);
	(void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	(void)pthread_cond_init(changed, &attr);
	(void)pthread_condattr_destroy(&attr);
}

void progress_wait(pthread_cond_t *changed, pthread_mutex_t *lock)
{
	struct timespec until;

	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += PROGRESS_INTERVAL_MS * 1000000L;
	if (until.tv_nsec >= 1000000000L) {
		until.tv_nsec -= 1000000000L;
		until.tv_sec++;
	}
	(void)pthread_cond_timedwait(changed, lock, &until);
}
