/*
 * The crowd
 *
 * Peers that have connected and not proved yet which node they are. There is room for a few: when all places
 * are taken, the oldest peer of the host with the most leaves for a new one. So neither idle nor frequent
 * connections of a host can lock others out.
 */
#pragma once

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

struct crowd_member {
	struct in6_addr host; /* IPv4 as a mapped address */
	uint64_t since_ns;
};

/* A member from now on, with this address. */
struct crowd_member crowd_member(const struct sockaddr_storage *at);

/* Index of the one of `n` members that leaves; n > 0. */
size_t crowd_leaver(const struct crowd_member *members, size_t n);
