#include "tests/fake/nccl/ring.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "tests/fake/state.h"

#define MOMENT_MS 2

static void pass_a_moment(void)
{
	(void)nanosleep(&(struct timespec){.tv_nsec = MOMENT_MS * 1000000}, NULL);
}

static void address_of(const char *id, int rank, struct sockaddr_un *ret)
{
	const char *folder = getenv("FAKE_NCCL_STATE");

	*ret = (struct sockaddr_un){.sun_family = AF_UNIX};
	(void)snprintf(ret->sun_path, sizeof(ret->sun_path), "%.80s/%.16s-%d",
		       folder ? folder : state_folder(), id, rank % 1000);
}

/* Once it listens. */
static int dial(struct ring *r, const char *id, int rank)
{
	struct sockaddr_un address;

	address_of(id, rank, &address);
	while (!atomic_load(&r->is_cut)) {
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (!connect(fd, (struct sockaddr *)&address, sizeof(address)))
			return fd;
		(void)fd_close(fd);
		pass_a_moment();
	}
	return -1;
}

static int answer(struct ring *r, int listener)
{
	struct pollfd p = {.fd = listener, .events = POLLIN};

	while (!atomic_load(&r->is_cut))
		if (poll(&p, 1, MOMENT_MS) > 0)
			return accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	return -1;
}

void ring_init(struct ring *r)
{
	for (int i = 0; i < RING_RANKS_MAX; i++)
		atomic_store(&r->fds[i], -1);
}

static bool send_all(int fd, const void *data, size_t size)
{
	const char *at = data;

	while (size > 0) {
		ssize_t n = send(fd, at, size, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return false;
		at += n;
		size -= (size_t)n;
	}
	return true;
}

static bool receive_all(int fd, void *data, size_t size)
{
	char *at = data;

	while (size > 0) {
		ssize_t n = recv(fd, at, size, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		at += n;
		size -= (size_t)n;
	}
	return true;
}

/* To those before it, which learn its rank; then from those behind it. */
static bool connect_all(struct ring *r, const char *id, int listener)
{
	for (int i = 0; i < r->rank; i++) {
		atomic_store(&r->fds[i], dial(r, id, i));
		if (!send_all(atomic_load(&r->fds[i]), &r->rank, sizeof(r->rank)))
			return false;
	}
	for (int i = r->rank + 1; i < r->n; i++) {
		int fd = answer(r, listener), rank;

		if (!receive_all(fd, &rank, sizeof(rank)) || rank <= r->rank || rank >= r->n)
			return false;
		atomic_store(&r->fds[rank], fd);
	}
	return true;
}

static int next_of(const struct ring *r)
{
	return atomic_load(&r->fds[(r->rank + 1) % r->n]);
}

static int previous_of(const struct ring *r)
{
	return atomic_load(&r->fds[(r->rank + r->n - 1) % r->n]);
}

bool ring_form(struct ring *r, const char *id, int rank, int n, const char name[RING_WHO_SIZE],
	       char ret_previous[RING_WHO_SIZE])
{
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un address;
	bool is_good;

	r->rank = rank;
	r->n = n;
	address_of(id, rank, &address);
	is_good = !bind(listener, (struct sockaddr *)&address, sizeof(address)) &&
		  !listen(listener, n) && connect_all(r, id, listener);
	(void)unlink(address.sun_path);
	(void)fd_close(listener);
	return is_good && (n == 1 || (ring_send(r, name, RING_WHO_SIZE) &&
				      ring_receive(r, ret_previous, RING_WHO_SIZE)));
}

bool ring_send(struct ring *r, const void *data, size_t size)
{
	return send_all(next_of(r), data, size);
}

bool ring_receive(struct ring *r, void *data, size_t size)
{
	return receive_all(previous_of(r), data, size);
}

/* Transfers with one rank, in one direction, go one after the other. */
static bool has_turn(const struct ring_transfer *transfers, size_t i)
{
	for (size_t k = 0; k < i; k++)
		if (transfers[k].peer == transfers[i].peer &&
		    transfers[k].sends == transfers[i].sends &&
		    transfers[k].done < transfers[k].size)
			return false;
	return transfers[i].done < transfers[i].size;
}

static bool move(struct ring *r, struct ring_transfer *t)
{
	const int fd = atomic_load(&r->fds[t->peer]);
	char *at = t->data + t->done;
	const size_t left = t->size - t->done;
	ssize_t n = t->sends ? send(fd, at, left, MSG_NOSIGNAL | MSG_DONTWAIT)
			     : recv(fd, at, left, MSG_DONTWAIT);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	t->done += (size_t)n;
	return n > 0;
}

bool ring_move_some(struct ring *r, struct ring_transfer *transfers, size_t n)
{
	struct pollfd polled[2 * RING_RANKS_MAX];
	size_t of[2 * RING_RANKS_MAX], n_polled = 0;

	for (size_t i = 0; i < n && n_polled < 2 * RING_RANKS_MAX; i++) {
		if (!has_turn(transfers, i))
			continue;
		polled[n_polled] = (struct pollfd){.fd = atomic_load(&r->fds[transfers[i].peer]),
						   .events = transfers[i].sends ? POLLOUT : POLLIN};
		of[n_polled++] = i;
	}
	if (atomic_load(&r->is_cut))
		return false;
	(void)poll(polled, n_polled, MOMENT_MS);
	for (size_t i = 0; i < n_polled; i++)
		if (polled[i].revents && !move(r, &transfers[of[i]]))
			return false;
	return true;
}

void ring_cut(struct ring *r)
{
	atomic_store(&r->is_cut, true);
	for (int i = 0; i < r->n && i < RING_RANKS_MAX; i++)
		(void)shutdown(atomic_load(&r->fds[i]), SHUT_RDWR);
}

void ring_await_cut(struct ring *r)
{
	while (!atomic_load(&r->is_cut))
		pass_a_moment();
}
