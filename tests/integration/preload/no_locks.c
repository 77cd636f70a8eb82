/*
 * Preloaded into a client: no file can be locked, as on a file system of the network whose server keeps no locks. One
 * that tries forever is killed.
 */
#include <errno.h>
#include <signal.h>
#include <sys/file.h>

#define CALLS_MAX 100

int flock(int fd, int operation)
{
	static int n_calls;

	(void)fd;
	(void)operation;
	if (++n_calls > CALLS_MAX)
		(void)raise(SIGKILL);
	errno = ENOLCK;
	return -1;
}
