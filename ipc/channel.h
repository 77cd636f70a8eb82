/*
 * Channels
 *
 * One packet in or out of a SOCK_SEQPACKET socket, with its descriptors; and the credentials of the peer.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/un.h>

#include "ipc/wire.h"

/*
 * As many as the kernel passes on. A packet has room for all of them, since a descriptor for which there
 * is none is closed by the kernel during the receive, and closing may block.
 */
#define CHANNEL_FDS_MAX 253

struct channel_packet {
	size_t size;
	unsigned n_fds;
	int fds[CHANNEL_FDS_MAX]; /* owned by the packet */
	char data[WIRE_MESSAGE_MAX] __attribute__((aligned(8)));
};

/*
 * Receives one packet, without blocking if `flags` has MSG_DONTWAIT. 1: a packet; 0: the peer closed the connection.
 * -EAGAIN; -EMSGSIZE: it was longer than WIRE_MESSAGE_MAX; -EMFILE: this process is out of descriptors, and some of
 * the packet's are lost. In all cases the caller owns the descriptors and bytes in the packet.
 */
int channel_receive(int fd, int flags, struct channel_packet *ret);

/*
 * Drops packets that wait in a socket to be closed, up to the first one with descriptors, a few at most. True if packets are
 * left, perhaps with descriptors: to close the socket closes those, which may block.
 */
bool channel_may_hold_fds(int fd);

/* Closes the descriptors that are still the packet's. */
void channel_packet_deinit(struct channel_packet *p);

/* Sends one packet and never blocks. -EAGAIN: the peer does not read; -ETOOMANYREFS and others. */
int channel_send(int fd, const void *data, size_t size, const int *fds, unsigned n_fds);

/* Bytes sent on the socket that the peer has not received yet. */
int channel_unread(int fd, size_t *ret);

struct channel_peer {
	pid_t pid;
	uid_t uid;
	gid_t gid;
	gid_t *groups; /* supplementary, freed by channel_peer_deinit() */
	unsigned n_groups;
};

int channel_peer(int fd, struct channel_peer *ret);
void channel_peer_deinit(struct channel_peer *p);

/* The address of a socket path. -ENAMETOOLONG past 107 bytes, -EINVAL when empty. */
int channel_address(const char *path, struct sockaddr_un *ret);
