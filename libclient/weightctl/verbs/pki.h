/*
 * Certificates of nodes
 *
 * A CA and its certificates, as PEM in memory; pki.c does the files. One variant is built: pki-openssl.c, or
 * pki-none.c, which refuses.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define PKI_WHY_SIZE 256
#define PKI_TEXT_MAX 256
#define PKI_WRONG_MAX 8
#define PKI_SERIAL_MAX 64
#define PKI_DAYS_MAX 3650 /* limit for a CA; the limit for a node is the rest of its CA's */

/* PEM. What has a private key is wiped when it is freed. */
struct pki_pair {
	char *key;
	char *certificate;
};

struct pki_certificate {
	char name[PKI_TEXT_MAX]; /* name of the node; a certificate of no node: its subject */
	char issuer[PKI_TEXT_MAX];
	char serial[PKI_SERIAL_MAX]; /* digits of base 16 */
	char from[32], until[32]; /* ISO 8601, UTC */
	char fingerprint[80]; /* "sha256:" and digits */
	bool is_ca;
	char wrong[PKI_WRONG_MAX][PKI_WHY_SIZE]; /* why weightd-sync would not take it */
	size_t n_wrong;
};

/* In pki.c. */
void pki_pair_deinit(struct pki_pair *pair);
/* True if weightd-sync accepts `name` as that of a node: 1 to 42 of [a-z0-9.-], the first no '.' or '-'. */
bool pki_name_is_valid(const char *name);

/* These return 0, or -1 and a sentence in `why`, which may quote what it was given. */
int pki_make_ca(struct pki_pair *ret, char why[PKI_WHY_SIZE]);
/* *ret_cut: it would outlive its CA, and was shortened. */
int pki_make_node(const struct pki_pair *ca, const char *name, unsigned days, struct pki_pair *ret,
		  bool *ret_cut, char why[PKI_WHY_SIZE]);
/*
 * The list of certificates that a CA has revoked, as PEM: those of `before`, the previous list or NULL, and
 * `serials`. *ret_n counts the new ones.
 */
int pki_revoke(const struct pki_pair *ca, const char *before, const char *const *serials, size_t n,
	       char **ret, size_t *ret_n, char why[PKI_WHY_SIZE]);
/*
 * Reads the certificate that stands at `*pem`, and moves `*pem` behind it; 1: there is none any more. `ca` is
 * the PEM of those that may have issued it, or NULL to not look.
 */
int pki_read(const char **pem, const char *ca, struct pki_certificate *ret, char why[PKI_WHY_SIZE]);
