/*
 * sd_notify() without libsystemd: one datagram.
 */
#include "bpf/ready.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

int ready_notify(void)
{
	static const char text[] = "READY=1";
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	cleanup(fd_closep) int fd = -1;
	size_t n;

	if (!path || !*path)
		return 0;
	n = strlen(path);
	if (n >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	memcpy(address.sun_path, path, n);
	if (*path == '@') /* an abstract one */
		address.sun_path[0] = '\0';
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	n += offsetof(struct sockaddr_un, sun_path);
	if (sendto(fd, text, strlen(text), MSG_NOSIGNAL, (const struct sockaddr *)&address,
		   (socklen_t)n) < 0)
		return -errno;
	return 0;
}
