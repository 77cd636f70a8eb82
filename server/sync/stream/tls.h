/*
 * TLS
 *
 * Version 1.3 only. Both sides need a certificate of our CA with the SAN NAME.weightd of the
 * node that the agent named.
 */
#pragma once

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>

/* Makes a context from the PEM in three memfds. -EBADMSG with a sentence. */
int tls_new(const int pem_fds[3], SSL_CTX **ret, char *why, size_t why_size);

/* Starts a session on a socket, which stays the caller's. NULL: no memory. */
SSL *tls_session(SSL_CTX *context, int fd, bool is_server, const char *peer);

/*
 * Explains the last failure as a clause about the peer: the error in its certificate, or its alert.
 */
void tls_explain(const SSL *tls, char *why, size_t why_size);
