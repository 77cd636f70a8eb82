/*
 * Addresses
 *
 * Addresses of nodes as text, and the networks that are trusted with unencrypted bytes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define ADDRESS_HOST_MAX 253 /* bytes of a host's name */
#define ADDRESS_TEXT_SIZE 64 /* an address in digits, with its port */

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

/* False: `host` is not written in digits. */
bool address_from_digits(const char *host, uint16_t port, struct address *ret);

/* In digits, "[::1]:7400". Returns `buf`. */
const char *address_format(const struct sockaddr *at, char buf[ADDRESS_TEXT_SIZE]);

/* The same without the port: "::1". */
const char *address_format_host(const struct sockaddr *at, char buf[ADDRESS_TEXT_SIZE]);

/* Both are of one host, with any ports. */
bool address_same_host(const struct sockaddr *a, const struct sockaddr *b);

/* "0.0.0.0" or "::". */
bool address_is_any(const struct sockaddr *at);

/* "10.0.0.0/8", "fd00::/8"; without a length, one host. -EINVAL, also with bits behind the length. */
int network_parse(const char *text, struct network *ret);

/* One of the networks has the address. An IPv4-mapped IPv6 address counts as IPv4. */
bool network_has(const struct network *networks, unsigned n, const struct sockaddr *at);
