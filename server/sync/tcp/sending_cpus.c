#include "server/sync/tcp/sending_cpus.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

void sending_cpus_add(struct sending_cpus *s)
{
	int cpu = sched_getcpu();

	if (cpu >= 0 && cpu < CPU_SETSIZE)
		CPU_SET((size_t)cpu, &s->set);
}

/* A socket that is connected to itself; nothing reads from it. -1: loopback is down, for example. */
static int open_own(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	cleanup(fd_closep) int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	socklen_t size = sizeof(at);

	if (fd < 0 || bind(fd, (const struct sockaddr *)&at, size) < 0 ||
	    getsockname(fd, (struct sockaddr *)&at, &size) < 0 ||
	    connect(fd, (const struct sockaddr *)&at, size) < 0)
		return -1;
	return take_fd(fd);
}

void sending_cpus_flush(const struct sending_cpus *s)
{
	cleanup(fd_closep) int fd = CPU_COUNT(&s->set) > 0 ? open_own() : -1;
	cpu_set_t before;

	if (fd < 0 || sched_getaffinity(0, sizeof(before), &before) < 0)
		return;
	for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		cpu_set_t one;

		if (!CPU_ISSET(cpu, &s->set))
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		if (sched_setaffinity(0, sizeof(one), &one) == 0)
			(void)send(fd, "", 1, MSG_NOSIGNAL);
	}
	(void)sched_setaffinity(0, sizeof(before), &before);
}
