/*
 * JSON packets
 *
 * Messages between the processes of weightd-sync, and from weightctl to it: one JSON object in one
 * packet of a SOCK_SEQPACKET socket, with descriptors beside it.
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
	int fds[JSON_PACKET_FDS_MAX]; /* set to -1 when the caller keeps it */
	unsigned n_fds;
};

/* Sends one packet and never blocks: -EAGAIN. -EMSGSIZE: longer than JSON_PACKET_SIZE_MAX. */
int json_packet_send(int fd, const json_t *message, const int *fds, unsigned n_fds);

/* Waits for room. Only for a caller that has nothing else to do. */
int json_packet_send_wait(int fd, const json_t *message, const int *fds, unsigned n_fds);

/*
 * Receives one packet; MSG_DONTWAIT in `flags`: never blocks, -EAGAIN. -EPIPE: the peer closed.
 * -EBADMSG: no JSON object, too long, or it lost descriptors.
 */
int json_packet_receive(int fd, int flags, struct json_packet *ret);

/*
 * Receives one packet from an untrusted peer, without its descriptors: closing one may block for
 * ever, if its file system does not answer. -EBADMSG: there were descriptors.
 */
int json_packet_receive_plain(int fd, int flags, struct json_packet *ret);

void json_packet_deinit(struct json_packet *t);
