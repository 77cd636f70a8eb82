/*
 * TLS
 *
 * TLS 1.3 between agents, over non-blocking sockets. Both ends need a certificate of our CA.
 * Nothing is kept for a second connection (no tickets, no early data). Errors have sentences for
 * people.
 */
#pragma once

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#include "server/sync/net/trust.h"

struct tls {
	SSL *ssl;
	bool wants_room; /* to continue, the socket must have room, not bytes */
	char claimed[NODE_MAX + 1]; /* name in a refused certificate; not authenticated */
	char why[WHY_SIZE]; /* the last -EPROTO's */
};

/* Used by all connections, in either direction. */
int tls_context_new(const struct trust *trust, SSL_CTX **ret, char why[WHY_SIZE]);

/* A connection over `fd`, which is borrowed. */
int tls_init(struct tls *t, SSL_CTX *context, int fd, bool dialled);
void tls_deinit(struct tls *t);

/* -EAGAIN; -EPROTO: see `why`; -EPIPE: the peer closed. */
int tls_handshake(struct tls *t);

/* Returns the name in the peer's certificate, or the same errors. */
int tls_name(struct tls *t, char ret[NODE_MAX + 1]);

/* Verifies the peer's certificate again, as of now: -EPROTO, with a clause in `why`. */
int tls_check(struct tls *t, SSL_CTX *context);
/* The certificate that authenticated the peer has expired. */
bool tls_is_over(const struct tls *t, time_t now);
/* This connection uses the current certificate of ours. */
bool tls_is_of(const struct tls *t, SSL_CTX *context);

/* The same errors; `*ret` is at least 1. */
int tls_read(struct tls *t, void *buf, size_t size, size_t *ret);
int tls_write(struct tls *t, const void *data, size_t size, size_t *ret);

/* Bytes were received and not read: epoll does not report them. */
bool tls_has_more(const struct tls *t);

/* Sends close_notify, if there is room for it. */
void tls_end(struct tls *t);
