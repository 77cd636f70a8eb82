/*
 * io_uring without liburing, as a library for Python: one write, and one registered buffer.
 */
#include <errno.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* The descriptor of a ring with one entry, or a negative errno. */
static int setup(struct io_uring_params *params)
{
	int fd = (int)syscall(SYS_io_uring_setup, 1, params);

	return fd < 0 ? -errno : fd;
}

/* Bytes written or a negative errno, from the completion; -ENOSYS if there is no io_uring. */
int uring_write(int fd, const void *data, uint32_t size)
{
	struct io_uring_params params = {0};
	struct io_uring_sqe *entries;
	int ring_fd = setup(&params);
	size_t cq_size;
	char *sq, *cq;
	int result;

	if (ring_fd < 0)
		return ring_fd == -EPERM ? -ENOSYS : ring_fd;
	cq_size = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
	sq = mmap(NULL, params.sq_off.array + sizeof(uint32_t), PROT_READ | PROT_WRITE, MAP_SHARED,
		  ring_fd, IORING_OFF_SQ_RING);
	cq = mmap(NULL, cq_size, PROT_READ | PROT_WRITE, MAP_SHARED, ring_fd, IORING_OFF_CQ_RING);
	entries = mmap(NULL, sizeof(*entries), PROT_READ | PROT_WRITE, MAP_SHARED, ring_fd,
		       IORING_OFF_SQES);
	if (sq == MAP_FAILED || cq == MAP_FAILED || entries == MAP_FAILED) {
		close(ring_fd);
		return -ENOMEM;
	}
	*entries = (struct io_uring_sqe){
		.opcode = IORING_OP_WRITE,
		.fd = fd,
		.addr = (uintptr_t)data,
		.len = size,
	};
	*(uint32_t *)(sq + params.sq_off.array) = 0;
	__atomic_store_n((uint32_t *)(sq + params.sq_off.tail), 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring_fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
		result = -errno;
	else
		result = ((struct io_uring_cqe *)(cq + params.cq_off.cqes))->res;
	close(ring_fd);
	return result;
}

/* A ring that has the memory registered, which pins it until the ring is closed; or a negative errno. */
int uring_register(void *data, size_t size)
{
	struct iovec buffer = {.iov_base = data, .iov_len = size};
	struct io_uring_params params = {0};
	int ring_fd = setup(&params);
	int r;

	if (ring_fd < 0)
		return ring_fd == -EPERM ? -ENOSYS : ring_fd;
	if (syscall(SYS_io_uring_register, ring_fd, IORING_REGISTER_BUFFERS, &buffer, 1) == 0)
		return ring_fd;
	r = -errno;
	close(ring_fd);
	return r;
}
