/*
 * A kernel with TLS, for a program that asks OpenSSL for one: preloaded, it claims that there is
 * one, and bytes that the kernel should send from a file are read, and encrypted by OpenSSL. It
 * takes a little at a time, as a full socket does. OpenSSL itself is not deceived.
 */
#include <dlfcn.h>
#include <openssl/bio.h>
#include <openssl/ssl.h>
#include <string.h>
#include <unistd.h>

#define AT_ONCE 10000 /* bytes: neither a record nor a page */

static int is_of_openssl(const void *caller)
{
	Dl_info who;

	return dladdr(caller, &who) && who.dli_fname && strstr(who.dli_fname, ".so");
}

long BIO_ctrl(BIO *bio, int command, long n, void *p)
{
	static long (*real)(BIO * bio, int command, long n, void *p);

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "BIO_ctrl");
	if (command == BIO_CTRL_GET_KTLS_SEND && !is_of_openssl(__builtin_return_address(0)))
		return 1;
	return real(bio, command, n, p);
}

ossl_ssize_t SSL_sendfile(SSL *tls, int fd, off_t offset, size_t size, int flags)
{
	char bytes[AT_ONCE];
	size_t n_sent = 0;
	ssize_t n = pread(fd, bytes, size < AT_ONCE ? size : AT_ONCE, offset);

	(void)flags;
	if (n <= 0)
		return n;
	return SSL_write_ex(tls, bytes, (size_t)n, &n_sent) == 1 ? (ossl_ssize_t)n_sent : -1;
}
