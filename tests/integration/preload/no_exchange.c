/*
 * Preloaded into a client: folders cannot be exchanged, as on NFS and overlayfs. It is killed before the second
 * rename, if the environment has KILL_BETWEEN.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
	if (flags & RENAME_EXCHANGE) {
		errno = EINVAL;
		return -1;
	}
	return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
	static int n_calls;

	if (++n_calls == 2 && getenv("KILL_BETWEEN"))
		(void)raise(SIGKILL);
	return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, 0);
}
