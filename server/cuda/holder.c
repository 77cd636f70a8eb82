#include "server/cuda/holder.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/cuda/allocation.h"

/*
 * Smaller allocations share a block of that size, and the handle leads to all of it; its start then is not
 * the allocation's (CUDA C++ Programming Guide, "Interprocess Communication").
 */
#define GRANULARITY (2 * MIB)

#define IDLE_S_DEFAULT 10 /* until weightd has asked */

struct holding {
	struct list link; /* holder::holdings */
	struct gpu *gpu;
	cu_ptr at;
	int fd; /* the pipe's writing end */
};

void holder_init(struct holder *h, struct gpus *g)
{
	*h = (struct holder){.gpus = g, .idle_s = IDLE_S_DEFAULT};
	list_init(&h->holdings);
}

/* Mode 0400: another user that has the reading end cannot open it for writing. */
static int make_pipe(int *ret_reader, int *ret_writer)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	if (fchmod(ends[0], 0400) < 0) {
		int r = -errno;

		(void)fd_close(ends[0]);
		(void)fd_close(ends[1]);
		return r;
	}
	*ret_reader = ends[0];
	*ret_writer = ends[1];
	return 0;
}

/* The memory is in `ret`, also when what follows fails. */
static cu_result make_memory(const struct cuda_driver *d, size_t size, cu_ptr *ret,
			     struct cu_ipc_handle *ret_handle, const char **ret_what)
{
	cu_result r = d->mem_alloc(ret, size);

	*ret_what = "it provides no memory";
	if (r != CU_OK)
		return r;
	*ret_what = "its memory cannot be filled with zeros";
	r = d->memset8(*ret, 0, size);
	if (r == CU_OK)
		r = d->ctx_synchronize();
	if (r != CU_OK)
		return r;
	*ret_what =
		"its memory has no cudaIpcMemHandle_t; use the default kind (without --handle ipc)";
	return d->ipc_get(ret_handle, *ret);
}

static void holding_free(struct holder *h, struct holding *a)
{
	char why[CUDA_WHY_SIZE];
	cu_result r;

	if (a->at) {
		if (gpu_enter(h->gpus, a->gpu, why) == 0) {
			r = h->gpus->driver->mem_free(a->at);
			gpu_leave(h->gpus);
			if (r != CU_OK)
				(void)gpu_explain(h->gpus, "memory cannot be freed", r, why);
		} else {
			r = CU_INVALID_CONTEXT;
		}
		if (r != CU_OK)
			fprintf(stderr, "weightd-cuda: %s; it is freed when this process ends\n",
				why);
	}
	(void)fd_close(a->fd);
	free(a);
}

static int holder_allocate(struct holder *h, struct gpu *gpu, struct allocator_reply *ret,
			   int *ret_fd)
{
	struct holding *a = calloc(1, sizeof(*a));
	struct cu_ipc_handle handle = {0};
	cleanup(fd_closep) int reader = -1;
	const char *what;
	cu_result result;
	int r;

	if (!a)
		return -ENOMEM;
	*a = (struct holding){.gpu = gpu, .fd = -1};
	r = make_pipe(&reader, &a->fd);
	if (r < 0) {
		(void)snprintf(ret->why, sizeof(ret->why), "no pipe: %s", strerror(-r));
	} else {
		result = make_memory(h->gpus->driver, ret->needed, &a->at, &handle, &what);
		if (result != CU_OK)
			r = gpu_explain(h->gpus, what, result, ret->why);
	}
	if (r < 0) {
		holding_free(h, a);
		return r;
	}
	memcpy(ret->handle, handle.bytes, sizeof(ret->handle));
	list_append(&h->holdings, &a->link);
	h->n++;
	*ret_fd = take_fd(reader);
	return 0;
}

void holder_make(struct holder *h, struct gpu *gpu, const struct allocator_request *q,
		 struct allocator_reply *ret, int *ret_fd)
{
	h->idle_s = q->idle_s;
	memcpy(ret->name, gpu->name, sizeof(ret->name));
	ret->error = gpu_enter(h->gpus, gpu, ret->why);
	if (ret->error < 0)
		return;
	ret->error = allocation_admit(h->gpus, GRANULARITY, q, ret);
	if (ret->error == 0)
		ret->error = holder_allocate(h, gpu, ret, ret_fd);
	gpu_leave(h->gpus);
}

/* True when some were there. */
static bool free_unwanted(struct holder *h, const struct pollfd *polled)
{
	struct holding *a, *tmp;
	unsigned before = h->n;

	list_for_each_safe(a, tmp, &h->holdings, link) {
		if (!(polled++->revents & POLLERR)) /* all reading ends are closed */
			continue;
		list_remove(&a->link);
		h->n--;
		holding_free(h, a);
	}
	return h->n < before;
}

static int timeout_ms(const struct holder *h, int fd)
{
	if (h->n > 0)
		return -1;
	return fd >= 0 && h->idle_s < INT32_MAX / 1000 ? (int)h->idle_s * 1000 : 0;
}

int holder_wait(struct holder *h, int fd)
{
	for (;;) {
		cleanup(freep) struct pollfd *p = calloc(h->n + 1, sizeof(*p));
		struct holding *a;
		unsigned n = 0;
		int r;

		if (!p)
			return -ENOMEM;
		p[n++] = (struct pollfd){.fd = fd, .events = POLLIN};
		list_for_each(a, &h->holdings, link)
			p[n++] = (struct pollfd){.fd = a->fd}; /* POLLERR is always reported */
		r = poll(p, n, timeout_ms(h, fd));
		if (r < 0 && errno != EINTR)
			return -errno;
		if (r == 0)
			return 0;
		if (r > 0 && !free_unwanted(h, p + 1) && p[0].revents)
			return 1;
	}
}
