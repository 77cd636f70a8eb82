#include "server/sync/net/acceptor.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/base/log.h"

#define BACKLOG 1024
#define PAUSE_NS 100000000u
#define ROUND_MAX 16 /* connections accepted per turn */

static bool take_one(struct acceptor *a)
{
	struct address address = {.size = sizeof(address.at)};
	int fd = accept4(a->fd, (struct sockaddr *)&address.at, &address.size,
			 SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd >= 0) {
		a->fn(a->owner, fd, &address);
		return true;
	}
	if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM)
		/* The caller gave up. */
		return errno != EAGAIN && errno != EBADF && errno != EINVAL;
	log_warning("no new connections of nodes for the moment: %s", strerror(errno));
	loop_modify(&a->source, 0);
	timer_start(a->source.loop, &a->pause, num_now_ns() + PAUSE_NS);
	return false;
}

static void acceptor_on_call(struct source *source, uint32_t events)
{
	struct acceptor *a = container_of(source, struct acceptor, source);

	(void)events;
	for (unsigned i = 0; i < ROUND_MAX && take_one(a); i++)
		;
}

static void acceptor_on_pause_over(struct timer *timer)
{
	struct acceptor *a = container_of(timer, struct acceptor, pause);

	loop_modify(&a->source, EPOLLIN);
}

int acceptor_init(struct acceptor *a, struct loop *loop, const struct address *address,
		  void (*fn)(void *, int, const struct address *), void *owner)
{
	const int on = 1;
	int r = 0;

	*a = (struct acceptor){.fn = fn, .owner = owner};
	timer_init(&a->pause, acceptor_on_pause_over);
	a->fd = socket(address->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (a->fd < 0)
		return -errno;
	(void)setsockopt(a->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(a->fd, (const struct sockaddr *)&address->at, address->size) < 0 ||
	    listen(a->fd, BACKLOG) < 0)
		r = -errno;
	if (r == 0)
		r = loop_add(loop, &a->source, a->fd, EPOLLIN, acceptor_on_call);
	if (r < 0)
		a->fd = fd_close(a->fd);
	return r;
}

void acceptor_deinit(struct acceptor *a)
{
	timer_stop(&a->pause);
	loop_remove(&a->source);
	a->fd = fd_close(a->fd);
}
