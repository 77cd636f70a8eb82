#include "server/sync/net/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/cleanup.h"

static inline void context_freep(SSL_CTX **p)
{
	SSL_CTX_free(*p);
}

/* Keeps the reason of a refusal, and the name in the certificate: OpenSSL does not keep them. */
static int tls_on_certificate(int ok, X509_STORE_CTX *store)
{
	SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
	struct tls *t = SSL_get_app_data(ssl);
	X509 *leaf = X509_STORE_CTX_get0_cert(store);
	char clause[WHY_SIZE];

	if (ok || !leaf)
		return ok;
	trust_explain(store, leaf, clause);
	(void)snprintf(t->why, sizeof(t->why), "its certificate %.480s", clause);
	if (trust_name(leaf, t->claimed, clause) < 0)
		t->claimed[0] = '\0';
	return 0;
}

int tls_context_new(const struct trust *trust, SSL_CTX **ret, char why[WHY_SIZE])
{
	cleanup(context_freep) SSL_CTX *c = SSL_CTX_new(TLS_method());

	if (!c || SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) != 1 ||
	    SSL_CTX_set_num_tickets(c, 0) != 1 ||
	    SSL_CTX_use_certificate(c, trust->certificate) != 1 ||
	    SSL_CTX_use_PrivateKey(c, trust->key) != 1) {
		(void)snprintf(why, WHY_SIZE, "OpenSSL takes this node's certificate not: %s",
			       ERR_reason_error_string(ERR_peek_last_error()));
		ERR_clear_error();
		return -EINVAL;
	}
	SSL_CTX_set1_cert_store(c, trust->store);
	SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, tls_on_certificate);
	SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
	(void)SSL_CTX_set_max_early_data(c, 0);
	(void)SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION |
					     SSL_OP_NO_COMPRESSION);
	(void)SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE |
					  SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
					  SSL_MODE_RELEASE_BUFFERS);
	*ret = take_ptr(c);
	return 0;
}

int tls_init(struct tls *t, SSL_CTX *context, int fd, bool dialled)
{
	*t = (struct tls){.ssl = SSL_new(context)};
	if (!t->ssl)
		return -ENOMEM;
	if (SSL_set_fd(t->ssl, fd) != 1) {
		tls_deinit(t);
		return -ENOMEM;
	}
	SSL_set_app_data(t->ssl, t);
	if (dialled)
		SSL_set_connect_state(t->ssl);
	else
		SSL_set_accept_state(t->ssl);
	return 0;
}

void tls_deinit(struct tls *t)
{
	SSL_free(t->ssl);
	t->ssl = NULL;
}

/* Explains an alert of the peer, or bytes that are no TLS. */
static void tls_explain_error(struct tls *t)
{
	unsigned long e = ERR_peek_error();
	int reason = ERR_GET_REASON(e);
	const char *text = ERR_reason_error_string(e);

	if (t->why[0])
		return; /* the certificate's error explains more */
	if (reason >= SSL_AD_REASON_OFFSET)
		(void)snprintf(t->why, sizeof(t->why), "it refuses this node's certificate: %s",
			       SSL_alert_desc_string_long(reason - SSL_AD_REASON_OFFSET));
	else if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE)
		(void)snprintf(t->why, sizeof(t->why), "it shows no certificate");
	else if (reason == SSL_R_UNSUPPORTED_PROTOCOL)
		(void)snprintf(t->why, sizeof(t->why), "it does not speak TLS 1.3");
	else if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST ||
		 reason == SSL_R_BAD_RECORD_TYPE || reason == SSL_R_PACKET_LENGTH_TOO_LONG)
		(void)snprintf(t->why, sizeof(t->why), "it does not speak TLS");
	else
		(void)snprintf(t->why, sizeof(t->why), "it failed at TLS: %s",
			       text ? text : "unknown error");
}

/* Converts an error of OpenSSL. */
static int failure(struct tls *t, int r)
{
	int saved = errno;

	switch (SSL_get_error(t->ssl, r)) {
	case SSL_ERROR_WANT_READ:
		t->wants_room = false;
		return -EAGAIN;
	case SSL_ERROR_WANT_WRITE:
		t->wants_room = true;
		return -EAGAIN;
	case SSL_ERROR_ZERO_RETURN:
		return -EPIPE;
	case SSL_ERROR_SYSCALL:
		if (ERR_peek_error() == 0)
			return saved && saved != ECONNRESET ? -saved : -EPIPE;
		break;
	default:
		if (ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
			ERR_clear_error();
			return -EPIPE;
		}
	}
	tls_explain_error(t);
	ERR_clear_error();
	return -EPROTO;
}

int tls_handshake(struct tls *t)
{
	int r;

	ERR_clear_error();
	errno = 0;
	r = SSL_do_handshake(t->ssl);
	return r == 1 ? 0 : failure(t, r);
}

int tls_name(struct tls *t, char ret[NODE_MAX + 1])
{
	X509 *certificate = SSL_get1_peer_certificate(t->ssl);
	char clause[WHY_SIZE] = "is none";
	int r = certificate ? trust_name(certificate, ret, clause) : -EINVAL;

	X509_free(certificate);
	if (r == 0)
		return 0;
	(void)snprintf(t->why, sizeof(t->why), "its certificate %.480s", clause);
	return -EPROTO;
}

int tls_check(struct tls *t, SSL_CTX *context)
{
	X509 *certificate = SSL_get1_peer_certificate(t->ssl);
	char clause[WHY_SIZE] = "is none";
	int r = certificate ? trust_verify(SSL_CTX_get_cert_store(context), certificate, clause)
			    : -EINVAL;

	X509_free(certificate);
	if (r == 0)
		return 0;
	(void)snprintf(t->why, sizeof(t->why), "%.500s", clause);
	return -EPROTO;
}

bool tls_is_over(const struct tls *t, time_t now)
{
	STACK_OF(X509) *chain = SSL_get0_verified_chain(t->ssl);

	for (int i = 0; i < sk_X509_num(chain); i++)
		if (X509_cmp_time(X509_get0_notAfter(sk_X509_value(chain, i)), &now) < 0)
			return true;
	return false;
}

bool tls_is_of(const struct tls *t, SSL_CTX *context)
{
	return X509_cmp(SSL_get_certificate(t->ssl), SSL_CTX_get0_certificate(context)) == 0;
}

int tls_read(struct tls *t, void *buf, size_t size, size_t *ret)
{
	int r;

	ERR_clear_error();
	errno = 0;
	r = SSL_read_ex(t->ssl, buf, size, ret);
	return r == 1 ? 0 : failure(t, r);
}

int tls_write(struct tls *t, const void *data, size_t size, size_t *ret)
{
	int r;

	ERR_clear_error();
	errno = 0;
	r = SSL_write_ex(t->ssl, data, size, ret);
	return r == 1 ? 0 : failure(t, r);
}

bool tls_has_more(const struct tls *t)
{
	return SSL_pending(t->ssl) > 0;
}

void tls_end(struct tls *t)
{
	if (SSL_is_init_finished(t->ssl))
		(void)SSL_shutdown(t->ssl);
	ERR_clear_error();
}
