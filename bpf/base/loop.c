/*
 * One event at a time, so that what is called may remove and free whichever it likes.
 */
#include "bpf/base/loop.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>

int loop_open(int *ret_fd)
{
	int fd = epoll_create1(EPOLL_CLOEXEC);

	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

int loop_add(int loop_fd, struct waiter *w)
{
	struct epoll_event e = {.events = EPOLLIN, .data.ptr = w};

	return epoll_ctl(loop_fd, EPOLL_CTL_ADD, w->fd, &e) < 0 ? -errno : 0;
}

void loop_modify(int loop_fd, struct waiter *w, uint32_t events)
{
	struct epoll_event e = {.events = events, .data.ptr = w};
	int r = epoll_ctl(loop_fd, EPOLL_CTL_MOD, w->fd, &e);

	assert(r == 0);
}

void loop_remove(int loop_fd, struct waiter *w)
{
	(void)epoll_ctl(loop_fd, EPOLL_CTL_DEL, w->fd, NULL); /* it may never have been added */
}

int loop_turn(int loop_fd)
{
	struct epoll_event e;
	int n = epoll_wait(loop_fd, &e, 1, -1);

	if (n < 0)
		return errno == EINTR ? 0 : -errno;
	if (n > 0) {
		struct waiter *w = e.data.ptr;

		w->ready(w, e.events);
	}
	return 0;
}
