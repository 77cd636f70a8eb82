#include "bpf/base/timer.h"

#include <errno.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/fd.h"

#define SECOND_NS 1000000000u

int timer_open(struct timer *t, int loop_fd)
{
	int r;

	t->waiter.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (t->waiter.fd < 0)
		return -errno;
	r = loop_add(loop_fd, &t->waiter);
	if (r < 0)
		t->waiter.fd = fd_close(t->waiter.fd);
	return r;
}

void timer_close(struct timer *t, int loop_fd)
{
	if (t->waiter.fd < 0)
		return;
	loop_remove(loop_fd, &t->waiter); /* the loop may go on without it */
	t->waiter.fd = fd_close(t->waiter.fd);
}

void timer_begin(struct timer *t, uint64_t ns)
{
	const struct itimerspec at = {.it_value = {.tv_sec = (time_t)(ns / SECOND_NS),
						   .tv_nsec = (long)(ns % SECOND_NS)}};

	if (t->runs)
		return;
	(void)timerfd_settime(t->waiter.fd, 0, &at, NULL); /* nothing of it can be wrong */
	t->runs = true;
}

bool timer_end(struct timer *t)
{
	uint64_t expirations;

	if (read(t->waiter.fd, &expirations, sizeof(expirations)) < 0)
		return false;
	t->runs = false;
	return true;
}
