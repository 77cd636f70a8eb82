#include "libclient/weightctl/http/listener.h"

#include <errno.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"

#define HOST_SIZE 256

static void free_addresses(struct addrinfo **list)
{
	if (*list)
		freeaddrinfo(*list);
}

/* getaddrinfo() would take 70000 for 4464. */
static bool is_port(const char *s)
{
	size_t n = strlen(s);

	return n > 0 && n <= 5 && strspn(s, "0123456789") == n && atoi(s) <= UINT16_MAX;
}

/* Splits ADDR:PORT; an address with colons is in brackets. Returns the port, or NULL. */
static const char *split(const char *address, char ret_host[HOST_SIZE])
{
	const char *colon = strrchr(address, ':');
	size_t n = colon ? (size_t)(colon - address) : 0;

	if (n > 2 && address[0] == '[' && address[n - 1] == ']') {
		address++;
		n -= 2;
	} else if (strcspn(address, "[:]") < n) {
		return NULL;
	}
	if (!n || n >= HOST_SIZE || !is_port(colon + 1))
		return NULL;
	(void)snprintf(ret_host, HOST_SIZE, "%.*s", (int)n, address);
	return colon + 1;
}

static int open_socket(const struct addrinfo *at)
{
	const int yes = 1;
	int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), r;

	if (fd < 0)
		return -errno;
	/* A restarted server need not wait for connections of the one before. */
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0)
		return fd;
	r = -errno;
	(void)close(fd);
	return r;
}

/* The address that the socket has, with the port that the kernel chose. */
static int print_address(int fd, char ret[LISTENER_ADDRESS_SIZE])
{
	struct sockaddr_storage at = {0};
	socklen_t size = sizeof(at);
	char host[LISTENER_ADDRESS_SIZE - sizeof("[]:65535")], port[sizeof("65535")];

	if (getsockname(fd, (struct sockaddr *)&at, &size) < 0)
		return -errno;
	if (getnameinfo((struct sockaddr *)&at, size, host, sizeof(host), port, sizeof(port),
			NI_NUMERICHOST | NI_NUMERICSERV) != 0)
		return -EINVAL;
	(void)snprintf(ret, LISTENER_ADDRESS_SIZE, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host,
		       port);
	return 0;
}

int listener_open(const char *address, char ret_address[LISTENER_ADDRESS_SIZE],
		  char ret_why[LISTENER_WHY_SIZE])
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
				       .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
	cleanup(free_addresses) struct addrinfo *list = NULL;
	char host[HOST_SIZE];
	const char *port = split(address, host);
	int fd, r;

	if (!port) {
		(void)snprintf(ret_why, LISTENER_WHY_SIZE,
			       "it is no ADDR:PORT, such as 127.0.0.1:9464 or [::1]:9464");
		return -EINVAL;
	}
	r = getaddrinfo(host, port, &hints, &list);
	if (r != 0) {
		(void)snprintf(ret_why, LISTENER_WHY_SIZE, "%s",
			       r == EAI_SYSTEM ? strerror(errno) : gai_strerror(r));
		return -EINVAL;
	}
	fd = open_socket(list);
	r = fd < 0 ? fd : print_address(fd, ret_address);
	if (r >= 0)
		return fd;
	(void)snprintf(ret_why, LISTENER_WHY_SIZE, "%s", strerror(-r));
	if (fd >= 0)
		(void)close(fd);
	return r;
}
