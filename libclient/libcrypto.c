#include "libclient/libcrypto.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>

#include "ipc/base/num.h"

/* These functions are the same in both. */
static const char *const sonames[] = {"libcrypto.so.3", "libcrypto.so.1.1"};

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The result of opening it, written once. */
static struct {
	bool is_whole;
	struct libcrypto functions;
} opened;

static void open_library(void)
{
	void *library = NULL;

	for (size_t i = 0; !library && i < ARRAY_LEN(sonames); i++)
		library = dlopen(sonames[i], RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return;
		/* POSIX allows it, ISO C does not: a function pointer from dlsym(). */
#define X(function, result, parameters)                                                            \
	*(void **)&opened.functions.function = dlsym(library, #function);                          \
	if (!opened.functions.function)                                                            \
		return;
	LIBCRYPTO_FUNCTIONS(X)
#undef X
	opened.is_whole = true;
}

int libcrypto_open(const struct libcrypto **ret, struct sentence *s)
{
	(void)pthread_once(&once, open_library); /* cannot fail */
	if (!opened.is_whole)
		return sentence_set(s, -EOPNOTSUPP,
				    "SHA-256 needs libcrypto.so.3 or libcrypto.so.1.1 of OpenSSL, "
				    "which cannot be opened; install it (Debian's package libssl3), "
				    "or verify with xxh3");
	*ret = &opened.functions;
	return 0;
}
