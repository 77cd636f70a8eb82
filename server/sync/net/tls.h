/*
 * TLS
 *
 * TLS 1.3 between agents, over sockets that never block: both ends show a certificate of our CA, and nothing is
 * kept for a second connection (no tickets, no early data). What went wrong is said for people.
 */
#pragma once

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#include "server/sync/net/trust.h"

struct tls {
	SSL *ssl;
	bool wants_room; /* to go on, the socket has to take bytes, not give them */
	char claimed[NODE_MAX + 1]; /* name on a certificate that was refused; unproven */
	char why[WHY_SIZE]; /* of the last -EPROTO */
};

/* Makes the context of all connections, in either direction. */
int tls_context_new(const struct trust *trust, SSL_CTX **ret, char why[WHY_SIZE]);

/* A connection over `fd`, which is borrowed. */
int tls_init(struct tls *t, SSL_CTX *context, int fd, bool dialled);
void tls_deinit(struct tls *t);

/* -EAGAIN; -EPROTO: see `why`; -EPIPE: the other end hung up. */
int tls_handshake(struct tls *t);

/* The same errors, and the name of the other end's certificate. */
int tls_name(struct tls *t, char ret[NODE_MAX + 1]);

/*
 * Returns whether what the other end has proven would be believed now: -EPROTO, with a clause in
 * `why`.
 */
int tls_check(struct tls *t, SSL_CTX *context);
/* Returns whether the time of a certificate is over that the other end has proven itself with. */
bool tls_is_over(const struct tls *t, time_t now);
/* Returns whether we have shown the certificate that we would show now. */
bool tls_is_of(const struct tls *t, SSL_CTX *context);

/* The same errors; what was moved, 1 byte at least. */
int tls_read(struct tls *t, void *buf, size_t size, size_t *ret);
int tls_write(struct tls *t, const void *data, size_t size, size_t *ret);

/* Bytes that came and were not read: the socket does not tell of them. */
bool tls_has_more(const struct tls *t);

/* Says that nothing follows, if there is room for it. */
void tls_end(struct tls *t);
