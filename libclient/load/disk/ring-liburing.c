/* A ring of io_uring, by liburing. */
#include <errno.h>
#include <liburing.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "libclient/load/disk/ring.h"

struct ring {
	struct io_uring io;
	bool is_disabled; /* until ring_begin(): the thread that enables it is its only one */
};

/*
 * With a single issuer, results are made ready when that thread waits for them, and interrupt it at no other time (Linux
 * 6.1). Older kernels refuse the flags.
 */
#if defined IORING_SETUP_SINGLE_ISSUER && defined IORING_SETUP_DEFER_TASKRUN
#define BEST (IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_R_DISABLED)
#else
#define BEST 0u
#endif

int ring_new(unsigned n, struct ring **ret)
{
	struct ring *ring = calloc(1, sizeof(*ring));
	int r;

	if (!ring)
		return -ENOMEM;
	r = io_uring_queue_init(n, &ring->io, BEST);
	ring->is_disabled = r == 0 && BEST != 0;
	if (r == -EINVAL)
		r = io_uring_queue_init(n, &ring->io, 0);
	if (r < 0) {
		free(ring);
		return r;
	}
	*ret = ring;
	return 0;
}

struct ring *ring_free(struct ring *ring)
{
	if (ring)
		io_uring_queue_exit(&ring->io);
	free(ring);
	return NULL;
}

/* liburing 2.3 declares io_uring_enable_rings() and does not export it. */
int ring_begin(struct ring *ring)
{
	if (!ring->is_disabled)
		return 0;
	return syscall(__NR_io_uring_register, ring->io.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL,
		       0) < 0
		       ? -errno
		       : 0;
}

static int ring_submit(struct ring *ring, unsigned n_wait)
{
	int r;

	do
		r = io_uring_submit_and_wait(&ring->io, n_wait);
	while (r == -EINTR);
	return r < 0 ? r : 0;
}

int ring_read(struct ring *ring, const struct ring_read *read)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->io);

	if (!sqe) {
		int r = ring_submit(ring, 0);

		if (r < 0)
			return r;
		sqe = io_uring_get_sqe(&ring->io);
		if (!sqe)
			return -EBUSY;
	}
	io_uring_prep_read(sqe, read->fd, read->to, read->size, read->offset);
	io_uring_sqe_set_data(sqe, read->tag);
	return 0;
}

int ring_wait(struct ring *ring, void **ret_tag, int *ret_result)
{
	struct io_uring_cqe *cqe = NULL;
	int r = 0;

	if (io_uring_cq_ready(&ring->io) == 0)
		r = ring_submit(ring, 1);
	else if (io_uring_sq_ready(&ring->io) > 0)
		r = ring_submit(ring, 0);
	if (r == 0)
		do
			r = io_uring_wait_cqe(&ring->io, &cqe);
		while (r == -EINTR);
	if (r < 0)
		return r;
	*ret_tag = io_uring_cqe_get_data(cqe);
	*ret_result = cqe->res;
	io_uring_cqe_seen(&ring->io, cqe);
	return 0;
}
