/*
 * Preloaded into a loader: changes what io_uring does. With the environment:
 *
 *	RING_DO		"eio", "refuse" (as a file system without direct reads), "end" (as a file that was cut) or "odd"
 *			(a result at no multiple of the alignment): the result of read RING_CALL, or of all if that is 0;
 *			"trickle": every read is short, every third is interrupted;
 *			"pause": before the submission RING_CALL, writes "1" to the FIFO GATE_READY, and waits for a byte
 *			from the FIFO GATE_GO
 *	RING_CALL	which, from 1
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRICKLE 65536u /* bytes at most: a multiple of any alignment */

typedef int submit_fn(struct io_uring *, unsigned);

int io_uring_submit_and_wait(struct io_uring *ring, unsigned n);

static unsigned n_submits, n_results; /* one thread has the ring */

static int is_action(const char *action)
{
	const char *wanted = getenv("RING_DO");

	return wanted && !strcmp(wanted, action);
}

static void pause_here(void)
{
	int ready = open(getenv("GATE_READY"), O_WRONLY | O_CLOEXEC);
	int go = open(getenv("GATE_GO"), O_RDONLY | O_CLOEXEC); /* the test holds both open */
	char byte;

	if (write(ready, "1", 1) != 1)
		abort();
	while (read(go, &byte, 1) < 0 && errno == EINTR)
		;
	(void)close(ready);
	(void)close(go);
}

/* Those that are queued, which the kernel has not seen. */
static void shorten(struct io_uring *ring)
{
	for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; i++) {
		struct io_uring_sqe *sqe = &ring->sq.sqes[i & *ring->sq.kring_mask];

		if (sqe->len > TRICKLE)
			sqe->len = TRICKLE;
	}
}

static void change(struct io_uring_cqe *cqe, unsigned call)
{
	const char *at = getenv("RING_CALL");

	if (is_action("trickle") && call % 3 == 0)
		cqe->res = -EINTR;
	if (at && atoi(at) != 0 && call != (unsigned)atoi(at))
		return;
	if (is_action("eio"))
		cqe->res = -EIO;
	else if (is_action("refuse"))
		cqe->res = -EINVAL;
	else if (is_action("end"))
		cqe->res = 0;
	else if (is_action("odd") && cqe->res > 1001)
		cqe->res = 1001;
}

int io_uring_submit_and_wait(struct io_uring *ring, unsigned n)
{
	submit_fn *next = (submit_fn *)dlsym(RTLD_NEXT, "io_uring_submit_and_wait");
	const char *at = getenv("RING_CALL");
	int r;

	if (is_action("trickle"))
		shorten(ring);
	if (is_action("pause") && at && ++n_submits == (unsigned)atoi(at))
		pause_here();
	r = next(ring, n);
	while (n_results != __atomic_load_n(ring->cq.ktail, __ATOMIC_ACQUIRE)) {
		change(&ring->cq.cqes[n_results & *ring->cq.kring_mask], n_results + 1);
		n_results++;
	}
	return r;
}
