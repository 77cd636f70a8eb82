#include "server/sync/net/address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int parse_port(const char *text, uint16_t *ret)
{
	size_t n = strspn(text, "0123456789");
	unsigned long v = n > 0 && n <= 5 && !text[n] ? strtoul(text, NULL, 10) : 0;

	if (v == 0 || v > UINT16_MAX)
		return -EINVAL;
	*ret = (uint16_t)v;
	return 0;
}

static bool is_host(const char *host)
{
	if (!*host)
		return false;
	for (; *host; host++)
		if (!isalnum((unsigned char)*host) && !strchr(".-:%_", *host))
			return false;
	return true;
}

int address_split(const char *text, char ret_host[ADDRESS_HOST_MAX + 1], uint16_t *ret_port)
{
	const char *colon = strrchr(text, ':'), *from = text;
	char host[ADDRESS_HOST_MAX + 1];
	uint16_t port;
	size_t n;

	if (!colon || parse_port(colon + 1, &port) < 0)
		return -EINVAL;
	n = (size_t)(colon - text);
	if (*text == '[') {
		if (n < 3 || text[n - 1] != ']')
			return -EINVAL;
		from++;
		n -= 2;
	} else if (memchr(text, ':', n)) {
		return -EINVAL; /* the begin of the port is ambiguous */
	}
	if (n > ADDRESS_HOST_MAX)
		return -EINVAL;
	memcpy(host, from, n);
	host[n] = '\0';
	if (!is_host(host))
		return -EINVAL;
	memcpy(ret_host, host, n + 1);
	*ret_port = port;
	return 0;
}

bool address_from_digits(const char *host, uint16_t port, struct address *ret)
{
	const struct addrinfo hints = {
		.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
		.ai_socktype = SOCK_STREAM,
	};
	struct addrinfo *found;
	char service[8];

	(void)snprintf(service, sizeof(service), "%u", port);
	if (getaddrinfo(host, service, &hints, &found) != 0)
		return false;
	*ret = (struct address){.size = found->ai_addrlen};
	memcpy(&ret->at, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
	return true;
}

/* Returns the bytes of an address, and their number; an IPv4-mapped IPv6 address counts as IPv4. */
static const uint8_t *bytes_of(const struct sockaddr *at, int *ret_family, unsigned *ret_port)
{
	const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)at;
	const struct sockaddr_in *four = (const struct sockaddr_in *)at;

	*ret_family = at->sa_family;
	if (at->sa_family == AF_INET) {
		*ret_port = ntohs(four->sin_port);
		return (const uint8_t *)&four->sin_addr;
	}
	if (at->sa_family != AF_INET6)
		return NULL;
	*ret_port = ntohs(six->sin6_port);
	if (!IN6_IS_ADDR_V4MAPPED(&six->sin6_addr))
		return six->sin6_addr.s6_addr;
	*ret_family = AF_INET;
	return six->sin6_addr.s6_addr + 12;
}

const char *address_format_host(const struct sockaddr *at, char buf[ADDRESS_TEXT_SIZE])
{
	unsigned port;
	int family;
	const uint8_t *bytes = bytes_of(at, &family, &port);

	if (!bytes || !inet_ntop(family, bytes, buf, ADDRESS_TEXT_SIZE))
		(void)snprintf(buf, ADDRESS_TEXT_SIZE, "?");
	return buf;
}

const char *address_format(const struct sockaddr *at, char buf[ADDRESS_TEXT_SIZE])
{
	char host[ADDRESS_TEXT_SIZE];
	unsigned port = 0;
	int family;

	(void)bytes_of(at, &family, &port);
	(void)address_format_host(at, host);
	(void)snprintf(buf, ADDRESS_TEXT_SIZE, family == AF_INET6 ? "[%.50s]:%u" : "%.50s:%u", host,
		       port);
	return buf;
}

bool address_same_host(const struct sockaddr *a, const struct sockaddr *b)
{
	int family_a, family_b;
	unsigned port;
	const uint8_t *x = bytes_of(a, &family_a, &port), *y = bytes_of(b, &family_b, &port);

	return x && y && family_a == family_b && !memcmp(x, y, family_a == AF_INET6 ? 16 : 4);
}

bool address_is_any(const struct sockaddr *at)
{
	static const uint8_t any[16];
	unsigned port;
	int family;
	const uint8_t *bytes = bytes_of(at, &family, &port);

	return bytes && !memcmp(bytes, any, family == AF_INET6 ? 16 : 4);
}

/* The first `n_bits` of both are equal. */
static bool address_agree(const uint8_t *a, const uint8_t *b, unsigned n_bits)
{
	unsigned n = n_bits / 8, rest = n_bits % 8;

	return !memcmp(a, b, n) && (rest == 0 || (a[n] ^ b[n]) >> (8 - rest) == 0);
}

int network_parse(const char *text, struct network *ret)
{
	const char *slash = strchr(text, '/');
	struct network network = {.n_bits = 0}, first;
	char host[ADDRESS_TEXT_SIZE];
	size_t n = slash ? (size_t)(slash - text) : strlen(text);
	unsigned long n_bits, n_bits_max;

	if (n >= sizeof(host))
		return -EINVAL;
	memcpy(host, text, n);
	host[n] = '\0';
	network.family = strchr(host, ':') ? AF_INET6 : AF_INET;
	if (inet_pton(network.family, host, network.bytes) != 1)
		return -EINVAL;
	n_bits_max = network.family == AF_INET6 ? 128 : 32;
	n_bits = n_bits_max;
	if (slash) {
		size_t digits = strspn(slash + 1, "0123456789");

		if (digits == 0 || digits > 3 || slash[1 + digits])
			return -EINVAL;
		n_bits = strtoul(slash + 1, NULL, 10);
	}
	if (n_bits > n_bits_max)
		return -EINVAL;
	network.n_bits = (unsigned)n_bits;
	first = network;
	for (unsigned i = network.n_bits; i < n_bits_max; i++)
		first.bytes[i / 8] &= (uint8_t) ~(0x80 >> i % 8);
	if (memcmp(first.bytes, network.bytes, sizeof(first.bytes)) != 0)
		return -EINVAL; /* 10.0.0.1/8 is ambiguous: a host, or its network */
	*ret = network;
	return 0;
}

bool network_has(const struct network *networks, unsigned n, const struct sockaddr *at)
{
	unsigned port;
	int family;
	const uint8_t *bytes = bytes_of(at, &family, &port);

	for (unsigned i = 0; bytes && i < n; i++)
		if (networks[i].family == family &&
		    address_agree(bytes, networks[i].bytes, networks[i].n_bits))
			return true;
	return false;
}
