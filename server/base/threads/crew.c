#include "server/base/threads/crew.h"

#include <sched.h>
#include <signal.h>

static void *crew_main(void *arg)
{
	struct crew *h = arg;

	(void)pthread_mutex_lock(&h->lock);
	while (!h->stop) {
		if (h->n_wanted == 0) {
			(void)pthread_cond_wait(&h->changed, &h->lock);
			continue;
		}
		h->n_wanted--;
		h->n_busy++;
		(void)pthread_mutex_unlock(&h->lock);
		h->work(h->arg); /* neither changes before all have left */
		(void)pthread_mutex_lock(&h->lock);
		h->n_busy--;
		(void)pthread_cond_broadcast(&h->changed);
	}
	(void)pthread_mutex_unlock(&h->lock);
	return NULL;
}

void crew_init(struct crew *h)
{
	*h = (struct crew){0};
	(void)pthread_mutex_init(&h->lock, NULL);
	(void)pthread_cond_init(&h->changed, NULL);
}

void crew_deinit(struct crew *h)
{
	(void)pthread_mutex_lock(&h->lock);
	h->stop = true;
	(void)pthread_cond_broadcast(&h->changed);
	(void)pthread_mutex_unlock(&h->lock);
	while (h->n_threads > 0)
		(void)pthread_join(h->threads[--h->n_threads], NULL);
	(void)pthread_cond_destroy(&h->changed);
	(void)pthread_mutex_destroy(&h->lock);
}

/* One for each processor but that of the step. Signals are the loop's. */
static void start_threads(struct crew *h, unsigned n)
{
	sigset_t all, old;
	cpu_set_t cpus;
	unsigned most;

	if (h->n_threads >= n || sched_getaffinity(0, sizeof(cpus), &cpus) < 0)
		return;
	most = (unsigned)CPU_COUNT(&cpus) - 1;
	if (n > most)
		n = most;
	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &old);
	while (h->n_threads < n && pthread_create(&h->threads[h->n_threads], NULL, crew_main, h) == 0)
		h->n_threads++;
	(void)pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void crew_begin(struct crew *h, unsigned n, void (*work)(void *arg), void *arg)
{
	if (n > CREW_MAX)
		n = CREW_MAX;
	start_threads(h, n);
	(void)pthread_mutex_lock(&h->lock);
	h->work = work;
	h->arg = arg;
	h->n_wanted = n < h->n_threads ? n : h->n_threads;
	if (h->n_wanted > 0)
		(void)pthread_cond_broadcast(&h->changed);
	(void)pthread_mutex_unlock(&h->lock);
}

void crew_end(struct crew *h)
{
	(void)pthread_mutex_lock(&h->lock);
	h->n_wanted = 0;
	while (h->n_busy > 0)
		(void)pthread_cond_wait(&h->changed, &h->lock);
	(void)pthread_mutex_unlock(&h->lock);
}
