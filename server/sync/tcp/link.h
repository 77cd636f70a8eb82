/*
 * A link
 *
 * A connected socket, with TLS on it or not, and the count of what went over it. Nothing blocks: -EAGAIN;
 * whatever says that the other end is gone is -EPIPE.
 */
#pragma once

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "server/sync/base/memory.h"
#include "server/sync/engine/traffic.h"

struct link {
	int fd;
	SSL *tls; /* NULL: none */
	bool is_ours; /* we connected */
	bool is_kernel_sending; /* it encrypts, and takes bytes from a file */
	bool is_kernel_receiving;
	uint64_t read; /* without what TLS puts around it */
	uint64_t written;
};

void link_init(struct link *l);
/* Takes the socket and the session. */
void link_open(struct link *l, int fd, SSL *tls, bool is_ours);
void link_close(struct link *l);

/* What every socket of ours wants: nothing waits to be sent, and what is not acknowledged ends the link. */
void link_tune(int fd, uint64_t stall_ns, uint64_t max_rate);
/* Bytes a second that it sends from now on; 0: as many as it can. */
void link_limit(int fd, uint64_t max_rate);

/* Little of what is written waits in the socket. */
void link_keep_short(int fd, unsigned n_bytes);

/* 0: done. -EPROTO: refused, see tls_explain(). */
int link_handshake(struct link *l);

ssize_t link_read(struct link *l, void *to, uint64_t size);
ssize_t link_write(struct link *l, const void *from, uint64_t size);
/* Bytes of the memory, by the kernel alone where there is no TLS, or where that is the kernel's. */
ssize_t link_write_memory(struct link *l, const struct memory *m, uint64_t offset, uint64_t size);

/* What was written and read so far, FIN and SYN not counted. */
int link_traffic(const struct link *l, struct traffic *ret);
/* Bytes that the other end acknowledged so far. */
uint64_t link_acknowledged(const struct link *l);
