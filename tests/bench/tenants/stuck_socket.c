#include "tests/bench/tenants/stuck_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/bench/stopwatch.h"

#define STUCK_MAX 2000 /* each holds a descriptor of its peer */
#define LINGER_S 30 /* the program's own close() may be the last one, too */
#define BUFFER_SIZE 4608 /* the kernel's least for what is sent */

static void fill(int fd)
{
	static const char zeros[1 << 16];

	while (send(fd, zeros, sizeof(zeros), MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
		;
}

static int connect_pair(int *ret_peer)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct linger linger = {.l_onoff = 1, .l_linger = LINGER_S};
	socklen_t size = sizeof(address);
	int buffer_size = BUFFER_SIZE;
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer_size, sizeof(buffer_size));
	(void)setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &buffer_size, sizeof(buffer_size));
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    listen(listener, 1) < 0 ||
	    getsockname(listener, (struct sockaddr *)&address, &size) < 0 ||
	    connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) < 0)
		stopwatch_fail("no socket that blocks: %s", strerror(errno));
	*ret_peer = accept(listener, NULL, NULL);
	(void)close(listener);
	return fd;
}

int stuck_socket_new(void)
{
	static atomic_uint n_made; /* both threads make some */
	int fd, peer;

	if (atomic_fetch_add(&n_made, 1) >= STUCK_MAX)
		return -1;
	fd = connect_pair(&peer);
	fill(fd);
	return fd;
}

void stuck_socket_free(int fd)
{
	struct linger linger = {.l_onoff = 1};

	(void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
}
