#include "tests/fake/allocation.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "tests/fake/device.h"
#include "tests/fake/state.h"

#define PAGE 4096u
#define MAGIC 0x75706745656b6146ull /* "FakeEgpu" */
#define FRESH 0xa5 /* content of memory that was never written */

/* Behind the bytes. */
struct about {
	uint64_t magic, size;
	int32_t kind, gpu, handle_types, rdma_capable;
	char name[ALLOCATION_NAME_SIZE];
};

static uint64_t page_aligned(uint64_t size)
{
	return (size + PAGE - 1) & ~(uint64_t)(PAGE - 1);
}

static void path_of(const char *name, char *ret, size_t size)
{
	(void)snprintf(ret, size, "%s/memory/%s", state_folder(), name);
}

/* Under state_lock(). Always for writing: only writers stand in the way of a lease. */
static int open_file(const char *name, int flags)
{
	char path[4096];

	path_of(name, path, sizeof(path));
	return open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | flags, 0666);
}

/* Bytes of a file that a process has open; a file that none has is removed. Under state_lock(). */
static uint64_t size_if_held(const char *name)
{
	cleanup(fd_closep) int fd = open_file(name, 0);
	char path[4096];
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || st.st_size < PAGE)
		return 0;
	if (fcntl(fd, F_SETLEASE, F_WRLCK) < 0)
		return (uint64_t)st.st_size - PAGE;
	path_of(name, path, sizeof(path));
	(void)unlink(path);
	return 0;
}

static uint64_t count_used(int gpu)
{
	char path[4096];
	uint64_t used = 0;
	DIR *folder;

	state_path("memory", path, sizeof(path));
	folder = opendir(path);
	for (struct dirent *e; folder && (e = readdir(folder));) {
		int its;

		if (sscanf(e->d_name, "%*[a-z]-%d-", &its) == 1 && its == gpu)
			used += size_if_held(e->d_name);
	}
	if (folder)
		(void)closedir(folder);
	return used;
}

uint64_t allocation_used(int gpu)
{
	uint64_t used;

	state_lock();
	used = count_used(gpu);
	state_unlock();
	return used;
}

/* The mapping holds the file, and the lock that shows that its maker lives. Children do not inherit it. */
static cu_result map_file(int fd, const struct about *about, struct allocation **ret)
{
	struct allocation *a = calloc(1, sizeof(*a));
	uint64_t size = page_aligned(about->size);
	void *bytes;

	if (!a)
		return CUDA_ERROR_OUT_OF_MEMORY;
	bytes = mmap(NULL, size + PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (bytes == MAP_FAILED) {
		free(a);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	(void)madvise(bytes, size + PAGE, MADV_DONTFORK);
	*a = (struct allocation){
		.refs = 1,
		.kind = (enum allocation_kind)about->kind,
		.gpu = about->gpu,
		.size = about->size,
		.handle_types = about->handle_types,
		.rdma_capable = about->rdma_capable != 0,
		.bytes = bytes,
	};
	memcpy(a->name, about->name, sizeof(a->name));
	*ret = a;
	return CUDA_SUCCESS;
}

static cu_result map_existing(int fd, struct allocation **ret)
{
	struct about about;
	struct stat st;

	if (fstat(fd, &st) < 0 || st.st_size < PAGE ||
	    pread(fd, &about, sizeof(about), st.st_size - PAGE) != sizeof(about))
		return CUDA_ERROR_INVALID_VALUE;
	if (about.magic != MAGIC || page_aligned(about.size) + PAGE != (uint64_t)st.st_size)
		return CUDA_ERROR_INVALID_VALUE;
	return map_file(fd, &about, ret);
}

/* Under state_lock(). */
static cu_result make_file(struct about *about, int *ret_fd)
{
	static const char *kinds[] = {"", "vmm", "linear", "context"};
	static unsigned number;
	uint64_t size = page_aligned(about->size);
	cleanup(fd_closep) int fd = -1;
	char path[4096];

	if (count_used(about->gpu) + size > device_memory())
		return CUDA_ERROR_OUT_OF_MEMORY;
	state_path("memory", path, sizeof(path));
	(void)mkdir(path, 0777);
	(void)chmod(path, 0777); /* every user of the GPU may write, whatever the umask */
	(void)snprintf(about->name, sizeof(about->name), "%s-%d-%d-%u", kinds[about->kind],
		       about->gpu, getpid(), number++);
	fd = open_file(about->name, O_CREAT | O_EXCL);
	if (fd < 0 || fchmod(fd, 0666) < 0 || ftruncate(fd, (off_t)(size + PAGE)) < 0 ||
	    pwrite(fd, about, sizeof(*about), (off_t)size) != sizeof(*about) ||
	    flock(fd, LOCK_EX) < 0)
		return CUDA_ERROR_UNKNOWN;
	*ret_fd = take_fd(fd);
	return CUDA_SUCCESS;
}

cu_result allocation_new(enum allocation_kind kind, int gpu, uint64_t size, int handle_types,
			 bool rdma_capable, struct allocation **ret)
{
	struct about about = {
		.magic = MAGIC,
		.size = size,
		.kind = (int32_t)kind,
		.gpu = gpu,
		.handle_types = handle_types,
		.rdma_capable = rdma_capable,
	};
	cleanup(fd_closep) int fd = -1;
	cu_result r;

	state_lock();
	r = make_file(&about, &fd);
	state_unlock();
	if (!r)
		r = map_file(fd, &about, ret);
	if (!r && kind != ALLOCATION_CONTEXT)
		memset((*ret)->bytes, FRESH, size);
	return r;
}

struct allocation *allocation_ref(struct allocation *a)
{
	(void)__atomic_add_fetch(&a->refs, 1, __ATOMIC_RELAXED);
	return a;
}

void allocation_unref(struct allocation *a)
{
	if (!a || __atomic_sub_fetch(&a->refs, 1, __ATOMIC_ACQ_REL))
		return;
	(void)munmap(a->bytes, page_aligned(a->size) + PAGE);
	free(a);
}

static int send_file(int to, int fd)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {.header = {
			     .cmsg_level = SOL_SOCKET,
			     .cmsg_type = SCM_RIGHTS,
			     .cmsg_len = CMSG_LEN(sizeof(int)),
		     }};
	char nothing = 0;
	struct iovec byte = {.iov_base = &nothing, .iov_len = 1};
	struct msghdr m = {
		.msg_iov = &byte,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};

	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	return sendmsg(to, &m, MSG_NOSIGNAL | MSG_DONTWAIT) == 1 ? 0 : -1;
}

/* Looks without taking: a handle can be imported many times. */
static int peek_file(int from)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	char byte;
	struct iovec v = {.iov_base = &byte, .iov_len = 1};
	struct msghdr m = {
		.msg_iov = &v,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	int fd;

	if (recvmsg(from, &m, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != 1 ||
	    m.msg_controllen < CMSG_LEN(sizeof(int)) || control.header.cmsg_type != SCM_RIGHTS)
		return -1;
	memcpy(&fd, CMSG_DATA(&control.header), sizeof(fd));
	return fd;
}

cu_result allocation_export(const struct allocation *a, int *ret_fd)
{
	cleanup(fd_closep) int fd = -1;
	int ends[2];

	state_lock();
	fd = open_file(a->name, 0);
	state_unlock();
	/* Datagrams: the end that remains does not notice that the other one is closed. */
	if (fd < 0 || socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) < 0)
		return CUDA_ERROR_UNKNOWN;
	if (send_file(ends[0], fd) < 0) {
		(void)fd_close(ends[0]);
		(void)fd_close(ends[1]);
		return CUDA_ERROR_UNKNOWN;
	}
	(void)fd_close(ends[0]);
	*ret_fd = ends[1];
	return CUDA_SUCCESS;
}

cu_result allocation_import(int fd, struct allocation **ret)
{
	cleanup(fd_closep) int file = peek_file(fd);

	return file < 0 ? CUDA_ERROR_INVALID_VALUE : map_existing(file, ret);
}

cu_result allocation_open(const char *name, struct allocation **ret)
{
	cleanup(fd_closep) int fd = -1;
	cu_result r;

	if (strchr(name, '/'))
		return CUDA_ERROR_INVALID_VALUE;
	state_lock();
	fd = open_file(name, 0);
	/* Its maker holds the lock as long as it has the memory. */
	if (fd < 0 || !flock(fd, LOCK_EX | LOCK_NB))
		r = CUDA_ERROR_INVALID_HANDLE;
	else
		r = map_existing(fd, ret);
	state_unlock();
	return r;
}
