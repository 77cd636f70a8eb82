#include "server/sync/net/trust.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

#define SUFFIX ".weightd"
#define SIGNATURE_BYTES 64
#define DAY_S 86400

static inline void x509_freep(X509 **p)
{
	X509_free(*p);
}

static inline void bio_freep(BIO **p)
{
	(void)BIO_free(*p);
}

static inline void digest_freep(EVP_MD_CTX **p)
{
	EVP_MD_CTX_free(*p);
}

static inline void pkey_freep(EVP_PKEY **p)
{
	EVP_PKEY_free(*p);
}

static inline void store_context_freep(X509_STORE_CTX **p)
{
	X509_STORE_CTX_free(*p);
}

void trust_init(struct trust *t)
{
	*t = (struct trust){.fds = {-1, -1, -1}};
}

void trust_deinit(struct trust *t)
{
	X509_STORE_free(t->store);
	X509_free(t->certificate);
	EVP_PKEY_free(t->key);
	free(t->certificate_pem);
	for (unsigned i = 0; i < 3; i++)
		(void)fd_close(t->fds[i]);
	trust_init(t);
}

/* --- Names and reasons ---------------------------------------------------------------------------- */

/* Copies the name out of NAME.weightd. */
static int take_name(const ASN1_IA5STRING *dns, char ret[NODE_MAX + 1])
{
	const char *text = (const char *)ASN1_STRING_get0_data(dns);
	size_t size = (size_t)ASN1_STRING_length(dns), n = size - strlen(SUFFIX);

	if (size <= strlen(SUFFIX) || n > NODE_MAX || memcmp(text + n, SUFFIX, strlen(SUFFIX)) != 0)
		return -EINVAL;
	for (size_t i = 0; i < n; i++)
		if (!text[i] || !strchr("abcdefghijklmnopqrstuvwxyz0123456789.-", text[i]))
			return -EINVAL;
	memcpy(ret, text, n);
	ret[n] = '\0';
	return 0;
}

int trust_name(X509 *certificate, char ret[NODE_MAX + 1], char why[WHY_SIZE])
{
	GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
	int n_names = names ? sk_GENERAL_NAME_num(names) : 0, n = 0;
	char name[NODE_MAX + 1];

	for (int i = 0; i < n_names; i++) {
		const GENERAL_NAME *g = sk_GENERAL_NAME_value(names, i);

		if (g->type == GEN_DNS && take_name(g->d.dNSName, name) == 0)
			n++;
	}
	GENERAL_NAMES_free(names);
	if (n == 1) {
		memcpy(ret, name, sizeof(name));
		return 0;
	}
	(void)snprintf(why, WHY_SIZE,
		       "has %s dNSName NAME" SUFFIX " in its subjectAltName; make one with "
		       "weightctl pki node",
		       n ? "more than one" : "no");
	return -EINVAL;
}

/* A date and a time, UTC. */
static const char *format_time(const ASN1_TIME *t, char buf[32])
{
	struct tm tm = {0};

	if (!t || ASN1_TIME_to_tm(t, &tm) != 1 || !strftime(buf, 32, "%Y-%m-%d %H:%M:%S UTC", &tm))
		(void)snprintf(buf, 32, "an unknown time");
	return buf;
}

uint64_t trust_end_ns(const struct trust *t)
{
	const ASN1_TIME *end = X509_get0_notAfter(t->certificate);
	struct tm tm = {0};
	time_t s = end && ASN1_TIME_to_tm(end, &tm) == 1 ? timegm(&tm) : 0;

	return s > 0 ? (uint64_t)s * 1000000000 : 0;
}

static void trust_explain_error(int code, X509 *certificate, char why[WHY_SIZE])
{
	char when[32];

	switch (code) {
	case X509_V_ERR_CERT_HAS_EXPIRED:
		(void)snprintf(why, WHY_SIZE,
			       "expired on %s; make a new one with weightctl pki node",
			       format_time(X509_get0_notAfter(certificate), when));
		break;
	case X509_V_ERR_CERT_NOT_YET_VALID:
		(void)snprintf(why, WHY_SIZE,
			       "is not valid before %s; are the clocks of both nodes right?",
			       format_time(X509_get0_notBefore(certificate), when));
		break;
	case X509_V_ERR_CERT_REVOKED:
		(void)snprintf(why, WHY_SIZE, "is revoked; make a new one with weightctl pki node");
		break;
	case X509_V_ERR_CRL_HAS_EXPIRED:
		(void)snprintf(why, WHY_SIZE,
			       "cannot be told from one that is revoked: the time of the list in "
			       "[tls] crl is over; get a new one of the CA");
		break;
	case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
	case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
	case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
	case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
	case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
	case X509_V_ERR_CERT_SIGNATURE_FAILURE:
		(void)snprintf(why, WHY_SIZE,
			       "is of another CA than ours; all nodes need certificates of one CA");
		break;
	default:
		(void)snprintf(why, WHY_SIZE, "is refused: %s", X509_verify_cert_error_string(code));
	}
}

void trust_explain(X509_STORE_CTX *failed, X509 *certificate, char why[WHY_SIZE])
{
	X509 *at = X509_STORE_CTX_get_current_cert(failed);
	int code = X509_STORE_CTX_get_error(failed);
	char when[32];

	if (code == X509_V_ERR_CERT_HAS_EXPIRED && at && X509_cmp(at, certificate) != 0)
		(void)snprintf(why, WHY_SIZE,
			       "is of a CA whose own expired on %s; make both anew with weightctl pki",
			       format_time(X509_get0_notAfter(at), when));
	else
		trust_explain_error(code, certificate, why);
}

static X509_CRL *crl_at(const struct trust *t, int i)
{
	return X509_OBJECT_get0_X509_CRL(sk_X509_OBJECT_value(X509_STORE_get0_objects(t->store), i));
}

static int n_objects(const struct trust *t)
{
	return sk_X509_OBJECT_num(X509_STORE_get0_objects(t->store));
}

static bool is_revoked(const struct trust *t, X509 *certificate)
{
	X509_REVOKED *entry;

	for (int i = 0; i < n_objects(t); i++)
		if (crl_at(t, i) && X509_CRL_get0_by_cert(crl_at(t, i), &entry, certificate) == 1)
			return true;
	return false;
}

static bool warn_of_lists(const struct trust *t, time_t tomorrow, char why[WHY_SIZE])
{
	char when[32];

	for (int i = 0; i < n_objects(t); i++) {
		const ASN1_TIME *end = crl_at(t, i) ? X509_CRL_get0_nextUpdate(crl_at(t, i)) : NULL;

		if (!end || X509_cmp_time(end, &tomorrow) >= 0)
			continue;
		(void)snprintf(why, WHY_SIZE,
			       "a list in [tls] crl ends on %s, and of its CA nobody is believed after "
			       "that; get a new one of the CA",
			       format_time(end, when));
		return true;
	}
	return false;
}

bool trust_warn(const struct trust *t, char why[WHY_SIZE])
{
	const ASN1_TIME *end = X509_get0_notAfter(t->certificate);
	time_t now = time(NULL), tomorrow = now + DAY_S;
	char what[WHY_SIZE - 64], when[32];
	int code = X509_V_OK;

	if (X509_cmp_time(X509_get0_notBefore(t->certificate), &now) > 0)
		code = X509_V_ERR_CERT_NOT_YET_VALID;
	else if (X509_cmp_time(end, &now) < 0)
		code = X509_V_ERR_CERT_HAS_EXPIRED;
	else if (is_revoked(t, t->certificate))
		code = X509_V_ERR_CERT_REVOKED;
	if (code != X509_V_OK) {
		char explained[WHY_SIZE];

		trust_explain_error(code, t->certificate, explained);
		(void)snprintf(what, sizeof(what), "%.440s", explained);
	} else if (X509_cmp_time(end, &tomorrow) < 0) {
		(void)snprintf(what, sizeof(what),
			       "expires on %s; make a new one with weightctl pki node",
			       format_time(end, when));
	} else {
		return warn_of_lists(t, tomorrow, why);
	}
	(void)snprintf(why, WHY_SIZE, "this node's certificate %s", what);
	return true;
}

/* --- Files ---------------------------------------------------------------------------------------- */

static int read_pem(int fd, char *ret)
{
	uint64_t size;
	int r = fd_read_all(fd, ret, TRUST_PEM_MAX, &size);

	if (r < 0)
		return r;
	ret[size] = '\0';
	return strlen(ret) == size && size < TRUST_PEM_MAX ? 0 : -EINVAL;
}

static int load_text(const char *what, const char *path, bool secret, char **ret, char why[WHY_SIZE])
{
	cleanup(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	cleanup(freep) char *text = malloc(TRUST_PEM_MAX + 1);
	struct stat st;
	int r = 0;

	if (fd < 0 || fstat(fd, &st) < 0)
		r = -errno;
	else if (!text)
		r = -ENOMEM;
	if (r < 0) {
		(void)snprintf(why, WHY_SIZE, "%s (%.300s) cannot be read: %s", what, path,
			       strerror(-r));
		return r;
	}
	if (secret && st.st_mode & (S_IRWXG | S_IRWXO)) {
		(void)snprintf(why, WHY_SIZE,
			       "%s (%.200s) can be read by others than its owner: chmod 600 %.200s",
			       what, path, path);
		return -EINVAL;
	}
	r = S_ISREG(st.st_mode) ? read_pem(fd, text) : -EINVAL;
	if (r < 0) {
		(void)snprintf(why, WHY_SIZE, "%s (%.300s) cannot be read: %s", what, path,
			       r == -EINVAL ? "it is no PEM file of at most 512 KiB" : strerror(-r));
		return r;
	}
	*ret = take_ptr(text);
	return 0;
}

/* Makes a copy for engines. */
static int trust_seal(const char *text, int *ret_fd, char why[WHY_SIZE])
{
	int r = fd_sealed_copy("weightd-sync-pem", text, strlen(text), ret_fd);

	if (r < 0)
		(void)snprintf(why, WHY_SIZE, "certificates cannot be copied: %s", strerror(-r));
	return r;
}

/* Refuses to prompt for a passphrase, as OpenSSL does on the terminal. */
static int no_passphrase(char *buf, int size, int writing, void *user)
{
	(void)buf;
	(void)size;
	(void)writing;
	(void)user;
	return 0;
}

static X509 *parse_certificate(const char *pem)
{
	cleanup(bio_freep) BIO *bio = BIO_new_mem_buf(pem, -1);

	return bio ? PEM_read_bio_X509(bio, NULL, no_passphrase, NULL) : NULL;
}

static int load_ca(struct trust *t, const char *path, char **ret_text, char why[WHY_SIZE])
{
	cleanup(bio_freep) BIO *bio = NULL;
	unsigned n = 0;
	X509 *ca;
	int r = load_text("[tls] ca", path, false, ret_text, why);

	if (r < 0)
		return r;
	bio = BIO_new_mem_buf(*ret_text, -1);
	t->store = X509_STORE_new();
	if (!bio || !t->store)
		return -ENOMEM;
	while ((ca = PEM_read_bio_X509(bio, NULL, no_passphrase, NULL))) {
		n += X509_STORE_add_cert(t->store, ca) == 1;
		X509_free(ca);
	}
	if (n > 0)
		return 0;
	(void)snprintf(why, WHY_SIZE,
		       "[tls] ca (%.300s) has no certificate in PEM; make one with weightctl pki ca",
		       path);
	return -EINVAL;
}

static bool has_signed(X509 *ca, X509_CRL *crl)
{
	return X509_NAME_cmp(X509_get_subject_name(ca), X509_CRL_get_issuer(crl)) == 0 &&
	       X509_CRL_verify(crl, X509_get0_pubkey(ca)) == 1;
}

static bool has_list(const struct trust *t, X509 *ca)
{
	for (int i = 0; i < n_objects(t); i++)
		if (crl_at(t, i) && has_signed(ca, crl_at(t, i)))
			return true;
	return false;
}

/* Without a list, OpenSSL would refuse all certificates of that CA. */
static int check_lists(const struct trust *t, const char *path, char why[WHY_SIZE])
{
	for (int i = 0; i < n_objects(t); i++) {
		STACK_OF(X509_OBJECT) *all = X509_STORE_get0_objects(t->store);
		X509 *ca = X509_OBJECT_get0_X509(sk_X509_OBJECT_value(all, i));
		char name[64];

		if (!ca || has_list(t, ca))
			continue;
		if (X509_NAME_get_text_by_NID(X509_get_subject_name(ca), NID_commonName, name,
					      sizeof(name)) < 0)
			(void)snprintf(name, sizeof(name), "?");
		(void)snprintf(why, WHY_SIZE,
			       "[tls] crl (%.200s) has no list in PEM that the CA '%s' of [tls] ca "
			       "signed; make one with weightctl pki revoke",
			       path, name);
		return -EINVAL;
	}
	return 0;
}

/* Appends its text to that of the CA. */
static int load_crl(struct trust *t, const char *path, char **text, char why[WHY_SIZE])
{
	cleanup(freep) char *more = NULL;
	cleanup(bio_freep) BIO *bio = NULL;
	char *both;
	X509_CRL *crl;
	int r = load_text("[tls] crl", path, false, &more, why);

	if (r < 0)
		return r;
	bio = BIO_new_mem_buf(more, -1);
	if (!bio || asprintf(&both, "%s\n%s", *text, more) < 0)
		return -ENOMEM;
	free(*text);
	*text = both;
	while ((crl = PEM_read_bio_X509_CRL(bio, NULL, no_passphrase, NULL))) {
		(void)X509_STORE_add_crl(t->store, crl);
		X509_CRL_free(crl);
	}
	(void)X509_STORE_set_flags(t->store, X509_V_FLAG_CRL_CHECK);
	return check_lists(t, path, why);
}

static int load_authorities(struct trust *t, const struct trust_files *files, char why[WHY_SIZE])
{
	cleanup(freep) char *text = NULL;
	int r = load_ca(t, files->ca, &text, why);

	if (r == 0 && files->crl)
		r = load_crl(t, files->crl, &text, why);
	return r == 0 ? trust_seal(text, &t->fds[0], why) : r;
}

static int load_certificate(struct trust *t, const char *path, char why[WHY_SIZE])
{
	int r = load_text("[tls] certificate", path, false, &t->certificate_pem, why);

	if (r == 0)
		r = trust_seal(t->certificate_pem, &t->fds[1], why);
	if (r < 0)
		return r;
	t->certificate = parse_certificate(t->certificate_pem);
	if (t->certificate)
		return 0;
	(void)snprintf(
		why, WHY_SIZE,
		"[tls] certificate (%.300s) has no certificate in PEM; make one with weightctl pki node",
		path);
	return -EINVAL;
}

static int load_key(struct trust *t, const char *path, char why[WHY_SIZE])
{
	cleanup(freep) char *text = NULL;
	cleanup(bio_freep) BIO *bio = NULL;
	const char *wrong = NULL;
	int r = load_text("[tls] key", path, true, &text, why);

	if (r < 0)
		return r;
	r = trust_seal(text, &t->fds[2], why);
	bio = BIO_new_mem_buf(text, -1);
	t->key = bio ? PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, NULL) : NULL;
	OPENSSL_cleanse(text, strlen(text));
	if (r < 0)
		return r;
	if (!t->key)
		wrong = "has no private key in PEM without a passphrase";
	else if (!EVP_PKEY_is_a(t->key, "ED25519"))
		wrong = "is no Ed25519 key";
	else if (X509_check_private_key(t->certificate, t->key) != 1)
		wrong = "is not the key of [tls] certificate";
	if (!wrong)
		return 0;
	(void)snprintf(why, WHY_SIZE,
		       "[tls] key (%.300s) %s; make both anew with weightctl pki node", path, wrong);
	return -EINVAL;
}

static int check_own_name(struct trust *t, const char *path, const char *name, char why[WHY_SIZE])
{
	char found[NODE_MAX + 1], clause[WHY_SIZE];

	if (trust_name(t->certificate, found, clause) < 0) {
		(void)snprintf(why, WHY_SIZE, "[tls] certificate (%.200s) %.250s", path, clause);
		return -EINVAL;
	}
	if (!strcmp(found, name))
		return 0;
	(void)snprintf(why, WHY_SIZE,
		       "[tls] certificate (%.200s) is of the node '%s', and this one is '%s' by [node] "
		       "name; make one with weightctl pki node DIR %s",
		       path, found, name, name);
	return -EINVAL;
}

static void ignore_revoked(X509_STORE_CTX *c)
{
	(void)X509_VERIFY_PARAM_clear_flags(X509_STORE_CTX_get0_param(c), X509_V_FLAG_CRL_CHECK);
}

/* Checks that our CA issued the certificate, at any time, revoked or not. */
static int check_own_issuer(struct trust *t, const char *path, char why[WHY_SIZE])
{
	cleanup(store_context_freep) X509_STORE_CTX *c = X509_STORE_CTX_new();
	char clause[WHY_SIZE];

	if (!c || X509_STORE_CTX_init(c, t->store, t->certificate, NULL) != 1)
		return -ENOMEM;
	ignore_revoked(c);
	X509_STORE_CTX_set_flags(c, X509_V_FLAG_NO_CHECK_TIME);
	if (X509_verify_cert(c) == 1)
		return 0;
	trust_explain(c, t->certificate, clause);
	(void)snprintf(why, WHY_SIZE, "[tls] certificate (%.200s) %.250s", path, clause);
	return -EINVAL;
}

int trust_load(const struct trust_files *files, const char *name, struct trust *ret,
	       char why[WHY_SIZE])
{
	struct trust t;
	int r;

	trust_init(&t);
	(void)snprintf(why, WHY_SIZE, "out of memory");
	r = load_authorities(&t, files, why);
	if (r == 0)
		r = load_certificate(&t, files->certificate, why);
	if (r == 0)
		r = load_key(&t, files->key, why);
	if (r == 0)
		r = check_own_name(&t, files->certificate, name, why);
	if (r == 0)
		r = check_own_issuer(&t, files->certificate, why);
	ERR_clear_error();
	if (r == 0)
		*ret = t;
	else
		trust_deinit(&t);
	return r;
}

/* --- Documents ------------------------------------------------------------------------------------ */

int trust_sign(const struct trust *t, const char *text, char *ret, size_t size)
{
	cleanup(digest_freep) EVP_MD_CTX *c = EVP_MD_CTX_new();
	unsigned char bytes[SIGNATURE_BYTES];
	size_t n = sizeof(bytes);

	if (size < TRUST_SIGNATURE_SIZE)
		return -ENOBUFS;
	if (!c || EVP_DigestSignInit(c, NULL, NULL, NULL, t->key) != 1 ||
	    EVP_DigestSign(c, bytes, &n, (const unsigned char *)text, strlen(text)) != 1 ||
	    n != sizeof(bytes)) {
		ERR_clear_error();
		return -EIO;
	}
	(void)EVP_EncodeBlock((unsigned char *)ret, bytes, SIGNATURE_BYTES);
	return 0;
}

/* Base64 of 64 bytes, exactly. */
static int decode_signature(const char *text, unsigned char ret[SIGNATURE_BYTES])
{
	unsigned char bytes[SIGNATURE_BYTES + 2];

	if (strlen(text) != TRUST_SIGNATURE_SIZE - 1 || strcmp(text + 86, "==") != 0)
		return -EINVAL;
	if (EVP_DecodeBlock(bytes, (const unsigned char *)text, TRUST_SIGNATURE_SIZE - 1) !=
	    (int)sizeof(bytes))
		return -EINVAL;
	memcpy(ret, bytes, SIGNATURE_BYTES);
	return 0;
}

/*
 * `then` NULL: now. A revocation list does not contain the time from which a key is compromised: so
 * it applies to `then` as well.
 */
static int trust_verify_at(X509_STORE *store, X509 *certificate, const time_t *then,
			   char why[WHY_SIZE])
{
	cleanup(store_context_freep) X509_STORE_CTX *c = X509_STORE_CTX_new();

	if (!c || X509_STORE_CTX_init(c, store, certificate, NULL) != 1) {
		(void)snprintf(why, WHY_SIZE, "cannot be checked: out of memory");
		return -EKEYREJECTED;
	}
	if (then) {
		ignore_revoked(c);
		X509_STORE_CTX_set_time(c, 0, *then);
	}
	if (X509_verify_cert(c) == 1)
		return 0;
	trust_explain(c, certificate, why);
	ERR_clear_error();
	return -EKEYREJECTED;
}

int trust_verify(X509_STORE *store, X509 *certificate, char why[WHY_SIZE])
{
	return trust_verify_at(store, certificate, NULL, why);
}

static const char *check_signature(X509 *certificate, const char *text, const char *signature)
{
	cleanup(pkey_freep) EVP_PKEY *key = X509_get_pubkey(certificate);
	cleanup(digest_freep) EVP_MD_CTX *c = EVP_MD_CTX_new();
	unsigned char bytes[SIGNATURE_BYTES];

	if (!key || !c || !EVP_PKEY_is_a(key, "ED25519"))
		return "has no Ed25519 key";
	if (decode_signature(signature, bytes) < 0 ||
	    EVP_DigestVerifyInit(c, NULL, NULL, NULL, key) != 1 ||
	    EVP_DigestVerify(c, bytes, sizeof(bytes), (const unsigned char *)text, strlen(text)) != 1)
		return "has not signed this document: it was changed on the way, or forged";
	return NULL;
}

int trust_check(const struct trust *t, const char *text, const char *signature,
		const char *certificate, const char *name, uint64_t time_ns, char why[WHY_SIZE])
{
	cleanup(x509_freep) X509 *x = NULL;
	char found[NODE_MAX + 1], clause[WHY_SIZE];
	const time_t then = (time_t)(time_ns / 1000000000);
	const char *wrong = NULL;

	if (strlen(certificate) <= TRUST_PEM_MAX)
		x = parse_certificate(certificate);
	if (!x)
		wrong = "is none, or not in PEM";
	else if (trust_name(x, found, clause) < 0)
		wrong = clause;
	else if (strcmp(found, name) != 0)
		wrong = "is of another node";
	if (!wrong && trust_verify_at(t->store, x, time_ns == TIME_NOW ? NULL : &then, clause) < 0)
		wrong = clause;
	if (!wrong)
		wrong = check_signature(x, text, signature);
	ERR_clear_error();
	if (!wrong)
		return 0;
	(void)snprintf(why, WHY_SIZE, "the certificate of the publisher '%.63s' %.400s", name,
		       wrong);
	return -EKEYREJECTED;
}
