/*
 * Preloaded into a client: kills it just before one of its calls to the kernel. Other processes cannot see its
 * actions between two of them, but for bytes in memory that it shares. With the environment:
 *
 *	DEATH_AT	which call that is, from 1; 0: none
 *	DEATH_LOG	a file that gets the name of each call, a line each
 *
 * Polls in a row are one call: how many they are depends on how long the other end takes.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static void log_call(const char *name)
{
	const char *path = getenv("DEATH_LOG");
	long fd;

	if (!path)
		return;
	fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	(void)!syscall(SYS_write, fd, name, strlen(name));
	(void)!syscall(SYS_write, fd, "\n", 1);
	(void)syscall(SYS_close, fd);
}

static void pass(const char *name)
{
	static const char *last = "";
	static unsigned n_calls;
	const char *at = getenv("DEATH_AT");
	bool is_same_wait = !strcmp(name, "poll") && !strcmp(last, "poll");

	last = name;
	if (is_same_wait)
		return;
	log_call(name);
	if (at && ++n_calls == (unsigned)atoi(at))
		(void)raise(SIGKILL);
}

#define CALL(type, name, parameters, arguments)                                                    \
	type name parameters                                                                       \
	{                                                                                          \
		static type(*real) parameters;                                                     \
                                                                                                   \
		if (!real)                                                                         \
			real = (type(*) parameters)dlsym(RTLD_NEXT, #name);                        \
		pass(#name);                                                                       \
		return real arguments;                                                             \
	}

/* clang-format off */
CALL(int, socket, (int domain, int type, int protocol), (domain, type, protocol))
CALL(int, connect, (int fd, const struct sockaddr *address, socklen_t size), (fd, address, size))
CALL(ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
CALL(ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags))
CALL(int, poll, (struct pollfd *p, nfds_t n, int timeout), (p, n, timeout))
CALL(int, memfd_create, (const char *name, unsigned flags), (name, flags))
CALL(int, ftruncate, (int fd, off_t size), (fd, size))
CALL(void *, mmap, (void *at, size_t size, int protection, int flags, int fd, off_t offset),
     (at, size, protection, flags, fd, offset))
CALL(int, munmap, (void *at, size_t size), (at, size))
CALL(int, madvise, (void *at, size_t size, int advice), (at, size, advice))
CALL(ssize_t, pwrite, (int fd, const void *bytes, size_t size, off_t offset), (fd, bytes, size, offset))
CALL(int, close, (int fd), (fd))
/* clang-format on */

int fcntl(int fd, int command, ...)
{
	static int (*real)(int, int, ...);
	va_list args;
	long argument;

	va_start(args, command);
	argument = va_arg(args, long);
	va_end(args);
	if (!real)
		real = (int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl");
	pass("fcntl");
	return real(fd, command, argument);
}
