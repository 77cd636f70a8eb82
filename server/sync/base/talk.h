/*
 * Talk
 *
 * What the parts of weightd-sync say to each other, and weightctl to it: one JSON object in one packet of a
 * SOCK_SEQPACKET socket, with descriptors beside it.
 */
#pragma once

#include <jansson.h>

#include "ipc/base/cleanup.h"

#define TALK_SIZE_MAX 65536 /* bytes of one packet */
#define TALK_FDS_MAX 8
#define TALK_FD 3 /* the socket of a child */

static inline void json_freep(json_t **p)
{
	json_decref(*p);
}

struct talk {
	json_t *message; /* an object */
	int fds[TALK_FDS_MAX]; /* whoever keeps one leaves -1 */
	unsigned n_fds;
};

/* Sends one packet and never blocks: -EAGAIN. -EMSGSIZE: longer than TALK_SIZE_MAX. */
int talk_send(int fd, const json_t *message, const int *fds, unsigned n_fds);

/* The same, waiting for room. For who has nothing else to do. */
int talk_send_wait(int fd, const json_t *message, const int *fds, unsigned n_fds);

/*
 * Receives one packet, without waiting if `flags` says MSG_DONTWAIT: -EAGAIN. -EPIPE: the other end is gone.
 * -EBADMSG: no JSON object, too long, or with more descriptors than arrived.
 */
int talk_receive(int fd, int flags, struct talk *ret);

/*
 * The same from a stranger, whose descriptors do not even arrive: closing one may wait for ever, if it is of a
 * file system that does not answer. -EBADMSG, if there were any.
 */
int talk_receive_plain(int fd, int flags, struct talk *ret);

void talk_deinit(struct talk *t);
