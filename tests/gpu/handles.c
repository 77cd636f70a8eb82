#include "tests/gpu/handles.h"

#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "tests/gpu/reply.h"

#define GRANULARITY ((size_t)2 << 20)
#define N_FDS_MAX 128 /* in one message; the kernel takes 253 */

/* Made by this process, and living as long as it. */
static struct {
	int *fds;
	size_t n;
	int listen_fd;
} made = {.listen_fd = -1};

static int fail(struct gpu *gpu, cu_result r)
{
	reply_result(gpu->cuda, r);
	return -1;
}

void handles_make_ipc(struct gpu *gpu, size_t n, uint64_t size, const char *path)
{
	FILE *f = fopen(path, "we");
	cu_result r = CU_OK;

	if (!f) {
		reply_failed(-1, "%s: %m", path);
		return;
	}
	for (size_t i = 0; i < n && !r; i++) {
		struct cu_ipc_handle h;
		cu_ptr p;

		r = gpu->cuda->mem_alloc(&p, size);
		if (!r)
			r = gpu->cuda->ipc_get(&h, p);
		if (!r)
			(void)fwrite(&h, sizeof(h), 1, f);
	}
	(void)fclose(f);
	reply_result(gpu->cuda, r);
}

void handles_time_ipc(struct gpu *gpu, const char *path)
{
	size_t n = 0, n_max = 1 << 20;
	cleanup(freep) cu_ptr *opened = calloc(n_max, sizeof(*opened));
	FILE *f = fopen(path, "re");
	struct cu_ipc_handle h;
	uint64_t took = 0;
	cu_result r = CU_OK;

	while (f && opened && !r && n < n_max && fread(&h, sizeof(h), 1, f) == 1) {
		uint64_t begin = now_ns();

		r = gpu->cuda->ipc_open(&opened[n], h, CU_IPC_LAZY_PEER_ACCESS);
		took += now_ns() - begin;
		n += !r;
	}
	if (f)
		(void)fclose(f);
	for (size_t i = 0; i < n; i++)
		(void)gpu->cuda->ipc_close(opened[i]);
	if (r)
		(void)fail(gpu, r);
	else
		reply_done(", \"n\": %zu, \"ns\": %lu", n, took);
}

static int make_one(struct gpu *gpu, uint64_t size, int *ret_fd)
{
	struct cu_allocation like = {
		.type = CU_ALLOCATION_PINNED,
		.handle_types = CU_HANDLE_POSIX_FD,
		.location = {CU_LOCATION_DEVICE, gpu->ordinal},
	};
	cu_handle h;
	cu_result r = gpu->cuda->mem_create(&h, size, &like, 0);

	if (r)
		return fail(gpu, r);
	r = gpu->cuda->mem_export(ret_fd, h, CU_HANDLE_POSIX_FD, 0);
	(void)gpu->cuda->mem_release(h); /* the descriptor holds the memory */
	return r ? fail(gpu, r) : 0;
}

static struct sockaddr_un address_of(const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};

	(void)snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	return a;
}

void handles_make_vmm(struct gpu *gpu, size_t n, uint64_t size, const char *path)
{
	struct sockaddr_un a = address_of(path);

	for (size_t i = 0; i < made.n; i++)
		(void)fd_close(made.fds[i]);
	free(made.fds);
	made.listen_fd = fd_close(made.listen_fd);
	made.n = 0;
	made.fds = calloc(n, sizeof(*made.fds));
	for (; made.fds && made.n < n; made.n++)
		if (make_one(gpu, size, &made.fds[made.n]) < 0)
			return;
	made.listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (made.listen_fd < 0 || bind(made.listen_fd, (struct sockaddr *)&a, sizeof(a)) < 0 ||
	    listen(made.listen_fd, 1) < 0)
		reply_failed(-1, "%s: %m", path);
	else
		reply_ok();
}

union control {
	struct cmsghdr header;
	char space[CMSG_SPACE(N_FDS_MAX * sizeof(int))];
};

static int send_fds(int to, const int *fds, size_t n)
{
	union control control = {.header = {
					 .cmsg_level = SOL_SOCKET,
					 .cmsg_type = SCM_RIGHTS,
					 .cmsg_len = CMSG_LEN(n * sizeof(int)),
				 }};
	char nothing = 0;
	struct iovec v = {.iov_base = &nothing, .iov_len = 1};
	struct msghdr m = {
		.msg_iov = &v,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = CMSG_SPACE(n * sizeof(int)),
	};

	memcpy(CMSG_DATA(&control.header), fds, n * sizeof(int));
	return sendmsg(to, &m, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

void handles_serve_vmm(struct gpu *gpu)
{
	cleanup(fd_closep) int to = accept4(made.listen_fd, NULL, NULL, SOCK_CLOEXEC);

	(void)gpu;
	for (size_t i = 0; i < made.n; i += N_FDS_MAX) {
		size_t n = made.n - i < N_FDS_MAX ? made.n - i : N_FDS_MAX;

		if (send_fds(to, made.fds + i, n) < 0) {
			reply_failed(-1, "cannot send: %m");
			return;
		}
	}
	reply_ok();
}

/* How many came; -1. */
static ssize_t receive_fds(int from, int *ret_fds)
{
	union control control;
	char nothing;
	struct iovec v = {.iov_base = &nothing, .iov_len = 1};
	struct msghdr m = {
		.msg_iov = &v,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	size_t n;

	if (recvmsg(from, &m, MSG_CMSG_CLOEXEC) != 1 || m.msg_controllen < sizeof(struct cmsghdr))
		return -1;
	n = (control.header.cmsg_len - CMSG_LEN(0)) / sizeof(int);
	memcpy(ret_fds, CMSG_DATA(&control.header), n * sizeof(int));
	return (ssize_t)n;
}

/* As the library does: where the driver has no read-only mappings, the range becomes writable. */
static cu_result allow_reads(struct gpu *gpu, cu_ptr at, uint64_t size)
{
	struct cu_access access = {{CU_LOCATION_DEVICE, gpu->ordinal}, CU_ACCESS_READ};
	cu_result r = gpu->cuda->mem_set_access(at, size, &access, 1);

	if (r != CU_NOT_SUPPORTED && r != CU_INVALID_VALUE)
		return r;
	access.flags = CU_ACCESS_READWRITE;
	return gpu->cuda->mem_set_access(at, size, &access, 1);
}

/* Each into its place in one reserved range. */
static cu_result map_one(struct gpu *gpu, int fd, cu_ptr at, uint64_t size)
{
	const struct cuda_driver *cuda = gpu->cuda;
	cu_handle h;
	cu_result r;

	r = cuda->mem_import(&h, (void *)(intptr_t)fd, CU_HANDLE_POSIX_FD);
	if (r)
		return r;
	r = cuda->mem_map(at, size, 0, h, 0);
	(void)cuda->mem_release(h);
	return r ? r : allow_reads(gpu, at, size);
}

void handles_time_vmm(struct gpu *gpu, size_t n, uint64_t size, const char *path)
{
	cleanup(fd_closep) int from = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	cleanup(freep) int *fds = calloc(n + N_FDS_MAX, sizeof(*fds));
	struct sockaddr_un a = address_of(path);
	size_t got = 0, mapped = 0;
	uint64_t begin = now_ns(), took;
	cu_ptr base = 0;
	cu_result r;

	if (!fds || from < 0 || connect(from, (struct sockaddr *)&a, sizeof(a)) < 0) {
		reply_failed(-1, "%s: %m", path);
		return;
	}
	while (got < n) {
		ssize_t more = receive_fds(from, fds + got);

		if (more <= 0)
			break;
		got += (size_t)more;
	}
	r = gpu->cuda->mem_reserve(&base, n * size, 0, 0, 0);
	while (!r && mapped < got) {
		r = map_one(gpu, fds[mapped], base + mapped * size, size);
		mapped += !r;
	}
	took = now_ns() - begin;
	for (size_t i = 0; i < mapped; i++)
		(void)gpu->cuda->mem_unmap(base + i * size, size);
	(void)gpu->cuda->mem_unreserve(base, n * size);
	for (size_t i = 0; i < got; i++)
		(void)fd_close(fds[i]);
	if (r || got < n)
		reply_failed(r, "%zu of %zu handles came, %zu could be mapped", got, n, mapped);
	else
		reply_done(", \"n\": %zu, \"ns\": %lu", n, took);
}

static cu_result time_remaps(struct gpu *gpu, cu_handle h, uint64_t size, size_t n, uint64_t *ret_ns)
{
	const struct cuda_driver *cuda = gpu->cuda;
	cu_ptr at;
	cu_result r = cuda->mem_reserve(&at, size, 0, 0, 0);

	if (r)
		return r;
	r = cuda->mem_map(at, size, 0, h, 0);
	if (!r)
		r = allow_reads(gpu, at, size);
	for (size_t i = 0; i < n && !r; i++) {
		uint64_t begin = now_ns();

		if (!(r = cuda->mem_unmap(at, size)) && !(r = cuda->mem_map(at, size, 0, h, 0)))
			r = allow_reads(gpu, at, size);
		ret_ns[i] = now_ns() - begin;
	}
	(void)cuda->mem_unmap(at, size);
	(void)cuda->mem_unreserve(at, size);
	return r;
}

void handles_time_remap(struct gpu *gpu, uint64_t size, size_t n)
{
	cleanup(freep) uint64_t *ns = calloc(n + 1, sizeof(*ns));
	struct cu_allocation like = {
		.type = CU_ALLOCATION_PINNED,
		.handle_types = CU_HANDLE_POSIX_FD,
		.location = {CU_LOCATION_DEVICE, gpu->ordinal},
	};
	cu_handle h;
	cu_result r = ns ? gpu->cuda->mem_create(&h, size, &like, 0) : CU_OUT_OF_MEMORY;

	if (!r) {
		r = time_remaps(gpu, h, size, n, ns);
		(void)gpu->cuda->mem_release(h);
	}
	if (r) {
		(void)fail(gpu, r);
		return;
	}
	reply_open();
	reply_list("ns", ns, n);
	reply_close();
}

void handles_poll(struct gpu *gpu)
{
	cleanup(fd_closep) int fd = -1, epoll = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event e = {0}, got = {0};
	struct pollfd p = {0};
	struct stat st = {0};
	int can_watch;

	if (make_one(gpu, GRANULARITY, &fd) < 0)
		return;
	p.fd = fd;
	(void)poll(&p, 1, 0);
	can_watch = epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e) == 0;
	(void)epoll_wait(epoll, &got, 1, 0);
	(void)fstat(fd, &st);
	reply_done(", \"poll\": %d, \"can_epoll\": %s, \"epoll\": %u, \"mode\": %u", p.revents,
		   can_watch ? "true" : "false", got.events, st.st_mode);
}

/*
 * True if the memory behind the handle begins with `word`; changes it at an offset, if not
 * negative, then.
 */
static bool is_it(struct gpu *gpu, cu_handle h, size_t size, uint32_t word, int64_t offset)
{
	struct cu_access access = {{CU_LOCATION_DEVICE, gpu->ordinal}, CU_ACCESS_READWRITE};
	const struct cuda_driver *cuda = gpu->cuda;
	uint32_t first = 0, new = ~word;
	bool found = false;
	cu_ptr p;

	if (cuda->mem_reserve(&p, size, 0, 0, 0))
		return false;
	if (!cuda->mem_map(p, size, 0, h, 0)) {
		found = !cuda->mem_set_access(p, size, &access, 1) &&
			!cuda->memcpy_to_host(&first, p, sizeof(first)) && first == word;
		if (found && offset >= 0)
			found = !cuda->memcpy_to_device(p + (cu_ptr)offset, &new, sizeof(new)) &&
				!cuda->ctx_synchronize(); /* else it may be on its way */
		(void)cuda->mem_unmap(p, size);
	}
	(void)cuda->mem_unreserve(p, size);
	return found;
}

/* Replies. */
static void take(struct gpu *gpu, int pid, uint32_t word, int64_t offset, uint64_t data_size,
		 bool keep)
{
	cleanup(fd_closep) int process = (int)syscall(SYS_pidfd_open, pid, 0);
	/* Behind the data stand 16 bytes for each MiB, and the whole is in units of 2 MiB. */
	size_t size = (data_size + (data_size >> 16) + 16 + GRANULARITY - 1) & ~(GRANULARITY - 1);
	bool done = false;
	int n_taken = 0;

	/* Handles have no name to go by: all descriptors that there are. */
	for (int number = 3; number < 4096 && process >= 0 && !done; number++) {
		cleanup(fd_closep) int fd = (int)syscall(SYS_pidfd_getfd, process, number, 0);
		cu_handle h;

		n_taken += fd >= 0;
		if (fd < 0 || gpu->cuda->mem_import(&h, (void *)(intptr_t)fd, CU_HANDLE_POSIX_FD))
			continue;
		done = is_it(gpu, h, size, word, offset);
		if (!done || !keep)
			(void)gpu->cuda->mem_release(h);
	}
	if (done)
		reply_ok();
	else
		reply_failed(-1, "none of %d descriptors of process %d leads to that memory",
			     n_taken, pid);
}

void handles_tamper(struct gpu *gpu, int pid, uint32_t word, uint64_t offset, uint64_t data_size)
{
	take(gpu, pid, word, (int64_t)offset, data_size, false);
}

void handles_steal(struct gpu *gpu, int pid, uint32_t word, uint64_t data_size)
{
	take(gpu, pid, word, -1, data_size, true);
}
