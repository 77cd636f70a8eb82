#include "server/base/discard.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/libc.h"
#include "ipc/base/num.h"

#define DELAY_NS 100000000u

static void discards_on_time(struct timer *timer);

void discards_init(struct discards *d, struct loop *l)
{
	*d = (struct discards){.loop = l};
	timer_init(&d->timer, discards_on_time);
}

/* A free place; NULL: all children still run. */
static pid_t *find_place(struct discards *d)
{
	pid_t *place = NULL;

	for (unsigned i = 0; i < DISCARD_CHILDREN_MAX; i++) {
		pid_t *child = &d->children[i];

		if (*child > 0 && waitpid(*child, NULL, WNOHANG) == *child)
			*child = 0;
		if (*child == 0)
			place = child;
	}
	return place;
}

static int compare(const void *a, const void *b)
{
	const int *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/*
 * The child: closes all but the sockets, in whose order they are sorted, so that it holds nothing else
 * should it hang, and exits once weightd has closed them. It makes system calls only.
 */
_Noreturn static void discard_child(const struct discards *d, int until_fd)
{
	int first = 0;
	char c;

	if (dup2(until_fd, STDIN_FILENO) == STDIN_FILENO) {
		first = STDIN_FILENO + 1;
		for (unsigned i = 0; i < d->n_fds; i++) {
			if (first < d->fds[i])
				(void)libc_close_range((unsigned)first, (unsigned)d->fds[i] - 1);
			first = d->fds[i] + 1;
		}
		(void)libc_close_range((unsigned)first, ~0u);
		while (read(STDIN_FILENO, &c, 1) < 0 && errno == EINTR)
			;
	}
	_exit(0);
}

static void close_all(struct discards *d)
{
	for (unsigned i = 0; i < d->n_fds; i++)
		(void)fd_close(d->fds[i]);
	d->n_fds = 0;
}

/* False: there is no child, and nothing was closed. */
static bool discards_run(struct discards *d)
{
	pid_t *place = find_place(d);
	int until[2];

	if (!place || pipe2(until, O_CLOEXEC) < 0)
		return false;
	qsort(d->fds, d->n_fds, sizeof(d->fds[0]), compare);
	*place = fork();
	if (*place == 0)
		discard_child(d, until[0]);
	if (*place > 0)
		close_all(d);
	else
		*place = 0;
	(void)fd_close(until[0]);
	(void)fd_close(until[1]);
	return d->n_fds == 0;
}

/* Goes on while there are children to wait for. */
static void discards_on_time(struct timer *timer)
{
	struct discards *d = container_of(timer, struct discards, timer);
	bool some = false;

	if (d->n_fds > 0)
		(void)discards_run(d);
	(void)find_place(d);
	for (unsigned i = 0; i < DISCARD_CHILDREN_MAX; i++)
		some |= d->children[i] > 0;
	if (some || d->n_fds > 0)
		timer_start(d->loop, &d->timer, num_now_ns() + DELAY_NS);
}

bool discards_add(struct discards *d, int fd)
{
	if (d->n_fds == DISCARDS_MAX && !discards_run(d))
		return false;
	d->fds[d->n_fds++] = fd;
	timer_start_once(d->loop, &d->timer, DELAY_NS);
	return true;
}

void discards_deinit(struct discards *d)
{
	timer_stop(&d->timer);
	if (d->n_fds > 0 && !discards_run(d))
		close_all(d);
	for (unsigned i = 0; i < DISCARD_CHILDREN_MAX; i++)
		if (d->children[i] > 0) {
			(void)kill(d->children[i], SIGKILL);
			(void)waitpid(d->children[i], NULL, WNOHANG);
		}
}
