/*
 * TCP sockets at the address of a node
 */
#include "libclient/train/nodes/endpoint.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "libclient/train/nodes/sockets.h"
#include "libclient/train/plan/sentence.h"

#define MS ((uint64_t)1000000)
#define TICK_NS (ENGINE_TICK_MS * MS)
/* The port of a process that was killed is free a moment later. */
#define IN_USE_NS (1000 * MS)
/* An address that does not answer must not keep the next one from being tried. */
#define CONNECT_NS (3000 * MS)
#define BACKLOG 128
/*
 * A machine that lost its power or its cable does not close connections. Waits without a deadline, as those for a disk of
 * node 0, end by these.
 */
#define IDLE_S 10
#define PROBE_S 5
#define N_PROBES 4

void ticks_init(struct ticks *t, engine_check *check, void *data)
{
	*t = (struct ticks){.check = check, .data = data, .due_ns = num_now_ns() + TICK_NS};
}

int ticks_poll(struct ticks *t, struct pollfd *fds, uint32_t n)
{
	uint64_t now = num_now_ns();
	int left_ms = now < t->due_ns ? (int)((t->due_ns - now + MS - 1) / MS) : 0;
	int r = poll(fds, n, left_ms);

	if (r < 0 && errno != EINTR)
		return train_fail(-errno, "cannot wait for nodes: %m");
	for (uint32_t i = 0; r < 0 && i < n; i++)
		fds[i].revents = 0;
	if (r >= 0 && num_now_ns() < t->due_ns)
		return 0;
	t->due_ns = num_now_ns() + TICK_NS;
	return t->check(t->data, r < 0);
}

int ticks_pass(struct ticks *t)
{
	return ticks_poll(t, NULL, 0);
}

static void addrinfo_freep(struct addrinfo **a)
{
	if (*a)
		freeaddrinfo(*a);
}

static int resolve(const char *address, uint16_t port, int flags, struct addrinfo **ret)
{
	const struct addrinfo hints = {
		.ai_family = AF_UNSPEC,
		.ai_socktype = SOCK_STREAM,
		.ai_flags = flags | AI_NUMERICSERV,
	};
	char service[8];

	(void)snprintf(service, sizeof(service), "%u", port);
	return getaddrinfo(address, service, &hints, ret);
}

static int notice_vanished(int fd)
{
	const int yes = 1, idle_s = IDLE_S, probe_s = PROBE_S, n_probes = N_PROBES;

	if (setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes)) < 0 ||
	    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s)) < 0 ||
	    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &probe_s, sizeof(probe_s)) < 0 ||
	    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &n_probes, sizeof(n_probes)) < 0)
		return -errno;
	return 0;
}

/* A socket of that family whose port others may use as soon as it is closed. */
static int make_socket(int family, int *ret_fd)
{
	cleanup(fd_closep) int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
					   IPPROTO_TCP);
	const int yes = 1, no = 0;
	int r = fd < 0 ? -errno : sockets_add(fd);

	if (r < 0)
		return r;
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) < 0 ||
	    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)) < 0)
		return -errno;
	if (notice_vanished(fd) < 0)
		return -errno;
	if (family == AF_INET6)
		(void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no,
				 sizeof(no)); /* then IPv6 alone */
	*ret_fd = take_fd(fd);
	return 0;
}

static int listen_at(const struct sockaddr *address, socklen_t size, int *ret_fd)
{
	cleanup(fd_closep) int fd = -1;
	int r = make_socket(address->sa_family, &fd);

	if (r < 0)
		return r;
	if (bind(fd, address, size) < 0 || listen(fd, BACKLOG) < 0)
		return -errno;
	*ret_fd = take_fd(fd);
	return 0;
}

static int listen_at_all(uint16_t port, int *ret_fd)
{
	const struct sockaddr_in6 all = {.sin6_family = AF_INET6,
					 .sin6_port = htons(port),
					 .sin6_addr = IN6ADDR_ANY_INIT};
	const struct sockaddr_in old = {.sin_family = AF_INET, .sin_port = htons(port)};
	int r = listen_at((const struct sockaddr *)&all, sizeof(all), ret_fd);

	/* The kernel may have no IPv6. */
	if (r == -EAFNOSUPPORT || r == -EADDRNOTAVAIL)
		r = listen_at((const struct sockaddr *)&old, sizeof(old), ret_fd);
	return r;
}

static int listen_once(const char *address, uint16_t port, int *ret_fd)
{
	cleanup(addrinfo_freep) struct addrinfo *digits = NULL;
	int r = -EADDRNOTAVAIL;

	if (resolve(address, port, AI_NUMERICHOST, &digits) == 0)
		r = listen_at(digits->ai_addr, digits->ai_addrlen, ret_fd);
	return r == -EADDRNOTAVAIL ? listen_at_all(port, ret_fd) : r;
}

int endpoint_listen(const char *address, uint16_t port, struct ticks *t, int *ret_fd)
{
	uint64_t began = num_now_ns();
	int r;

	while ((r = listen_once(address, port, ret_fd)) == -EADDRINUSE &&
	       num_now_ns() - began < IN_USE_NS) {
		r = ticks_pass(t);
		if (r != 0)
			return r;
	}
	if (r < 0)
		return train_fail(r, "cannot listen at %s, port %u, where nodes meet: %s%s",
				  address, port, strerror(-r),
				  r == -EADDRINUSE
					  ? "; another process listens there: end it, start no "
					    "other node as node 0, or choose another port "
					    "(MASTER_PORT)"
					  : "");
	return 0;
}

/* The kernel connects a socket to itself if it chose the port of node 0 for it, and node 0 does not listen. */
static bool is_own_end(int fd)
{
	struct sockaddr_storage here = {}, there = {};
	socklen_t here_size = sizeof(here), there_size = sizeof(there);

	return getsockname(fd, (struct sockaddr *)&here, &here_size) == 0 &&
	       getpeername(fd, (struct sockaddr *)&there, &there_size) == 0 &&
	       memcmp(&here, &there, sizeof(here)) == 0;
}

/* 0 with or without a connection, or what the check returned. */
static int connect_once(const struct addrinfo *a, struct ticks *t, int *ret_fd)
{
	cleanup(fd_closep) int fd = -1;
	uint64_t began = num_now_ns();
	int error = 0;
	socklen_t size = sizeof(error);
	struct pollfd wait;
	int made = make_socket(a->ai_family, &fd);

	if (made == -EMFILE || made == -ENFILE)
		return train_fail(made, "cannot connect to node 0: %s; raise the limit (ulimit -n)",
				  strerror(-made));
	if (made < 0 || (connect(fd, a->ai_addr, a->ai_addrlen) < 0 && errno != EINPROGRESS))
		return 0;
	wait = (struct pollfd){.fd = fd, .events = POLLOUT};
	while (!wait.revents) {
		int r = ticks_poll(t, &wait, 1);

		if (r != 0)
			return r;
		if (num_now_ns() - began > CONNECT_NS)
			return 0;
	}
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0 || error || is_own_end(fd))
		return 0;
	*ret_fd = take_fd(fd);
	return 0;
}

static int resolve_in_ticks(const char *address, uint16_t port, struct ticks *t,
			    struct addrinfo **ret)
{
	int r;

	while ((r = resolve(address, port, 0, ret)) == EAI_AGAIN) {
		r = ticks_pass(t);
		if (r != 0)
			return r;
	}
	if (r != 0)
		return train_fail(-EADDRNOTAVAIL,
				  "node 0 has the address '%s' (MASTER_ADDR), which cannot be "
				  "resolved: %s",
				  address, r == EAI_SYSTEM ? strerror(errno) : gai_strerror(r));
	return 0;
}

int endpoint_connect(const char *address, uint16_t port, struct ticks *t, int *ret_fd)
{
	cleanup(addrinfo_freep) struct addrinfo *all = NULL;
	int fd = -1, r = resolve_in_ticks(address, port, t, &all);

	while (r == 0) {
		for (const struct addrinfo *a = all; r == 0 && fd < 0 && a; a = a->ai_next)
			r = connect_once(a, t, &fd);
		if (fd >= 0) {
			*ret_fd = fd;
			return 0;
		}
		if (r == 0)
			r = ticks_pass(t);
	}
	return r;
}

int endpoint_own(int fd, struct sockaddr_storage *ret)
{
	struct sockaddr_storage own = {};
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)&own;
	struct sockaddr_in four = {.sin_family = AF_INET};
	socklen_t size = sizeof(own);

	if (getsockname(fd, (struct sockaddr *)&own, &size) < 0)
		return train_fail(-errno, "cannot read the address of this machine: %m");
	/* A socket for both families has IPv4 addresses of its own form. */
	if (own.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) {
		memcpy(&four.sin_addr, &six->sin6_addr.s6_addr[12], sizeof(four.sin_addr));
		own = (struct sockaddr_storage){};
		memcpy(&own, &four, sizeof(four));
	}
	/* It has the same offset in both families. */
	six->sin6_port = 0;
	*ret = own;
	return 0;
}
