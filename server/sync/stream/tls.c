#include "server/sync/stream/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/sync/base/preamble.h"

#define PEM_MAX MIB
#define RECORDS_READ (256 * 1024) /* OpenSSL's default makes two calls per record */

static BIO *read_pem(int fd)
{
	char *text;
	uint64_t size;
	BIO *bio = NULL;

	if (fd_size(fd, &size) < 0 || size == 0 || size > PEM_MAX)
		return NULL;
	text = malloc(size);
	if (text && pread(fd, text, size, 0) == (ssize_t)size) {
		bio = BIO_new(BIO_s_secmem());
		if (bio && BIO_write(bio, text, (int)size) != (int)size) {
			BIO_free(bio);
			bio = NULL;
		}
	}
	if (text)
		OPENSSL_cleanse(text, size); /* it may be the key */
	free(text);
	return bio;
}

/* OpenSSL's default prompts at the terminal. */
static int no_passphrase(char *buf, int size, int writing, void *user)
{
	(void)buf;
	(void)size;
	(void)writing;
	(void)user;
	return -1;
}

static bool add_authority(X509_STORE *store, const X509_INFO *info, bool *ret_some)
{
	*ret_some |= info->x509 != NULL;
	if (info->crl && X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK) != 1)
		return false;
	return (!info->x509 || X509_STORE_add_cert(store, info->x509) == 1) &&
	       (!info->crl || X509_STORE_add_crl(store, info->crl) == 1);
}

/* Adds the certificates and revocation lists. */
static bool add_authorities(SSL_CTX *context, BIO *pem)
{
	STACK_OF(X509_INFO) *all = PEM_X509_INFO_read_bio(pem, NULL, no_passphrase, NULL);
	X509_STORE *store = SSL_CTX_get_cert_store(context);
	bool ok = all != NULL, some = false;

	for (int i = 0; ok && i < sk_X509_INFO_num(all); i++)
		ok = add_authority(store, sk_X509_INFO_value(all, i), &some);
	sk_X509_INFO_pop_free(all, X509_INFO_free);
	return ok && some;
}

static bool use_certificates(SSL_CTX *context, BIO *pem)
{
	X509 *certificate = PEM_read_bio_X509(pem, NULL, no_passphrase, NULL);
	bool ok = certificate && SSL_CTX_use_certificate(context, certificate) == 1;

	X509_free(certificate);
	while (ok && (certificate = PEM_read_bio_X509(pem, NULL, no_passphrase, NULL))) {
		ok = SSL_CTX_add1_chain_cert(context, certificate) == 1;
		X509_free(certificate);
	}
	return ok;
}

static bool use_key(SSL_CTX *context, BIO *pem)
{
	EVP_PKEY *key = PEM_read_bio_PrivateKey(pem, NULL, no_passphrase, NULL);
	bool ok = key && SSL_CTX_use_PrivateKey(context, key) == 1 &&
		  SSL_CTX_check_private_key(context) == 1;

	EVP_PKEY_free(key);
	return ok;
}

static bool set_rules(SSL_CTX *context)
{
	SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
	SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE |
					  SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
					  SSL_MODE_RELEASE_BUFFERS);
	(void)SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_read_ahead(context, 1);
	/* The kernel supports some ciphers: tcp_socket.c checks it after the handshake. */
	(void)SSL_CTX_set_options(context, SSL_OP_ENABLE_KTLS);
	SSL_CTX_set_default_read_buffer_len(context, RECORDS_READ);
	/*
	 * Sessions are never resumed; a ticket would add bytes on the wire to those that are
	 * counted.
	 */
	return SSL_CTX_set_num_tickets(context, 0) == 1 &&
	       SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1;
}

int tls_new(const int pem_fds[3], SSL_CTX **ret, char *why, size_t why_size)
{
	static const struct {
		const char *name;
		bool (*use)(SSL_CTX *context, BIO *pem);
	} parts[] = {
		{"CA", add_authorities},
		{"certificate", use_certificates},
		{"key, which must be the certificate's and without a passphrase,", use_key},
	};
	SSL_CTX *context = SSL_CTX_new(TLS_method());
	bool ok = context && set_rules(context);

	(void)snprintf(why, why_size, "no memory");
	for (size_t i = 0; ok && i < ARRAY_LEN(parts); i++) {
		BIO *pem = read_pem(pem_fds[i]);

		ok = pem && parts[i].use(context, pem);
		BIO_free(pem);
		if (!ok)
			(void)snprintf(why, why_size, "the PEM of the %s cannot be used",
				       parts[i].name);
	}
	ERR_clear_error(); /* the end of a PEM is an error, too */
	if (!ok) {
		SSL_CTX_free(context);
		return -EBADMSG;
	}
	*ret = context;
	return 0;
}

SSL *tls_session(SSL_CTX *context, int fd, bool is_server, const char *peer)
{
	char host[PREAMBLE_NAME_SIZE + sizeof(".weightd")];
	SSL *tls = SSL_new(context);

	(void)snprintf(host, sizeof(host), "%s.weightd", peer);
	if (tls) {
		SSL_set_hostflags(tls, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT |
					       X509_CHECK_FLAG_NO_WILDCARDS);
		if (SSL_set1_host(tls, host) == 1 && SSL_set_fd(tls, fd) == 1) {
			if (is_server)
				SSL_set_accept_state(tls);
			else
				SSL_set_connect_state(tls);
			return tls;
		}
	}
	SSL_free(tls);
	return NULL;
}

void tls_explain(const SSL *tls, char *why, size_t why_size)
{
	long verdict = SSL_get_verify_result(tls);
	unsigned long error = ERR_peek_last_error();
	const char *reason = ERR_reason_error_string(error);

	if (verdict != X509_V_OK)
		(void)snprintf(why, why_size, "its certificate: %s",
			       X509_verify_cert_error_string(verdict));
	else
		(void)snprintf(why, why_size, "TLS: %s", reason ? reason : "it hung up");
}
