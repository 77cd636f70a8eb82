/*
 * Certificates by OpenSSL: Ed25519 keys, X.509 version 3, as strict as RFC 5280 and `openssl verify -x509_strict`
 * require.
 *
 * The only DNS name of a certificate, NAME.weightd, identifies the node; the common name is for people. The CA may
 * issue names under .weightd alone, so that a CA in a system's trust store cannot vouch for a web site.
 */
#include "libclient/weightctl/verbs/pki.h"

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libclient/weightctl/cli.h"

#define DOMAIN ".weightd"
#define BACKDATED_S 300 /* clocks differ */
#define DAY_S 86400
#define SERIAL_BITS 159 /* 20 bytes at most, and positive */

static void pkey_freep(EVP_PKEY **p)
{
	EVP_PKEY_free(*p);
}

static void x509_freep(X509 **p)
{
	X509_free(*p);
}

static void crl_freep(X509_CRL **p)
{
	X509_CRL_free(*p);
}

static void bio_freep(BIO **p)
{
	BIO_free(*p);
}

static void names_freep(GENERAL_NAMES **p)
{
	GENERAL_NAMES_free(*p);
}

static void store_freep(X509_STORE **p)
{
	X509_STORE_free(*p);
}

static void store_ctx_freep(X509_STORE_CTX **p)
{
	X509_STORE_CTX_free(*p);
}

__attribute__((format(printf, 2, 3))) static int refuse(char why[PKI_WHY_SIZE], const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	(void)vsnprintf(why, PKI_WHY_SIZE, fmt, args);
	va_end(args);
	return -1;
}

/* Failures that only OpenSSL can explain. */
static int refuse_openssl(char why[PKI_WHY_SIZE], const char *what)
{
	const char *reason = ERR_reason_error_string(ERR_peek_last_error());

	return refuse(why, "OpenSSL cannot %s: %s", what, reason ? reason : "out of memory");
}

/* --- Making ------------------------------------------------------------------------------------- */

/* The text in `bio` as a string; wipes the original. */
static char *take_text(BIO *bio)
{
	char *data;
	long n = BIO_get_mem_data(bio, &data);
	char *text = n >= 0 ? strndup(data, (size_t)n) : NULL;

	if (n > 0)
		OPENSSL_cleanse(data, (size_t)n);
	return text;
}

static int write_pair(EVP_PKEY *key, X509 *x, struct pki_pair *ret)
{
	cleanup(bio_freep) BIO *key_bio = BIO_new(BIO_s_mem()), *bio = BIO_new(BIO_s_mem());
	struct pki_pair pair = {};

	if (key_bio && bio && PEM_write_bio_PrivateKey(key_bio, key, NULL, NULL, 0, NULL, NULL) &&
	    PEM_write_bio_X509(bio, x))
		pair = (struct pki_pair){.key = take_text(key_bio), .certificate = take_text(bio)};
	if (!pair.key || !pair.certificate) {
		pki_pair_deinit(&pair);
		return -1;
	}
	*ret = pair;
	return 0;
}

static bool set_serial(X509 *x)
{
	BIGNUM *n = BN_new();
	bool done = n && BN_rand(n, SERIAL_BITS, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) &&
		    BN_to_ASN1_INTEGER(n, X509_get_serialNumber(x));

	BN_free(n);
	return done;
}

static bool set_name(X509_NAME *name, const char *text)
{
	return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)text, -1,
					  -1, 0);
}

static bool add_extensions(X509 *x, X509 *issuer, const char *const extensions[][2])
{
	X509V3_CTX ctx;

	X509V3_set_ctx(&ctx, issuer, x, NULL, NULL, 0);
	X509V3_set_ctx_nodb(&ctx);
	for (size_t i = 0; extensions[i][0]; i++) {
		X509_EXTENSION *e = X509V3_EXT_conf(NULL, &ctx, extensions[i][0], extensions[i][1]);
		bool added = e && X509_add_ext(x, e, -1);

		X509_EXTENSION_free(e);
		if (!added)
			return false;
	}
	return true;
}

/* All but the issuer and the signature. */
static X509 *new_certificate(EVP_PKEY *key, const char *name)
{
	X509 *x = X509_new();

	if (x && X509_set_version(x, X509_VERSION_3) && set_serial(x) &&
	    set_name(X509_get_subject_name(x), name) && X509_set_pubkey(x, key) &&
	    X509_gmtime_adj(X509_getm_notBefore(x), -BACKDATED_S))
		return x;
	X509_free(x);
	return NULL;
}

int pki_make_ca(struct pki_pair *ret, char why[PKI_WHY_SIZE])
{
	static const char *const extensions[][2] = {
		{"basicConstraints", "critical,CA:TRUE,pathlen:0"},
		{"keyUsage", "critical,keyCertSign,cRLSign"},
		{"nameConstraints", "critical,permitted;DNS:" DOMAIN},
		{"subjectKeyIdentifier", "hash"},
		{},
	};
	cleanup(pkey_freep) EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
	cleanup(x509_freep) X509 *x = NULL;
	unsigned char tag[4]; /* distinguishes certificates of one name */
	char name[32];

	if (RAND_bytes(tag, sizeof(tag)) != 1)
		return refuse_openssl(why, "get random bytes");
	(void)snprintf(name, sizeof(name), "weightd CA %02x%02x%02x%02x", tag[0], tag[1], tag[2],
		       tag[3]);
	if (key)
		x = new_certificate(key, name);
	if (!x || !X509_gmtime_adj(X509_getm_notAfter(x), (long)PKI_DAYS_MAX * DAY_S) ||
	    !X509_set_issuer_name(x, X509_get_subject_name(x)) || !add_extensions(x, x, extensions) ||
	    !X509_sign(x, key, NULL) || write_pair(key, x, ret) < 0)
		return refuse_openssl(why, "make a CA");
	return 0;
}

/* Refuses passphrases: there is no prompt. */
static int no_passphrase(char *buf, int size, int writing, void *userdata)
{
	(void)buf;
	(void)size;
	(void)writing;
	*(bool *)userdata = true;
	return -1;
}

static int read_ca(const struct pki_pair *ca, EVP_PKEY **ret_key, X509 **ret, char why[PKI_WHY_SIZE])
{
	cleanup(bio_freep) BIO *key_bio = BIO_new_mem_buf(ca->key, -1);
	cleanup(bio_freep) BIO *bio = BIO_new_mem_buf(ca->certificate, -1);
	bool encrypted = false;

	if (!key_bio || !bio)
		return refuse_openssl(why, "read the CA");
	*ret_key = PEM_read_bio_PrivateKey(key_bio, NULL, no_passphrase, &encrypted);
	if (encrypted)
		return refuse(why, "its key has a passphrase, which is not supported; remove it "
				   "with 'openssl pkey'");
	if (!*ret_key)
		return refuse(why, "its ca.key holds no private key in PEM");
	*ret = PEM_read_bio_X509(bio, NULL, NULL, NULL);
	if (!*ret)
		return refuse(why, "its ca.crt holds no certificate in PEM");
	return 0;
}

static int check_ca(EVP_PKEY *key, X509 *ca, char why[PKI_WHY_SIZE])
{
	if (EVP_PKEY_get_id(key) != EVP_PKEY_ED25519)
		return refuse(why, "its key is not of Ed25519");
	if (!X509_check_private_key(ca, key))
		return refuse(why, "its ca.key does not belong to its ca.crt");
	if (X509_check_ca(ca) != 1 || !(X509_get_key_usage(ca) & KU_KEY_CERT_SIGN))
		return refuse(why, "its ca.crt is not that of a CA");
	if (X509_verify(ca, key) != 1)
		return refuse(why, "its ca.crt is not signed by its own key");
	if (X509_cmp_current_time(X509_get0_notBefore(ca)) > 0)
		return refuse(why, "its ca.crt is not valid yet; is the clock right?");
	if (X509_cmp_current_time(X509_get0_notAfter(ca)) < 0)
		return refuse(why, "its ca.crt has expired; make a new CA");
	return 0;
}

static bool set_validity(X509 *x, X509 *ca, unsigned days, bool *ret_cut)
{
	const ASN1_TIME *from = X509_get0_notBefore(ca), *until = X509_get0_notAfter(ca);

	if (!X509_gmtime_adj(X509_getm_notAfter(x), (long)days * DAY_S))
		return false;
	*ret_cut = ASN1_TIME_compare(X509_get0_notAfter(x), until) > 0;
	if (*ret_cut && !X509_set1_notAfter(x, until))
		return false;
	return ASN1_TIME_compare(X509_get0_notBefore(x), from) >= 0 || X509_set1_notBefore(x, from);
}

int pki_make_node(const struct pki_pair *ca, const char *name, unsigned days, struct pki_pair *ret,
		  bool *ret_cut, char why[PKI_WHY_SIZE])
{
	char san[PKI_TEXT_MAX];
	const char *const extensions[][2] = {
		{"basicConstraints", "critical,CA:FALSE"},
		{"keyUsage", "critical,digitalSignature"},
		{"extendedKeyUsage", "serverAuth,clientAuth"},
		{"subjectAltName", san},
		{"subjectKeyIdentifier", "hash"},
		{"authorityKeyIdentifier", "keyid:always"},
		{},
	};
	cleanup(pkey_freep) EVP_PKEY *ca_key = NULL;
	cleanup(pkey_freep) EVP_PKEY *key = NULL;
	cleanup(x509_freep) X509 *issuer = NULL;
	cleanup(x509_freep) X509 *x = NULL;

	(void)snprintf(san, sizeof(san), "DNS:%s" DOMAIN, name);
	if (read_ca(ca, &ca_key, &issuer, why) < 0 || check_ca(ca_key, issuer, why) < 0)
		return -1;
	key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
	if (key)
		x = new_certificate(key, name);
	if (!x || !set_validity(x, issuer, days, ret_cut) ||
	    !X509_set_issuer_name(x, X509_get_subject_name(issuer)) ||
	    !add_extensions(x, issuer, extensions) || !X509_sign(x, ca_key, NULL) ||
	    write_pair(key, x, ret) < 0)
		return refuse_openssl(why, "make a certificate");
	return 0;
}

/* --- Revoking ----------------------------------------------------------------------------------- */

static X509_CRL *new_list(X509 *ca)
{
	X509_CRL *crl = X509_CRL_new();
	X509_EXTENSION *e;
	X509V3_CTX ctx;
	bool made;

	X509V3_set_ctx(&ctx, ca, NULL, NULL, crl, 0);
	X509V3_set_ctx_nodb(&ctx);
	e = X509V3_EXT_conf(NULL, &ctx, "authorityKeyIdentifier", "keyid:always");
	made = crl && e && X509_CRL_set_version(crl, X509_CRL_VERSION_2) &&
	       X509_CRL_set_issuer_name(crl, X509_get_subject_name(ca)) &&
	       X509_CRL_add_ext(crl, e, -1);
	X509_EXTENSION_free(e);
	if (made)
		return crl;
	X509_CRL_free(crl);
	return NULL;
}

static int read_list(const char *pem, EVP_PKEY *ca_key, X509_CRL **ret, char why[PKI_WHY_SIZE])
{
	cleanup(bio_freep) BIO *bio = BIO_new_mem_buf(pem, -1);

	*ret = bio ? PEM_read_bio_X509_CRL(bio, NULL, NULL, NULL) : NULL;
	if (!*ret)
		return refuse(why, "its ca.crl holds no list of revoked certificates in PEM");
	if (X509_CRL_verify(*ret, ca_key) != 1)
		return refuse(why, "its ca.crl is not signed by its key");
	return 0;
}

/* 1: it was added; 0: it is there already; -1. */
static int add_revoked(X509_CRL *crl, const char *serial)
{
	BIGNUM *number = NULL;
	ASN1_INTEGER *n = BN_hex2bn(&number, serial) ? BN_to_ASN1_INTEGER(number, NULL) : NULL;
	ASN1_TIME *now = X509_gmtime_adj(NULL, 0);
	X509_REVOKED *entry = X509_REVOKED_new(), *found;
	int r = -1;

	if (n && X509_CRL_get0_by_serial(crl, &found, n))
		r = 0;
	else if (n && now && entry && X509_REVOKED_set_serialNumber(entry, n) &&
		 X509_REVOKED_set_revocationDate(entry, now) && X509_CRL_add0_revoked(crl, entry))
		r = 1;
	if (r != 1)
		X509_REVOKED_free(entry);
	ASN1_TIME_free(now);
	ASN1_INTEGER_free(n);
	BN_free(number);
	return r;
}

/* One more than that of the last. */
static bool number_list(X509_CRL *crl)
{
	ASN1_INTEGER *last = X509_CRL_get_ext_d2i(crl, NID_crl_number, NULL, NULL);
	ASN1_INTEGER *next = ASN1_INTEGER_new();
	int64_t n = 0;
	bool done = next && (!last || ASN1_INTEGER_get_int64(&n, last)) &&
		    ASN1_INTEGER_set_int64(next, n + 1) &&
		    X509_CRL_add1_ext_i2d(crl, NID_crl_number, next, 0, X509V3_ADD_REPLACE) == 1;

	ASN1_INTEGER_free(last);
	ASN1_INTEGER_free(next);
	return done;
}

/* Valid as long as its CA: a node without a newer list must not be cut off for that. */
static bool date_list(X509_CRL *crl, X509 *ca)
{
	ASN1_TIME *from = X509_gmtime_adj(NULL, -BACKDATED_S);
	bool done = from && X509_CRL_set1_lastUpdate(crl, from) &&
		    X509_CRL_set1_nextUpdate(crl, X509_get0_notAfter(ca));

	ASN1_TIME_free(from);
	return done;
}

static char *write_list(X509_CRL *crl, EVP_PKEY *ca_key)
{
	cleanup(bio_freep) BIO *bio = BIO_new(BIO_s_mem());

	return bio && X509_CRL_sort(crl) && X509_CRL_sign(crl, ca_key, NULL) &&
			       PEM_write_bio_X509_CRL(bio, crl)
		       ? take_text(bio)
		       : NULL;
}

int pki_revoke(const struct pki_pair *ca, const char *before, const char *const *serials, size_t n,
	       char **ret, size_t *ret_n, char why[PKI_WHY_SIZE])
{
	cleanup(pkey_freep) EVP_PKEY *ca_key = NULL;
	cleanup(x509_freep) X509 *issuer = NULL;
	cleanup(crl_freep) X509_CRL *crl = NULL;
	size_t n_new = 0;

	if (read_ca(ca, &ca_key, &issuer, why) < 0 || check_ca(ca_key, issuer, why) < 0)
		return -1;
	if (!(X509_get_key_usage(issuer) & KU_CRL_SIGN))
		return refuse(why, "its ca.crt is not for lists of revoked certificates");
	if (before && read_list(before, ca_key, &crl, why) < 0)
		return -1;
	if (!crl)
		crl = new_list(issuer);
	for (size_t i = 0; crl && i < n; i++) {
		int r = add_revoked(crl, serials[i]);

		if (r < 0)
			return refuse_openssl(why, "revoke a certificate");
		n_new += (size_t)r;
	}
	*ret = crl && number_list(crl) && date_list(crl, issuer) ? write_list(crl, ca_key) : NULL;
	if (!*ret)
		return refuse_openssl(why, "sign a list of revoked certificates");
	*ret_n = n_new;
	return 0;
}

/* --- Reading ------------------------------------------------------------------------------------ */

__attribute__((format(printf, 2, 3))) static void wrong(struct pki_certificate *c, const char *fmt,
							...)
{
	va_list args;

	if (c->n_wrong >= PKI_WRONG_MAX)
		return;
	va_start(args, fmt);
	(void)vsnprintf(c->wrong[c->n_wrong++], PKI_WHY_SIZE, fmt, args);
	va_end(args);
}

static void name_text(const X509_NAME *name, char ret[PKI_TEXT_MAX])
{
	cleanup(bio_freep) BIO *bio = BIO_new(BIO_s_mem());
	char *data;
	long n;

	*ret = '\0';
	if (!bio || X509_NAME_print_ex(bio, name, 0,
				       XN_FLAG_ONELINE & ~(unsigned long)ASN1_STRFLGS_ESC_MSB) < 0)
		return;
	n = BIO_get_mem_data(bio, &data);
	(void)snprintf(ret, PKI_TEXT_MAX, "%.*s", n < PKI_TEXT_MAX ? (int)n : PKI_TEXT_MAX - 1,
		       data);
}

static void time_text(const ASN1_TIME *t, char *ret, size_t size)
{
	struct tm tm;

	if (!ASN1_TIME_to_tm(t, &tm) || !strftime(ret, size, "%Y-%m-%dT%H:%M:%SZ", &tm))
		(void)snprintf(ret, size, "?");
}

static void take_serial(const X509 *x, char ret[PKI_SERIAL_MAX])
{
	BIGNUM *number = ASN1_INTEGER_to_BN(X509_get0_serialNumber(x), NULL);
	char *text = number ? BN_bn2hex(number) : NULL;

	(void)snprintf(ret, PKI_SERIAL_MAX, "%s", text ? text : "?");
	OPENSSL_free(text);
	BN_free(number);
}

static void take_fingerprint(const X509 *x, char *ret)
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned n = 0;
	char *at = stpcpy(ret, "sha256:");

	if (X509_digest(x, EVP_sha256(), digest, &n) != 1)
		n = 0;
	for (unsigned i = 0; i < n; i++)
		at += sprintf(at, "%02x", digest[i]);
}

/* The name in `san`, less DOMAIN, if it is that of a node. */
static bool node_name(const ASN1_IA5STRING *san, char ret[PKI_TEXT_MAX])
{
	const char *text = (const char *)ASN1_STRING_get0_data(san);
	size_t n = (size_t)ASN1_STRING_length(san), n_domain = strlen(DOMAIN);

	if (n <= n_domain || n >= PKI_TEXT_MAX || memchr(text, '\0', n) ||
	    memcmp(text + n - n_domain, DOMAIN, n_domain))
		return false;
	(void)snprintf(ret, PKI_TEXT_MAX, "%.*s", (int)(n - n_domain), text);
	return pki_name_is_valid(ret);
}

static void take_node(X509 *x, struct pki_certificate *c)
{
	cleanup(names_freep)
		GENERAL_NAMES *names = X509_get_ext_d2i(x, NID_subject_alt_name, NULL, NULL);
	char name[PKI_TEXT_MAX];
	unsigned n_names = 0;

	for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
		const GENERAL_NAME *n = sk_GENERAL_NAME_value(names, i);

		if (n->type == GEN_DNS && node_name(n->d.dNSName, name) && !n_names++)
			(void)strcpy(c->name, name);
	}
	if (n_names != 1)
		wrong(c, n_names ? "it has the names of several nodes"
				 : "it has no DNS name NAME" DOMAIN ", so it belongs to no node");
}

static void check_node(X509 *x, struct pki_certificate *c)
{
	uint32_t usage = X509_get_extended_key_usage(x);

	take_node(x, c);
	if (!(usage & XKU_SSL_CLIENT) || !(usage & XKU_SSL_SERVER))
		wrong(c, "it is not for both clients and servers of TLS");
	if (!(X509_get_key_usage(x) & KU_DIGITAL_SIGNATURE))
		wrong(c, "its key may not sign");
}

static void check_times(const X509 *x, struct pki_certificate *c)
{
	if (X509_cmp_current_time(X509_get0_notBefore(x)) > 0)
		wrong(c, "it is not valid yet");
	if (X509_cmp_current_time(X509_get0_notAfter(x)) < 0)
		wrong(c, "it has expired");
}

/* Every certificate in `pem` is trusted. */
static X509_STORE *new_store(const char *pem)
{
	cleanup(bio_freep) BIO *bio = BIO_new_mem_buf(pem, -1);
	X509_STORE *store = X509_STORE_new();
	X509 *x;

	while (store && bio && (x = PEM_read_bio_X509(bio, NULL, NULL, NULL))) {
		(void)X509_STORE_add_cert(store, x); /* a copy of one that is there is no harm */
		X509_free(x);
	}
	ERR_clear_error(); /* the error of reading past the last certificate */
	return store;
}

/* Times are checked elsewhere, to be reported once. */
static void check_issuer(X509 *x, const char *pem, struct pki_certificate *c)
{
	cleanup(store_freep) X509_STORE *store = new_store(pem);
	cleanup(store_ctx_freep) X509_STORE_CTX *ctx = X509_STORE_CTX_new();

	if (!store || !ctx || !X509_STORE_CTX_init(ctx, store, x, NULL)) {
		wrong(c, "OpenSSL cannot check it");
		return;
	}
	X509_STORE_CTX_set_flags(ctx, X509_V_FLAG_X509_STRICT | X509_V_FLAG_NO_CHECK_TIME);
	if (X509_verify_cert(ctx) != 1)
		wrong(c, "the CA does not vouch for it: %s",
		      X509_verify_cert_error_string(X509_STORE_CTX_get_error(ctx)));
}

static void pki_check(X509 *x, const char *ca, struct pki_certificate *c)
{
	EVP_PKEY *key = X509_get0_pubkey(x);

	check_times(x, c);
	if (!key || EVP_PKEY_get_id(key) != EVP_PKEY_ED25519)
		wrong(c, "its key is not of Ed25519");
	if (!c->is_ca)
		check_node(x, c);
	else if (!key || X509_verify(x, key) != 1)
		wrong(c, "it is not signed by its own key: its bytes were changed, or it is not "
			 "the top of its CA");
	if (ca)
		check_issuer(x, ca, c);
	ERR_clear_error();
}

static int read_first(BIO *bio, X509 **ret, char why[PKI_WHY_SIZE])
{
	unsigned long e;

	*ret = PEM_read_bio_X509(bio, NULL, NULL, NULL);
	if (*ret)
		return 0;
	e = ERR_peek_last_error();
	ERR_clear_error();
	if (ERR_GET_LIB(e) == ERR_LIB_PEM && ERR_GET_REASON(e) == PEM_R_NO_START_LINE)
		return 1;
	return refuse(why, "a certificate in it is broken");
}

int pki_read(const char **pem, const char *ca, struct pki_certificate *ret, char why[PKI_WHY_SIZE])
{
	cleanup(bio_freep) BIO *bio = BIO_new_mem_buf(*pem, -1);
	cleanup(x509_freep) X509 *x = NULL;
	struct pki_certificate c = {};
	int r;

	if (!bio)
		return refuse_openssl(why, "read");
	r = read_first(bio, &x, why);
	if (r)
		return r;
	*pem += strlen(*pem) - BIO_ctrl_pending(bio);
	c.is_ca = X509_check_ca(x) == 1;
	name_text(X509_get_subject_name(x), c.name);
	name_text(X509_get_issuer_name(x), c.issuer);
	time_text(X509_get0_notBefore(x), c.from, sizeof(c.from));
	time_text(X509_get0_notAfter(x), c.until, sizeof(c.until));
	take_serial(x, c.serial);
	take_fingerprint(x, c.fingerprint);
	pki_check(x, ca, &c);
	*ret = c;
	return 0;
}
