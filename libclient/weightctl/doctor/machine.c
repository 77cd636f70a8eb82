/*
 * Checks of the kernel, the limits of this process and the clock. They need no server.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "ipc/base/libc.h"
#include "libclient/weightctl/doctor/check.h"
#include "libclient/weightctl/output/size.h"

#define KERNEL_MAJOR 6
#define KERNEL_MINOR 1
#define DESCRIPTORS_MIN 256 /* an attached version has three, and a program some of its own */
#define RDMA_FOLDER "/sys/class/infiniband"

static bool can_seal(void)
{
	int fd = memfd_create("weightctl-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	bool sealed = fd >= 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK) == 0;

	if (fd >= 0)
		(void)close(fd);
	return sealed;
}

static bool has_pidfd(void)
{
	int fd = libc_pidfd_open(getpid());

	if (fd >= 0)
		(void)close(fd);
	return fd >= 0;
}

static void check_kernel(struct checks *c)
{
	int major = 0, minor = 0;
	struct utsname name;

	(void)uname(&name); /* fails for a bad pointer only */
	(void)sscanf(name.release, "%d.%d", &major, &minor);
	if (!can_seal())
		checks_add(c, "kernel", CHECK_ERROR,
			   "a published version is sealed memory: allow memfd_create() and fcntl() in "
			   "the seccomp filter of this container, or use another kernel",
			   "%s cannot seal memory", name.release);
	else if (!has_pidfd())
		checks_add(c, "kernel", CHECK_ERROR,
			   "allow pidfd_open() in the seccomp filter of this container, or use "
			   "another kernel",
			   "%s has no pidfd_open()", name.release);
	else if (major < KERNEL_MAJOR || (major == KERNEL_MAJOR && minor < KERNEL_MINOR))
		checks_add(c, "kernel", CHECK_WARNING,
			   "weightd is not tested there: update the kernel to Linux 6.1 or newer",
			   "%s is older than 6.1", name.release);
	else
		checks_add(c, "kernel", CHECK_OK, NULL, "%s", name.release);
}

static void check_descriptors(struct checks *c)
{
	struct rlimit limit;

	(void)getrlimit(RLIMIT_NOFILE, &limit); /* cannot fail for this resource */
	if (limit.rlim_cur < DESCRIPTORS_MIN)
		checks_add(c, "descriptors", CHECK_WARNING,
			   "an attached version takes three: raise the limit of this process "
			   "('ulimit -n 1024', or LimitNOFILE= of its unit)",
			   "this process may open %" PRIu64, (uint64_t)limit.rlim_cur);
	else
		checks_add(c, "descriptors", CHECK_OK, NULL, "this process may open %" PRIu64,
			   (uint64_t)limit.rlim_cur);
}

/* Pinned memory for RDMA counts against this limit; for CUDA it does not. */
static void check_locked_memory(struct checks *c)
{
	char size[SIZE_TEXT_MAX];
	struct rlimit limit;

	(void)getrlimit(RLIMIT_MEMLOCK, &limit); /* cannot fail for this resource */
	if (limit.rlim_cur == RLIM_INFINITY)
		checks_add(c, "memlock", CHECK_OK, NULL, "this process may lock all memory");
	else if (access(RDMA_FOLDER, F_OK) == 0)
		checks_add(c, "memlock", CHECK_WARNING,
			   "RDMA locks the memory that it sends: raise the limit ('ulimit -l "
			   "unlimited', or LimitMEMLOCK=infinity of the unit)",
			   "this process may lock %s", size_text(size, limit.rlim_cur));
	else
		checks_add(c, "memlock", CHECK_OK, NULL,
			   "this process may lock %s; there is no RDMA",
			   size_text(size, limit.rlim_cur));
}

static void check_clock(struct checks *c)
{
	struct timex clock = {};
	int r = adjtimex(&clock);

	if (r < 0)
		checks_add(c, "clock", CHECK_NOTE, NULL, "cannot be read: %s", strerror(errno));
	else if (r == TIME_ERROR || clock.status & STA_UNSYNC)
		checks_add(c, "clock", CHECK_NOTE,
			   "certificates and the order of events between nodes need a right clock: "
			   "start a time service (systemctl enable --now systemd-timesyncd, or "
			   "chrony), unless the host of this machine sets it",
			   "no time service synchronizes it");
	else
		checks_add(c, "clock", CHECK_OK, NULL, "synchronized, within %" PRIu64 " ms",
			   (uint64_t)clock.maxerror / 1000);
}

void doctor_check_machine(struct checks *c)
{
	check_kernel(c);
	check_descriptors(c);
	check_locked_memory(c);
	check_clock(c);
}
