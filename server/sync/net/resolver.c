#include "server/sync/net/resolver.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

#define THREADS_MAX 4

struct inquiry {
	_Atomic unsigned n_refs; /* the thread's and the lookup's: the last one frees it */
	/* Set by the thread after `error` and `found`, which then belong to the lookup. */
	_Atomic bool done;
	int event_fd; /* its own, since the resolver's may be closed before the thread ends */
	int error;
	struct addrinfo *found;
	char service[8];
	char host[];
};

static void inquiry_unref(struct inquiry *q)
{
	if (atomic_fetch_sub(&q->n_refs, 1) > 1)
		return;
	if (q->found)
		freeaddrinfo(q->found);
	(void)fd_close(q->event_fd);
	free(q);
}

static void *resolver_ask(void *argument)
{
	static const struct addrinfo hints = {
		.ai_family = AF_UNSPEC,
		.ai_socktype = SOCK_STREAM,
		.ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG,
	};
	struct inquiry *q = argument;

	q->error = getaddrinfo(q->host, q->service, &hints, &q->found);
	if (q->error)
		q->found = NULL;
	atomic_store(&q->done, true);
	(void)eventfd_write(q->event_fd, 1);
	inquiry_unref(q);
	return NULL;
}

static int start_thread(struct inquiry *q)
{
	pthread_attr_t attributes;
	pthread_t thread;
	int r = pthread_attr_init(&attributes);

	if (r != 0)
		return -r;
	(void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	r = pthread_create(&thread, &attributes, resolver_ask, q);
	(void)pthread_attr_destroy(&attributes);
	return -r;
}

static int resolver_begin(struct resolver *r, struct lookup *l)
{
	size_t size = strlen(l->host) + 1;
	struct inquiry *q = calloc(1, sizeof(*q) + size);
	int result = -ENOMEM;

	if (!q)
		return result;
	memcpy(q->host, l->host, size);
	(void)snprintf(q->service, sizeof(q->service), "%u", l->port);
	atomic_store(&q->n_refs, 2);
	q->event_fd = fcntl(r->event_fd, F_DUPFD_CLOEXEC, 0);
	result = q->event_fd < 0 ? -errno : start_thread(q);
	if (result < 0) {
		atomic_store(&q->n_refs, 1);
		inquiry_unref(q);
		return result;
	}
	l->inquiry = q;
	r->n_threads++;
	list_append(&r->running, &l->link);
	return 0;
}

static void begin_more(struct resolver *r)
{
	struct lookup *l;

	while (r->n_threads < THREADS_MAX && (l = list_first(&r->waiting, struct lookup, link))) {
		list_remove(&l->link);
		if (resolver_begin(r, l) < 0)
			l->fn(l, EAI_MEMORY, NULL);
	}
}

/* A finished lookup, or NULL. */
static struct lookup *find_done(struct resolver *r)
{
	struct lookup *l;

	list_for_each(l, &r->running, link)
		if (atomic_load(&l->inquiry->done))
			return l;
	return NULL;
}

static void resolver_on_answer(struct source *source, uint32_t events)
{
	struct resolver *r = container_of(source, struct resolver, source);
	struct lookup *l;
	eventfd_t n = 0;

	(void)events;
	if (eventfd_read(r->event_fd, &n) < 0)
		return;
	r->n_threads -= n < r->n_threads ? (unsigned)n : r->n_threads;
	while ((l = find_done(r))) {
		struct inquiry *q = take_ptr(l->inquiry);

		list_remove(&l->link);
		l->fn(l, q->error, q->found);
		inquiry_unref(q);
	}
	begin_more(r);
}

int resolver_init(struct resolver *r, struct loop *loop)
{
	int result;

	*r = (struct resolver){.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
	list_init(&r->waiting);
	list_init(&r->running);
	result = r->event_fd < 0
			 ? -errno
			 : loop_add(loop, &r->source, r->event_fd, EPOLLIN, resolver_on_answer);
	if (result < 0)
		r->event_fd = fd_close(r->event_fd);
	return result;
}

void resolver_deinit(struct resolver *r)
{
	assert(list_empty(&r->waiting) && list_empty(&r->running));
	loop_remove(&r->source);
	r->event_fd = fd_close(r->event_fd);
}

void lookup_init(struct lookup *l, const char *host, uint16_t port,
		 void (*fn)(struct lookup *, int, const struct addrinfo *))
{
	*l = (struct lookup){.host = host, .port = port, .fn = fn};
	list_init(&l->link);
}

void lookup_start(struct lookup *l, struct resolver *r)
{
	lookup_cancel(l);
	list_append(&r->waiting, &l->link);
	begin_more(r);
}

void lookup_cancel(struct lookup *l)
{
	list_remove(&l->link);
	if (l->inquiry)
		inquiry_unref(take_ptr(l->inquiry));
}
