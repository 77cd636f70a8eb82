/*
 * Trust
 *
 * Who this node is and whom it believes: our CA, this node's certificate and its Ed25519 key. A node's name is
 * the dNSName NAME.weightd of its certificate's subjectAltName, the only one there; the CN says nothing.
 */
#pragma once

#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "server/sync/base/limits.h"

#define TRUST_SIGNATURE_SIZE 89 /* of Ed25519, in base64, with a NUL */
#define TRUST_PEM_MAX ((size_t)512 << 10) /* bytes of a file, or of somebody's certificate */

struct trust_files {
	const char *ca;
	const char *certificate;
	const char *key;
	const char *crl; /* NULL: nobody is revoked */
};

struct trust {
	X509_STORE *store; /* our CA: there may be two while one is replaced; and whom they revoked */
	X509 *certificate;
	EVP_PKEY *key;
	char *certificate_pem;
	int fds[3]; /* sealed memfds with CA and revoked ones, certificate and key, for engines */
};

/*
 * Loads all and checks that they fit together and are of the node `name`. -EINVAL and others, with a sentence. A
 * certificate whose time is over, or that is revoked, is loaded: trust_warn() tells.
 */
int trust_load(const struct trust_files *files, const char *name, struct trust *ret,
	       char why[WHY_SIZE]);
void trust_init(struct trust *t);
void trust_deinit(struct trust *t);

/* Writes a sentence where others will not believe this certificate today, or not in a day. False: all is well. */
bool trust_warn(const struct trust *t, char why[WHY_SIZE]);

/* The name of the node whose certificate it is. -EINVAL with a clause why there is none. */
int trust_name(X509 *certificate, char ret[NODE_MAX + 1], char why[WHY_SIZE]);

/*
 * Describes an error of OpenSSL about a certificate, to stand behind "its certificate": "expired on
 * ...".
 */
void trust_explain(X509_STORE_CTX *failed, X509 *certificate, char why[WHY_SIZE]);

/*
 * Returns whether a certificate is one that this CA issued, and that is valid now. -EKEYREJECTED
 * with a clause.
 */
int trust_verify(X509_STORE *store, X509 *certificate, char why[WHY_SIZE]);

int trust_sign(const struct trust *t, const char *text, char *ret, size_t size);

/* See env.check(). */
int trust_check(const struct trust *t, const char *text, const char *signature,
		const char *certificate, const char *name, uint64_t time_ns, char why[WHY_SIZE]);
