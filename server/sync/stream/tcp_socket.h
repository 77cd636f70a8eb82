/*
 * A TCP socket
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

struct tcp_socket {
	int fd;
	SSL *tls; /* NULL: none */
	bool is_ours; /* we connected */
	bool is_kernel_sending; /* kTLS encrypts, and sends from a file */
	bool is_kernel_receiving;
	uint64_t read; /* plaintext */
	uint64_t written;
};

void tcp_socket_init(struct tcp_socket *l);
/* Takes the socket and the session. */
void tcp_socket_open(struct tcp_socket *l, int fd, SSL *tls, bool is_ours);
void tcp_socket_close(struct tcp_socket *l);

/*
 * Sets the options of all our sockets: data is sent at once, and unacknowledged data ends the
 * connection after the stall time.
 */
void tcp_socket_tune(int fd, uint64_t stall_ns, uint64_t max_rate);
/* Limits the rate from now on, in bytes per second; 0: no limit. */
void tcp_socket_limit(int fd, uint64_t max_rate);

/* Limits the bytes that wait in the socket. */
void tcp_socket_keep_short(int fd, unsigned n_bytes);

/* 0: done. -EPROTO: refused, see tls_explain(). */
int tcp_socket_handshake(struct tcp_socket *l);

ssize_t tcp_socket_read(struct tcp_socket *l, void *to, uint64_t size);
ssize_t tcp_socket_write(struct tcp_socket *l, const void *from, uint64_t size);
/* Sends bytes of the memory; without a copy if there is no TLS, or kTLS. */
ssize_t tcp_socket_write_memory(struct tcp_socket *l, const struct memory *m, uint64_t offset,
				uint64_t size);

/* Reads the bytes read and written so far, without FIN and SYN. */
int tcp_socket_traffic(const struct tcp_socket *l, struct traffic *ret);
/* Bytes that the peer has acknowledged so far. */
uint64_t tcp_socket_acknowledged(const struct tcp_socket *l);
