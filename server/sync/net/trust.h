/*
 * Trust
 *
 * The identity of this node and its trust: our CA, this node's certificate and its Ed25519 key. A
 * node's name is the only dNSName in the subjectAltName of its certificate, NAME.weightd; the CN is
 * ignored.
 */
#pragma once

#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "server/sync/base/limits.h"

#define TRUST_SIGNATURE_SIZE 89 /* Ed25519, in base64, with a NUL */
#define TRUST_PEM_MAX ((size_t)512 << 10) /* bytes of a file, or of a received certificate */

struct trust_files {
	const char *ca;
	const char *certificate;
	const char *key;
	const char *crl; /* NULL: no certificates are revoked */
};

struct trust {
	X509_STORE *store; /* our CA, or two while one is replaced, and their revocation lists */
	X509 *certificate;
	EVP_PKEY *key;
	char *certificate_pem;
	int fds[3]; /* sealed memfds with CA and lists, certificate and key, for engines */
};

/*
 * Loads all and checks that they fit together and are those of the node `name`. -EINVAL and others,
 * with a sentence. An expired or revoked certificate is loaded: trust_warn() reports it.
 */
int trust_load(const struct trust_files *files, const char *name, struct trust *ret,
	       char why[WHY_SIZE]);
void trust_init(struct trust *t);
void trust_deinit(struct trust *t);

/*
 * Writes a sentence if other nodes do not accept this certificate now, or will not in a day. False:
 * no problem.
 */
bool trust_warn(const struct trust *t, char why[WHY_SIZE]);

/* The end of this node's certificate, in CLOCK_REALTIME; 0: it cannot be read. */
uint64_t trust_end_ns(const struct trust *t);

/* Returns the name of the certificate's node. -EINVAL with a clause. */
int trust_name(X509 *certificate, char ret[NODE_MAX + 1], char why[WHY_SIZE]);

/*
 * Explains OpenSSL's error about a certificate, as a clause after "its certificate": "expired on
 * ...".
 */
void trust_explain(X509_STORE_CTX *failed, X509 *certificate, char why[WHY_SIZE]);

/*
 * Verifies that this CA issued the certificate, and that it is valid now. -EKEYREJECTED with a
 * clause.
 */
int trust_verify(X509_STORE *store, X509 *certificate, char why[WHY_SIZE]);

int trust_sign(const struct trust *t, const char *text, char *ret, size_t size);

/* See env.check(). */
int trust_check(const struct trust *t, const char *text, const char *signature,
		const char *certificate, const char *name, uint64_t time_ns, char why[WHY_SIZE]);
