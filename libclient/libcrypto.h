/*
 * libcrypto
 *
 * SHA-256 of OpenSSL's libcrypto.so as a table of functions, opened by soname where a load asks for it: programs that only
 * attach never load it, and neither the build nor a machine without it needs it. Only this file and its .c name its
 * symbols; a test compares these declarations with OpenSSL's own.
 */
#pragma once

#include <stddef.h>

#include "libclient/connection/sentence.h"

struct evp_md_ctx_st;
struct evp_md_st;
struct engine_st;

/* X(function, result, parameters) */
#define LIBCRYPTO_FUNCTIONS(X)                                                                      \
	X(EVP_MD_CTX_new, struct evp_md_ctx_st *, (void))                                           \
	X(EVP_MD_CTX_free, void, (struct evp_md_ctx_st * context))                                  \
	X(EVP_sha256, const struct evp_md_st *, (void))                                             \
	X(EVP_DigestInit_ex, int,                                                                   \
	  (struct evp_md_ctx_st * context, const struct evp_md_st *kind, struct engine_st *engine)) \
	X(EVP_DigestUpdate, int, (struct evp_md_ctx_st * context, const void *bytes, size_t n))     \
	X(EVP_DigestFinal_ex, int,                                                                  \
	  (struct evp_md_ctx_st * context, unsigned char *hash, unsigned *ret_n))

struct libcrypto {
#define X(function, result, parameters) result(*function) parameters;
	LIBCRYPTO_FUNCTIONS(X)
#undef X
};

/*
 * Opens it at the first call; it stays open. -EOPNOTSUPP with a sentence if it cannot be opened. Any thread may call it.
 */
int libcrypto_open(const struct libcrypto **ret, struct sentence *s);
