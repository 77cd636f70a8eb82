/*
 * The loop's thread starts closings and takes finished ones; a detached thread closes. Only the two lists under the
 * lock are shared.
 */
#include "bpf/closer.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "ipc/base/fd.h"

#define THREADS_MAX 32 /* per user */
#define UNREAD_MAX 16 /* packets */
#define END_MS 100 /* time to finish pending work at the end */

struct closer {
	struct source source; /* readable when closings are finished */
	pthread_mutex_t lock; /* protects running and finished */
	struct list running, finished;
	struct list waiting; /* closings without a thread yet; only the loop uses it */
	bool ends;
};

/*
 * Reads the request of a refused client. If it were unread at the close, the client would see a reset instead of the
 * reason. Descriptors in the request have no room: the kernel closes them, here.
 */
static void read_refused(int fd)
{
	char byte;

	for (int i = 0; i < UNREAD_MAX && recv(fd, &byte, sizeof(byte), MSG_DONTWAIT) > 0; i++)
		;
}

static void *closer_work(void *context)
{
	struct closing *closing = context;
	struct closer *c = closing->closer;

	if (closing->is_refused)
		read_refused(closing->fds[0]);
	for (unsigned i = 0; i < closing->n; i++)
		closing->fds[i] = fd_close(closing->fds[i]);
	(void)pthread_mutex_lock(&c->lock);
	list_remove(&closing->link);
	list_append(&c->finished, &closing->link);
	(void)eventfd_write(c->source.fd, 1); /* it is never full */
	(void)pthread_mutex_unlock(&c->lock);
	return NULL;
}

static bool has_thread_for(struct closer *c, uid_t uid)
{
	const struct closing *closing;
	unsigned n = 0;

	(void)pthread_mutex_lock(&c->lock);
	list_for_each(closing, &c->running, link)
		n += closing->uid == uid;
	(void)pthread_mutex_unlock(&c->lock);
	return n < THREADS_MAX;
}

/* Without a thread the loop closes it, which is rarely slow. */
static void closer_start(struct closer *c, struct closing *closing)
{
	pthread_t thread;

	(void)pthread_mutex_lock(&c->lock);
	list_append(&c->running, &closing->link);
	(void)pthread_mutex_unlock(&c->lock);
	if (pthread_create(&thread, NULL, closer_work, closing) == 0)
		(void)pthread_detach(thread);
	else
		(void)closer_work(closing);
}

static void start_those_that_wait(struct closer *c)
{
	struct closing *closing, *next;

	list_for_each_safe(closing, next, &c->waiting, link) {
		if (!has_thread_for(c, closing->uid))
			continue;
		list_remove(&closing->link);
		closer_start(c, closing);
	}
}

static struct closing *take_finished(struct closer *c)
{
	struct closing *closing;

	(void)pthread_mutex_lock(&c->lock);
	closing = list_first(&c->finished, struct closing, link);
	if (closing)
		list_remove(&closing->link);
	(void)pthread_mutex_unlock(&c->lock);
	return closing;
}

static void on_finished(struct source *s, uint32_t events)
{
	struct closer *c = container_of(s, struct closer, source);
	struct closing *closing;
	eventfd_t n;

	(void)events;
	(void)eventfd_read(s->fd, &n); /* the number does not matter: all of them are taken */
	while ((closing = take_finished(c)))
		closing->done(closing);
	start_those_that_wait(c);
}

int closer_new(struct loop *l, struct closer **ret)
{
	struct closer *c = calloc(1, sizeof(*c));
	int fd, r;

	if (!c)
		return -ENOMEM;
	fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = fd < 0 ? -errno : loop_add(l, &c->source, fd, EPOLLIN, on_finished);
	if (r < 0) {
		(void)fd_close(fd);
		free(c);
		return r;
	}
	(void)pthread_mutex_init(&c->lock, NULL); /* never fails */
	list_init(&c->running);
	list_init(&c->finished);
	list_init(&c->waiting);
	*ret = c;
	return 0;
}

void closer_close(struct closer *c, struct closing *closing, uid_t uid,
		  void (*done)(struct closing *closing))
{
	closing->closer = c;
	closing->uid = uid;
	closing->done = done;
	if (c->ends)
		done(closing);
	else if (has_thread_for(c, uid))
		closer_start(c, closing);
	else
		list_append(&c->waiting, &closing->link);
}

void closer_end(struct closer *c)
{
	c->ends = true;
}

static bool is_running(struct closer *c)
{
	bool result;

	(void)pthread_mutex_lock(&c->lock);
	result = !list_empty(&c->running);
	(void)pthread_mutex_unlock(&c->lock);
	return result;
}

void closer_free(struct closer *c)
{
	struct pollfd p = {.fd = c ? c->source.fd : -1, .events = POLLIN};
	struct closing *closing, *next;

	if (!c)
		return;
	list_for_each_safe(closing, next, &c->waiting, link) {
		list_remove(&closing->link);
		closing->done(closing);
	}
	do
		on_finished(&c->source, POLLIN);
	while (is_running(c) && poll(&p, 1, END_MS) > 0);
	if (is_running(c))
		return;
	on_finished(&c->source, POLLIN);
	loop_remove(&c->source);
	(void)fd_close(c->source.fd);
	(void)pthread_mutex_destroy(&c->lock);
	free(c);
}
