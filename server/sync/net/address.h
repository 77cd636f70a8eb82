/*
 * Addresses
 *
 * Where nodes are, as people write it, and the networks that are trusted with bytes in the clear.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define ADDRESS_HOST_MAX 253 /* bytes of a host's name */
#define ADDRESS_TEXT_SIZE 64 /* of one in digits, with its port */

struct address {
	struct sockaddr_storage at;
	socklen_t size;
};

struct network {
	int family;
	uint8_t bytes[16];
	unsigned n_bits;
};

/* "10.0.0.1:7400", "[::1]:7400", "name:7400". -EINVAL. */
int address_split(const char *text, char ret_host[ADDRESS_HOST_MAX + 1], uint16_t *ret_port);

/* False where `host` is not written in digits. */
bool address_from_digits(const char *host, uint16_t port, struct address *ret);

/* In digits, "[::1]:7400". Returns `buf`. */
const char *address_format(const struct sockaddr *at, char buf[ADDRESS_TEXT_SIZE]);

/* The same without the port: "::1". */
const char *address_format_host(const struct sockaddr *at, char buf[ADDRESS_TEXT_SIZE]);

/* Returns whether both are of one host, whatever the ports. */
bool address_same_host(const struct sockaddr *a, const struct sockaddr *b);

/* "10.0.0.0/8", "fd00::/8"; without a length, one host. -EINVAL, also with bits behind the length. */
int network_parse(const char *text, struct network *ret);

/*
 * Returns whether one of them has the address. An IPv4 address is what it is when IPv6 carries it,
 * too.
 */
bool network_has(const struct network *networks, unsigned n, const struct sockaddr *at);
