/*
 * A link
 *
 * A connected socket, with or without TLS, and the count of its bytes. Nothing blocks: -EAGAIN.
 * Every error that means that the peer closed is -EPIPE.
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
	bool is_kernel_sending; /* kTLS encrypts, and sends from a file */
	bool is_kernel_receiving;
	uint64_t read; /* plaintext */
	uint64_t written;
};

void link_init(struct link *l);
/* Takes the socket and the session. */
void link_open(struct link *l, int fd, SSL *tls, bool is_ours);
void link_close(struct link *l);

/*
 * Sets the options of all our sockets: data is sent at once, and unacknowledged data ends the link
 * after the stall time.
 */
void link_tune(int fd, uint64_t stall_ns, uint64_t max_rate);
/* Limits the rate from now on, in bytes per second; 0: no limit. */
void link_limit(int fd, uint64_t max_rate);

/* Limits the bytes that wait in the socket. */
void link_keep_short(int fd, unsigned n_bytes);

/* 0: done. -EPROTO: refused, see tls_explain(). */
int link_handshake(struct link *l);

ssize_t link_read(struct link *l, void *to, uint64_t size);
ssize_t link_write(struct link *l, const void *from, uint64_t size);
/* Sends bytes of the memory; without a copy if there is no TLS, or kTLS. */
ssize_t link_write_memory(struct link *l, const struct memory *m, uint64_t offset, uint64_t size);

/* Reads the bytes read and written so far, without FIN and SYN. */
int link_traffic(const struct link *l, struct traffic *ret);
/* Bytes that the peer has acknowledged so far. */
uint64_t link_acknowledged(const struct link *l);
