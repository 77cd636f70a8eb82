#include "bpf/tcp/socket_cookie.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

int socket_cookie(int fd, uint64_t *ret)
{
	socklen_t n = sizeof(int), n_cookie = sizeof(*ret);
	int protocol;

	if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &n) < 0)
		return -errno;
	if (protocol != IPPROTO_TCP)
		return -ENOTSOCK;
	return getsockopt(fd, SOL_SOCKET, SO_COOKIE, ret, &n_cookie) < 0 ? -errno : 0;
}
