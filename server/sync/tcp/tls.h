/*
 * TLS
 *
 * 1.3 and nothing older, both sides with a certificate of our CA, whose SAN has to be NAME.weightd of the very
 * node that the agent named.
 */
#pragma once

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>

/* From the PEM in three memfds. -EBADMSG with a sentence. */
int tls_new(const int pem_fds[3], SSL_CTX **ret, char *why, size_t why_size);

/* A session on a socket, which stays the caller's. NULL: no memory. */
SSL *tls_session(SSL_CTX *context, int fd, bool is_server, const char *peer);

/* Why the last call failed, as a clause about the peer: what is wrong with its certificate, or what it said. */
void tls_explain(const SSL *tls, char *why, size_t why_size);
