/*
 * A client owns its watches. That of a process ends with the process, by its pidfd.
 */
#include "bpf/watch.h"

#include <stdlib.h>

#include "bpf/tracer.h"
#include "ipc/base/fd.h"

void watch_end(struct watch *w)
{
	struct meter *m = w->client->tracer->collector.meter;

	if (w->pid)
		m->kind->unwatch(m, w->pid);
	else
		m->kind->unwatch_cgroup(m, w->cgroup);
}

void watch_free(struct watch *w)
{
	watch_end(w);
	loop_remove(&w->source);
	(void)fd_close(w->source.fd);
	list_remove(&w->link);
	w->client->n_watches--;
	free(w);
}
