/*
 * JSON packets
 *
 * What the parts of weightd-sync say to each other, and weightctl to it: one JSON object in one packet of a
 * SOCK_SEQPACKET socket, with descriptors beside it.
 */
#pragma once

#include <jansson.h>

#include "ipc/base/cleanup.h"

#define JSON_PACKET_SIZE_MAX 65536 /* bytes of one packet */
#define JSON_PACKET_FDS_MAX 8
#define JSON_PACKET_FD 3 /* the socket of a child */

static inline void json_freep(json_t **p)
{
	json_decref(*p);
}

struct json_packet {
	json_t *message; /* an object */
	int fds[JSON_PACKET_FDS_MAX]; /* whoever keeps one leaves -1 */
	unsigned n_fds;
};

/* Sends one packet and never blocks: -EAGAIN. -EMSGSIZE: longer than JSON_PACKET_SIZE_MAX. */
int json_packet_send(int fd, const json_t *message, const int *fds, unsigned n_fds);

/* The same, waiting for room. For who has nothing else to do. */
int json_packet_send_wait(int fd, const json_t *message, const int *fds, unsigned n_fds);

/*
 * Receives one packet, without waiting if `flags` says MSG_DONTWAIT: -EAGAIN. -EPIPE: the other end is gone.
 * -EBADMSG: no JSON object, too long, or with more descriptors than arrived.
 */
int json_packet_receive(int fd, int flags, struct json_packet *ret);

/*
 * The same from a stranger, whose descriptors do not even arrive: closing one may wait for ever, if it is of a
 * file system that does not answer. -EBADMSG, if there were any.
 */
int json_packet_receive_plain(int fd, int flags, struct json_packet *ret);

void json_packet_deinit(struct json_packet *t);
