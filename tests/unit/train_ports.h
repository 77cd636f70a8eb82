/*
 * Ports of tests
 *
 * Ports of all addresses that belong to the test: the kernel gives them to no other socket, neither one that connects nor one
 * that takes any port, and refuses them to other tests. Sockets with SO_REUSEADDR may listen there meanwhile.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

/* A socket for both families where the kernel has IPv6. */
static inline int port_socket(struct sockaddr_in6 *ret, socklen_t *ret_size)
{
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

	*ret = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
	*ret_size = sizeof(struct sockaddr_in6);
	if (fd >= 0)
		return fd;
	/* The rest of it is INADDR_ANY, and its port has the same place. */
	ret->sin6_family = AF_INET;
	*ret_size = sizeof(struct sockaddr_in);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(fd >= 0);
	return fd;
}

/* Holds a port, 0: one that the kernel chooses. Returns it, or 0 if it is in use. */
static inline uint16_t port_hold(uint16_t port, int *ret_fd)
{
	struct sockaddr_in6 at;
	socklen_t size;
	const int yes = 1;
	int fd = port_socket(&at, &size);

	at.sin6_port = htons(port);
	if (bind(fd, (struct sockaddr *)&at, size) < 0) {
		(void)close(fd);
		return 0;
	}
	/* Not before: two sockets with the option could hold one port. */
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
	*ret_fd = fd;
	return ntohs(at.sin6_port);
}

static inline void ports_free(const int *fds, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		(void)close(fds[i]);
}

/* Holds `n` ports in a row, and returns the first. */
static inline uint16_t ports_hold(int *fds, uint32_t n)
{
	for (;;) {
		uint16_t first = port_hold(0, &fds[0]);
		uint32_t i = 1;

		assert_true(first);
		while (i < n && first + i <= UINT16_MAX && port_hold((uint16_t)(first + i), &fds[i]))
			i++;
		if (i == n)
			return first;
		ports_free(fds, i);
	}
}
