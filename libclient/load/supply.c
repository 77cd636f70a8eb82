#include "libclient/load/supply.h"

#include <errno.h>

void supply_init(struct supply *s, uint64_t offset, uint64_t provided)
{
	*s = (struct supply){.offset = offset, .provided = provided};
	(void)pthread_mutex_init(&s->lock, NULL);
	(void)pthread_cond_init(&s->grown, NULL);
}

void supply_deinit(struct supply *s)
{
	(void)pthread_cond_destroy(&s->grown);
	(void)pthread_mutex_destroy(&s->lock);
}

void supply_grow(struct supply *s, uint64_t provided)
{
	(void)pthread_mutex_lock(&s->lock);
	atomic_store(&s->provided, provided);
	(void)pthread_cond_broadcast(&s->grown);
	(void)pthread_mutex_unlock(&s->lock);
}

void supply_stop(struct supply *s)
{
	(void)pthread_mutex_lock(&s->lock);
	s->is_stopped = true;
	(void)pthread_cond_broadcast(&s->grown);
	(void)pthread_mutex_unlock(&s->lock);
}

int supply_await(struct supply *s, uint64_t end)
{
	int r;

	if (supply_has(s, end))
		return 0;
	(void)pthread_mutex_lock(&s->lock);
	while (!supply_has(s, end) && !s->is_stopped)
		(void)pthread_cond_wait(&s->grown, &s->lock);
	r = supply_has(s, end) ? 0 : -ECANCELED;
	(void)pthread_mutex_unlock(&s->lock);
	return r;
}
