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
		  !listen(listener, 1);
	if (is_good)
		atomic_store(&r->next_fd, dial(r, id, (rank + 1) % n));
	if (is_good)
		atomic_store(&r->previous_fd, answer(r, listener));
	(void)unlink(address.sun_path);
	(void)fd_close(listener);
	return is_good && ring_send(r, name, RING_WHO_SIZE) &&
	       ring_receive(r, ret_previous, RING_WHO_SIZE);
}

bool ring_send(struct ring *r, const void *data, size_t size)
{
	const char *at = data;

	while (size > 0) {
		ssize_t n = send(atomic_load(&r->next_fd), at, size, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return false;
		at += n;
		size -= (size_t)n;
	}
	return true;
}

bool ring_receive(struct ring *r, void *data, size_t size)
{
	char *at = data;

	while (size > 0) {
		ssize_t n = recv(atomic_load(&r->previous_fd), at, size, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		at += n;
		size -= (size_t)n;
	}
	return true;
}

void ring_cut(struct ring *r)
{
	atomic_store(&r->is_cut, true);
	(void)shutdown(atomic_load(&r->next_fd), SHUT_RDWR);
	(void)shutdown(atomic_load(&r->previous_fd), SHUT_RDWR);
}

void ring_await_cut(struct ring *r)
{
	while (!atomic_load(&r->is_cut))
		pass_a_moment();
}
