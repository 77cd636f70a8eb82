#include "tests/bench/tenants/stuck_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/stopwatch.h"

#define STUCK_MAX 2000 /* each holds a descriptor of its peer */
#define LINGER_S 30
#define OWN_CLOSE_NS 1000000
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

static void wake(int unused)
{
	(void)unused;
}

static timer_t timer_of_thread(void)
{
	static _Thread_local timer_t timer;
	static _Thread_local bool is_made;
	const struct sigaction action = {.sa_handler = wake};
	struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1};

	if (is_made)
		return timer;
	event._sigev_un._tid = gettid();
	if (sigaction(SIGUSR1, &action, NULL) < 0 ||
	    timer_create(CLOCK_MONOTONIC, &event, &timer) < 0)
		stopwatch_fail("no timer: %s", strerror(errno));
	is_made = true;
	return timer;
}

void stuck_socket_close(int fd)
{
	const struct itimerspec again = {.it_value.tv_nsec = OWN_CLOSE_NS,
					 .it_interval.tv_nsec = OWN_CLOSE_NS},
				never = {0};

	if (fd < 0)
		return;
	(void)timer_settime(timer_of_thread(), 0, &again, NULL);
	(void)close(fd);
	(void)timer_settime(timer_of_thread(), 0, &never, NULL);
}
